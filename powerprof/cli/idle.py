"""What does an idle database server cost? Baseline, server, silent clients, and the differences.

By default on a private MariaDB that is removed afterwards; --server, --socket or --defaults-file choose a
server of yours, which is never changed. As root, what woke the CPUs is named too.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from powerprof.cli.exports import Csv, Html, Markdown, exporter
from powerprof.cli.options import (
    DefaultsFile,
    Duration,
    EnergySource,
    Json,
    MeterLog,
    NoSave,
    Quiet,
    ResidencySource,
    RunsDir,
    ServerUrl,
    Socket,
    check_json_target,
    check_runs_dir,
    progress,
    save_and_show,
)

Clients = Annotated[int, typer.Option("--clients", metavar="N", help="Connections that are held open and silent.")]
Repeat = Annotated[int, typer.Option("--repeat", metavar="N", min=1, max=1000, help="Windows in each phase.")]
NoCauses = Annotated[bool, typer.Option("--no-causes", help="Do not trace what wakes the CPUs.")]
ServerBinary = Annotated[
    Path | None, typer.Option("--server-binary", metavar="FILE", help="Another mariadbd or mysqld to run.")
]


def command(
    clients: Clients = 16,
    duration: Duration = 8.0,
    repeat: Repeat = 5,
    residency_source: ResidencySource = "cpuidle",
    energy_source: EnergySource = "auto",
    meter_log: MeterLog = None,
    server: ServerUrl = None,
    socket: Socket = None,
    defaults_file: DefaultsFile = None,
    server_binary: ServerBinary = None,
    no_causes: NoCauses = False,
    html: Html = None,
    markdown: Markdown = None,
    csv: Csv = None,
    json: Json = None,
    quiet: Quiet = False,
    runs_dir: RunsDir = None,
    no_save: NoSave = False,
) -> None:
    """Measure, save, print."""
    check_json_target(json)
    files = {"html": html, "markdown": markdown, "csv": csv, "json": json}
    also = exporter(files)
    check_runs_dir(runs_dir, no_save)
    from powerprof.experiment.idle import IdlePlan, measure_idle
    from powerprof.report import idle as report

    plan = IdlePlan(
        clients=clients,
        duration_s=duration,
        repeat=repeat,
        trace=not no_causes,
        residency_source=residency_source,
        energy_source=energy_source,
        meter_log=meter_log,
        server_binary=server_binary,
        server_url=server,
        socket=socket,
        defaults_file=defaults_file,
    )
    result = measure_idle(plan, lambda text: progress(text, quiet))
    save_and_show(
        result.run,
        "idle",
        report.lines,
        json=json,
        quiet=quiet or "-" in (html, markdown, csv),
        runs_dir=runs_dir,
        no_save=no_save,
        also=also,
        failure=result.failure,
        next_step="Which function, on a server that runs? sudo powerprof attribute --pid mysqld",
    )
