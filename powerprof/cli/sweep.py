"""How does a condition change with clients, or another parameter?

At each point the condition runs as fast as it goes, or at --rate, and the system's own figures are taken beside it.
Every point is saved when it is done: after an interruption, --resume RUN goes on.
"""

from __future__ import annotations

import sys
from contextlib import ExitStack
from typing import TYPE_CHECKING, Annotated

import typer

from powerprof.cli.bench import (
    ClientCpus,
    ServerBasedir,
    ServerBinary,
    ServerBuild,
    ServerCpus,
    Workloads,
    WorldSql,
    bench_options,
)
from powerprof.cli.compare import Duration, Rate, Seed
from powerprof.cli.exports import Csv, Html, Markdown, exporter
from powerprof.cli.options import (
    DefaultsFile,
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
    progress,
    show,
    terminal_width,
    write_json,
)
from powerprof.errors import Interrupted, UsageError

if TYPE_CHECKING:
    from powerprof.workloads.definition import Value

Name = Annotated[
    str | None, typer.Argument(metavar="[CONDITION]", help="Its name, or workload:condition.", show_default=False)
]
Clients = Annotated[str | None, typer.Option("--clients", metavar="LIST", help="Numbers of clients, such as 1,2,4.")]
Set = Annotated[
    str | None, typer.Option("--set", metavar="NAME=LIST", help="Another declared parameter and its values.")
]
Windows = Annotated[int, typer.Option("--repeat", metavar="N", min=1, max=1000, help="Windows at each point.")]
Resume = Annotated[str | None, typer.Option("--resume", metavar="RUN", help="Go on with a sweep that was interrupted.")]


def value_of(text: str) -> Value:
    """A word of a list as a number where it is one."""
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _values(text: str) -> list[Value]:
    found = [value_of(word.strip()) for word in text.split(",") if word.strip()]
    if not found:
        raise UsageError(f"{text!r} has no values", "such as 1,2,4")
    return found


def parameter(clients: str | None, setting: str | None) -> tuple[str, list[Value]]:
    """What is varied, and its values (none: those that the workload declares). Raises UsageError."""
    if clients is not None and setting is not None:
        raise UsageError("--clients and --set are two parameters", "sweep one at a time")
    if setting is None:
        return "clients", _values(clients) if clients is not None else []
    name, separator, rest = setting.partition("=")
    return name, _values(rest) if separator else []


def command(
    w: Name = None,
    clients: Clients = None,
    setting: Set = None,
    duration: Duration = 5.0,
    repeat: Windows = 3,
    rate: Rate = None,
    seed: Seed = 1,
    resume: Resume = None,
    workloads: Workloads = None,
    server: ServerUrl = None,
    socket: Socket = None,
    defaults_file: DefaultsFile = None,
    server_binary: ServerBinary = None,
    server_basedir: ServerBasedir = None,
    server_build: ServerBuild = None,
    server_cpus: ServerCpus = None,
    client_cpus: ClientCpus = None,
    world_sql: WorldSql = None,
    energy_source: EnergySource = "auto",
    meter_log: MeterLog = None,
    residency_source: ResidencySource = "cpuidle",
    html: Html = None,
    markdown: Markdown = None,
    csv: Csv = None,
    json: Json = None,
    quiet: Quiet = False,
    runs_dir: RunsDir = None,
    no_save: NoSave = False,
) -> None:
    """Measure point by point, save, print."""
    check_json_target(json)
    files = {"html": html, "markdown": markdown, "csv": csv, "json": json}
    also = exporter(files)
    if (w is None) == (resume is None):
        raise UsageError("sweep wants a condition, or --resume RUN", "powerprof sweep --help")
    if resume is not None and (clients is not None or setting is not None):
        raise UsageError("--resume goes on with the values that the sweep was begun with", "leave the others out")
    from powerprof.experiment import sweep as sweeps
    from powerprof.experiment.options import ExperimentOptions
    from powerprof.experiment.sweepstore import SweepStore
    from powerprof.report import sweep as report
    from powerprof.workloads.catalogue import find_one

    options = ExperimentOptions(
        pairs=repeat,
        window_s=duration,
        seed=seed,
        rate_hz=rate,
        warm_up_pairs=0,
        energy_source=energy_source,
        meter_log=meter_log,
        residency_source=residency_source,
    )
    store = SweepStore(runs_dir, keep=not no_save)
    if resume is not None:
        record = store.load(resume)
        options = sweeps.options_of(record, options)
        workload, _ = find_one(f"{record.workload}:{record.condition['name']}", workloads or [])
    else:
        workload, condition = find_one(str(w), workloads or [])
        record = sweeps.start(workload, condition, *parameter(clients, setting), options)
    record = store.save(record)
    with ExitStack() as stack:
        bench = bench_options(
            stack,
            url=server,
            socket=socket,
            defaults_file=defaults_file,
            world_sql=world_sql,
            server_binary=server_binary,
            server_basedir=server_basedir,
            server_build=server_build,
            server_cpus=server_cpus,
            client_cpus=client_cpus,
        )
        record = sweeps.go_on(record, workload, bench, options, save=store.save, say=lambda text: progress(text, quiet))
    if json is not None:
        write_json(record, json)
    also(record)
    if "-" not in files.values() and not quiet:
        show([*report.lines(record, terminal_width()), *([f"Saved as {record.id}."] if record.id else [])])
    if record.interrupted:
        sys.stdout.flush()
        raise Interrupted("interrupted", f"powerprof sweep --resume {record.id}" if record.id else None)
