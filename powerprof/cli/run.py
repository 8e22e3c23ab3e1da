"""What does one condition of a workload cost? The same measurements as `compare`, of one condition alone.

The run is saved with one value of each metric a window; `powerprof compare RUN1 RUN2` compares two of them, also
from other hosts, kernels or servers.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import Annotated

import typer

from powerprof.cli.bench import (
    Attribute,
    ClientCpus,
    NetworkNamespaces,
    ServerBasedir,
    ServerBinary,
    ServerBuild,
    ServerCpus,
    Workloads,
    WorldSql,
    bench_options,
)
from powerprof.cli.compare import Design, Duration, Queries, Rate, Seed, design_of
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
    save_and_show,
)

Name = Annotated[str, typer.Argument(metavar="CONDITION", help="Its name, workload:condition, or a workload of one.")]
Windows = Annotated[int, typer.Option("--repeat", metavar="N", min=1, max=1000, help="Windows that count.")]


def command(
    w: Name,
    duration: Duration = 6.4,
    repeat: Windows = 10,
    design: Design = None,
    rate: Rate = None,
    queries: Queries = None,
    seed: Seed = 1,
    workloads: Workloads = None,
    server: ServerUrl = None,
    socket: Socket = None,
    defaults_file: DefaultsFile = None,
    server_binary: ServerBinary = None,
    server_basedir: ServerBasedir = None,
    network_namespaces: NetworkNamespaces = False,
    server_build: ServerBuild = None,
    server_cpus: ServerCpus = None,
    client_cpus: ClientCpus = None,
    world_sql: WorldSql = None,
    attribute: Attribute = None,
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
    """Measure, save, print."""
    check_json_target(json)
    from powerprof import interrupts

    files = {"html": html, "markdown": markdown, "csv": csv, "json": json}
    also = exporter(files)
    from powerprof.experiment.options import ExperimentOptions
    from powerprof.experiment.single import run_condition
    from powerprof.report import run as report
    from powerprof.workloads.catalogue import find_one
    from powerprof.workloads.reading import resolve

    workload, condition = find_one(w, workloads or [])
    options = ExperimentOptions(
        pairs=repeat,
        window_s=duration,
        seed=seed,
        design=design_of(design),
        rate_hz=rate,
        queries=queries,
        energy_source=energy_source,
        meter_log=meter_log,
        residency_source=residency_source,
        attribute_s=attribute,
    )
    with ExitStack() as stack:
        bench = bench_options(
            stack,
            url=server,
            socket=socket,
            defaults_file=defaults_file,
            world_sql=world_sql,
            server_binary=server_binary,
            server_basedir=server_basedir,
            network_namespaces=network_namespaces,
            server_build=server_build,
            server_cpus=server_cpus,
            client_cpus=client_cpus,
        )
        run = run_condition(resolve(workload, condition), bench, options, lambda text: progress(text, quiet))
    interrupts.hold()
    save_and_show(
        run,
        "run",
        report.lines,
        json=json,
        quiet=quiet or "-" in (html, markdown, csv),
        runs_dir=runs_dir,
        no_save=no_save,
        also=also,
    )
