"""Which function, on which thread, wakes the CPUs? Stacks to blame for every idle exit of a process.

--pid takes process ids and names (mysqld finds mariadbd too); --system looks at every process; --from analyses a
saved capture again, without root.
"""

from __future__ import annotations

from typing import Annotated

import typer

from powerprof.cli.options import (
    DefaultsFile,
    Duration,
    EnergySource,
    Json,
    MeterLog,
    NoSave,
    Quiet,
    RunsDir,
    ServerUrl,
    Socket,
    check_json_target,
    progress,
    save_and_show,
)
from powerprof.errors import UsageError

Pid = Annotated[
    list[str] | None, typer.Option("--pid", metavar="ID|NAME", help="Process ids or names, with commas between.")
]
Cgroup = Annotated[str | None, typer.Option("--cgroup", metavar="PATH|UNIT", help="All processes of a cgroup or unit.")]
System = Annotated[bool, typer.Option("--system", help="Every process of this host.")]
By = Annotated[str, typer.Option("--by", metavar="WHAT", help="stack (default), function, thread or device.")]
Top = Annotated[int, typer.Option("--top", metavar="N", min=1, max=100_000, help="Rows to print.")]
From = Annotated[str | None, typer.Option("--from", metavar="RUN", help="Analyse a saved capture again.")]
RingKib = Annotated[
    int,
    typer.Option("--stack-buffer", metavar="KIB", min=4, max=1 << 20, help="Ring buffer for stacks, a power of two."),
]


def command(
    pid: Pid = None,
    cgroup: Cgroup = None,
    system: System = False,
    duration: Duration = 10.0,
    by: By = "stack",
    top: Top = 20,
    from_run: From = None,
    server: ServerUrl = None,
    socket: Socket = None,
    defaults_file: DefaultsFile = None,
    energy_source: EnergySource = "auto",
    meter_log: MeterLog = None,
    stack_buffer: RingKib = 16384,
    json: Json = None,
    quiet: Quiet = False,
    runs_dir: RunsDir = None,
    no_save: NoSave = False,
) -> None:
    """Trace, save, analyse, print."""
    check_json_target(json)
    from powerprof.report import attribution as report

    if by not in report.BY:
        raise UsageError(f"--by {by} is no choice", f"one of {', '.join(report.BY)}")
    from powerprof.attribution import capture, session

    if from_run is not None:
        if pid or cgroup or system:
            raise UsageError(
                "--from analyses a saved capture: it takes no target", "leave out --pid, --cgroup, --system"
            )
        record, raw = session.replay(from_run, runs_dir), None
        no_save = True
    else:
        taken = session.take(
            session.Request(
                tuple(pid or ()),
                cgroup,
                system,
                duration,
                stack_buffer,
                server,
                socket,
                defaults_file,
                energy_source,
                meter_log,
            ),
            lambda text: progress(text, quiet),
        )
        record, raw = session.analyse(taken), {capture.FILE: capture.encode(taken)}
    save_and_show(
        record, "attribute", lambda found, width: report.lines(found, width, by=by, top=top), json=json, quiet=quiet,
        runs_dir=runs_dir, no_save=no_save, extra=raw,
    )  # fmt: skip
