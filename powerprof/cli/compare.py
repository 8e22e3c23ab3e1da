"""Does one condition cost less than the other, and is it sure? Two conditions, or two saved runs.

A condition is a name that `powerprof workloads` lists (index, or city:index where several have it). Both
run in turns on a private MariaDB, or on a server of yours; the answer comes with a 95 % interval. Saved
runs (of `run`, `idle` or `compare`, RUN:condition) are compared without measuring; what differs between
their hosts, kernels and servers is listed first.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Annotated, Literal

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
from powerprof.errors import UsageError, WorseError
from powerprof.experiment.options import PAIRS, TURN_S, WINDOW_S, ExperimentOptions

if TYPE_CHECKING:
    from powerprof.experiment.records import Comparison

First = Annotated[str, typer.Argument(metavar="A", help="A condition, or a saved run.")]
Second = Annotated[str, typer.Argument(metavar="B", help="Another one.")]
Duration = Annotated[
    float, typer.Option("--duration", metavar="S", min=0.3, max=3600, help="Length of each window in seconds.")
]
Pairs = Annotated[int, typer.Option("--pairs", metavar="N", min=1, max=1000, help="Pairs of windows that count.")]
Precision = Annotated[
    str | None, typer.Option("--precision", metavar="P%", help="Go on until the interval is this narrow, such as 2%.")
]
Design = Annotated[
    str | None,
    typer.Option("--design", metavar="rate|work", help="Equal rate for equal time (default), or equal work."),
]
Turn = Annotated[
    float, typer.Option("--turn", metavar="S", help="Length of a turn of one condition; 0: whole windows.")
]
Rate = Annotated[float | None, typer.Option("--rate", metavar="HZ", help="Queries/s to offer, instead of calibrating.")]
Queries = Annotated[int | None, typer.Option("--queries", metavar="N", help="Queries of each window (design work).")]
Control = Annotated[bool, typer.Option("--control", help="Also compare A with itself: it must be inconclusive.")]
Seed = Annotated[int, typer.Option("--seed", metavar="N", min=0, help="Seed of the order and of the intervals.")]
FailIfWorse = Annotated[bool, typer.Option("--fail-if-worse", help="Exit with 4 where B is worse.")]


def percent(text: str | None) -> float | None:
    """`2%` or `2` as 2.0. Raises UsageError."""
    if text is None:
        return None
    try:
        return float(text.strip().removesuffix("%"))
    except ValueError:
        raise UsageError(f"--precision {text} is no percentage", "such as 2%") from None


def design_of(text: str | None) -> Literal["rate", "work"] | None:
    """The design by its name. Raises UsageError."""
    designs: dict[str | None, Literal["rate", "work"] | None] = {None: None, "rate": "rate", "work": "work"}
    if text in designs:
        return designs[text]
    raise UsageError(f"--design {text} is no choice", "rate or work")


def command(
    a: First,
    b: Second,
    duration: Duration = WINDOW_S,
    pairs: Pairs = PAIRS,
    turn: Turn = TURN_S,
    precision: Precision = None,
    design: Design = None,
    rate: Rate = None,
    queries: Queries = None,
    control: Control = False,
    seed: Seed = 1,
    fail_if_worse: FailIfWorse = False,
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
    """Measure or read, save, print."""
    check_json_target(json)
    from powerprof import interrupts

    files = {"html": html, "markdown": markdown, "csv": csv, "json": json}
    also = exporter(files)
    from powerprof.experiment import saved
    from powerprof.report import compare as report

    options = ExperimentOptions(
        pairs=pairs,
        window_s=duration,
        turn_s=turn,
        seed=seed,
        design=design_of(design),
        rate_hz=rate,
        queries=queries,
        precision_percent=percent(precision),
        control=control,
        energy_source=energy_source,
        meter_log=meter_log,
        residency_source=residency_source,
        attribute_s=attribute,
    )
    if saved.are_runs(a, b, runs_dir):
        comparison = saved.compare_saved(a, b, runs_dir, seed)
    else:
        from powerprof.experiment.comparison import compare_conditions

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
            comparison = compare_conditions(
                a, b, bench, options, extra=workloads or [], say=lambda text: progress(text, quiet)
            )
    interrupts.hold()
    comparison = save_and_show(
        comparison,
        "compare",
        report.lines,
        json=json,
        quiet=quiet or "-" in (html, markdown, csv),
        runs_dir=runs_dir,
        no_save=no_save,
        also=also,
    )
    if fail_if_worse:
        _judge(comparison)


def _judge(comparison: Comparison) -> None:
    from powerprof.experiment.judge.verdict import is_worse

    if is_worse(comparison.metrics, comparison.verdict.metric):
        raise WorseError(f"{comparison.b.name} is worse than {comparison.a.name}: {comparison.verdict.text}")
