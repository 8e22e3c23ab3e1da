"""Which function, on which thread, wakes the CPUs? Stacks to blame for every idle exit of a process.

--pid takes process ids and names (mysqld finds mariadbd too); --system looks at every process; --from analyses a
saved capture again, without root. Instead of wake-ups, --on-cpu samples where the running time goes (or, with
--event page-faults, who takes them), and --functions 'handle_slave*' counts calls and self time by probes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from powerprof.cli.exports import Flame, Folded, Html, Perfetto, Pprof, Speedscope, check_targets, write_exports
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
    check_runs_dir,
    progress,
    save_and_show,
)

if TYPE_CHECKING:
    from powerprof.attribution.capture import Capture

Pid = Annotated[
    list[str] | None, typer.Option("--pid", metavar="ID|NAME", help="Process ids or names, with commas between.")
]
Cgroup = Annotated[str | None, typer.Option("--cgroup", metavar="PATH|UNIT", help="All processes of a cgroup or unit.")]
System = Annotated[bool, typer.Option("--system", help="Every process of this host.")]
By = Annotated[str | None, typer.Option("--by", metavar="WHAT", help="Rows by stack, function, thread or device.")]
Top = Annotated[int, typer.Option("--top", metavar="N", min=1, max=100_000, help="Rows to print.")]
From = Annotated[str | None, typer.Option("--from", metavar="RUN", help="Analyse a saved capture again.")]
RingKib = Annotated[
    int,
    typer.Option("--stack-buffer", metavar="KIB", min=4, max=1 << 20, help="Ring buffer for stacks, a power of two."),
]


OnCpu = Annotated[bool, typer.Option("--on-cpu", help="Sample where the target runs instead.")]
EventName = Annotated[
    str, typer.Option("--event", metavar="NAME", help="What --on-cpu counts: cpu-clock (default) or page-faults.")
]
Frequency = Annotated[
    int, typer.Option("--frequency", metavar="HZ", min=1, max=10_000, help="Samples a second and CPU of --on-cpu.")
]
Functions = Annotated[
    str | None,
    typer.Option("--functions", metavar="GLOB", help="Count calls of these functions instead: GLOB or MODULE:GLOB."),
]
MaxFunctions = Annotated[
    int, typer.Option("--max-functions", metavar="N", min=1, max=1022, help="Most functions that --functions probes.")
]
Backend = Annotated[
    str, typer.Option("--backend", metavar="NAME", help="Of --functions: auto (BPF, else DTrace), bpf or dtrace.")
]


def export(record: Any, files: dict[str, str | None], taken: Capture | None) -> None:
    """Write the files that were asked for; the timeline comes from the capture."""
    if any(files.values()):
        from powerprof.report.beside import extras_of_capture

        write_exports(record, files, extras_of_capture(taken))


def command(
    pid: Pid = None,
    cgroup: Cgroup = None,
    system: System = False,
    duration: Duration = 10.0,
    by: By = None,
    top: Top = 20,
    from_run: From = None,
    on_cpu: OnCpu = False,
    event: EventName = "cpu-clock",
    frequency: Frequency = 99,
    functions: Functions = None,
    max_functions: MaxFunctions = 200,
    backend: Backend = "auto",
    server: ServerUrl = None,
    socket: Socket = None,
    defaults_file: DefaultsFile = None,
    energy_source: EnergySource = "auto",
    meter_log: MeterLog = None,
    stack_buffer: RingKib = 16384,
    html: Html = None,
    flame: Flame = None,
    folded: Folded = None,
    pprof: Pprof = None,
    speedscope: Speedscope = None,
    perfetto: Perfetto = None,
    json: Json = None,
    quiet: Quiet = False,
    runs_dir: RunsDir = None,
    no_save: NoSave = False,
) -> None:
    """Trace, save, analyse, print."""
    check_json_target(json)
    check_runs_dir(runs_dir, no_save or from_run is not None)
    files = {
        "html": html,
        "flame": flame,
        "folded": folded,
        "pprof": pprof,
        "speedscope": speedscope,
        "perfetto": perfetto,
    }
    check_targets({**files, "json": json})
    from powerprof.attribution import session

    request = session.Request(
        words=tuple(pid or ()),
        cgroup=cgroup,
        system=system,
        duration_s=duration,
        stack_buffer_kib=stack_buffer,
        server_url=server,
        socket=socket,
        defaults_file=defaults_file,
        energy_source=energy_source,
        meter_log=meter_log,
        from_run=from_run,
        runs_dir=runs_dir,
        on_cpu=on_cpu,
        event=event,
        frequency_hz=frequency,
        functions=functions,
        max_functions=max_functions,
        backend=backend,
    )
    from powerprof.report.targets import check_by, lines_of

    check_by(by, on_cpu=on_cpu, functions=functions is not None)
    found = session.run(request, lambda text: progress(text, quiet))
    save_and_show(
        found.record,
        found.kind,
        lambda record, width: lines_of(record, width, by=by, top=top),
        json=json,
        quiet=quiet or "-" in files.values(),
        runs_dir=runs_dir,
        no_save=no_save or from_run is not None,
        extra=found.files,
        also=lambda record: export(record, files, found.capture),
    )
