# SPDX-License-Identifier: Apache-2.0
"""The options that several commands share, each declared once, and the groups that commands take whole."""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import typer

from powerprof.energy.domains import EnergyRequest, Vcpu
from powerprof.model.text import join_words
from powerprof.system.errors import PowerprofError, UsageError

P = TypeVar("P", bound=Path | list[Path] | None)

MAX_DURATION_S = 7 * 24 * 3600.0
# More than any server of today answers; arithmetic ends somewhere.
MAX_RATE_HZ = 10_000_000.0
MAX_QUERIES = 1_000_000_000
MAX_SEED = (1 << 32) - 1  # a record holds 64 bits


def _duration(value: float | None) -> float | None:
    if value is not None and not 0.05 <= value <= MAX_DURATION_S:
        raise typer.BadParameter(f"{value:g}: must be between 0.05 s and 7 days")
    return value


def _rate(value: float | None) -> float | None:
    if value is not None and not 0 < value <= MAX_RATE_HZ:
        raise typer.BadParameter(f"{value:g}: must be above 0 and at most {MAX_RATE_HZ:,.0f} queries/s")
    return value


def _residency(value: str | None) -> str | None:
    if value not in (None, "cpuidle"):  # what stands there by default need not load anything
        from powerprof.measure.residency import check_name

        try:
            check_name(str(value))
        except UsageError as error:
            raise UsageError(f"--residency-source: {error.message}", error.hint) from error
    return value


def _energy(value: str) -> str:
    if value != "auto":
        from powerprof.energy.meters import parse_energy_source

        parse_energy_source(value)
    return value


def _cpu_model(value: str | None) -> str | None:
    if value is not None:
        from powerprof.energy.families import find_kind

        find_kind(value)
    return value


def to_read(value: P) -> P:
    """A callback of options that name a file, or several: what cannot be read is refused before anything begins."""
    from powerprof.system.files import check_outside

    for path in value if isinstance(value, list) else [value]:
        if path is not None:
            check_outside(path)
    return value


def _program(value: Path | None) -> Path | None:
    if value is not None:
        from powerprof.database.products.builds import check_program

        try:
            check_program(value)
        except PowerprofError as error:
            raise PowerprofError(f"--server-binary: {error.message}", error.hint) from error
    return value


def to_enter(value: P) -> P:
    """A callback of options that name a folder, or several."""
    for path in value if isinstance(value, list) else [value]:
        if path is not None and not os.path.isdir(path):  # noqa: PTH112 - Path's raises where a name is too long
            reason = "not a directory" if os.path.lexists(path) else "no such directory"
            raise typer.BadParameter(f"{path}: {reason}")
    return value


def _file(name: str, text: str) -> Any:
    return typer.Option(f"--{name}", metavar="FILE", help=text)


def percent_of(option: str, typed: str | None) -> float | None:
    """`2%` or `2` as 2.0; None where nothing was typed. Raises UsageError."""
    try:
        return None if typed is None else float(typed.strip().removesuffix("%"))
    except ValueError:
        raise UsageError(f"{option} {typed} is not a percentage", "such as 2%") from None


Duration = Annotated[
    float, typer.Option("--duration", metavar="S", callback=_duration, help="Length of a window in seconds.")
]
BlockDuration = Annotated[
    float, typer.Option("--duration", metavar="S", min=0.3, max=3600, help="Length of each window in seconds.")
]
OwnDuration = Annotated[
    float | None,
    typer.Option(
        "--duration",
        metavar="S",
        min=0.3,
        max=3600,
        help="Length of each window in seconds (default: 6.4; of a command 2, or one execution).",
        show_default=False,
    ),
]
Json = Annotated[str | None, _file("json", "Write the result as JSON; - is stdout and nothing else goes there.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="No report and no progress.")]
RunsDir = Annotated[
    Path | None, typer.Option("--runs-dir", metavar="DIR", help="Where runs are saved (default: the state directory).")
]
_RESIDENCY = typer.Option(
    "--residency-source", metavar="NAME", callback=_residency, help="cpuidle (default), powertop, turbostat or procfs."
)
ResidencySource = Annotated[str, _RESIDENCY]
# Without a default: a recording says itself what it is.
ResidencySourceOrNone = Annotated[str | None, _RESIDENCY]
Html = Annotated[str | None, _file("html", "One self-contained page: opens offline, prints; - is stdout.")]
Rate = Annotated[
    float | None,
    typer.Option("--rate", metavar="HZ", callback=_rate, help="Queries/s to offer, instead of calibrating."),
]
Seed = Annotated[
    int, typer.Option("--seed", metavar="N", min=0, max=MAX_SEED, help="Seed of the order and of the intervals.")
]
Labels = Annotated[
    list[str] | None,
    typer.Option("--label", metavar="NAME", help="Label the run, such as a release; repeatable (powerprof runs)."),
]
Workloads = Annotated[
    list[Path] | None,
    typer.Option("--workloads", metavar="DIR", callback=to_enter, help="Also look for workloads here; repeatable."),
]
Attribute = Annotated[
    float | None,
    typer.Option("--attribute", metavar="S", min=0.5, max=3600, help="Afterwards trace each server for S seconds."),
]
ServerBinary = Annotated[
    Path | None,
    typer.Option("--server-binary", metavar="FILE", callback=_program, help="Another mariadbd or mysqld to run."),
]


AllowFailure = Annotated[
    bool, typer.Option("--allow-failure", help="Measure a command of yours also where it fails (an exit code but 0).")
]


@dataclass(frozen=True, kw_only=True)
class Saving:
    """Where a result goes besides the terminal."""

    json: Json = None
    quiet: Quiet = False
    runs_dir: RunsDir = None
    no_save: Annotated[bool, typer.Option("--no-save", help="Do not save the run.")] = False
    label: Labels = None


Csv = Annotated[str | None, _file("csv", "The main table, one row a line, in UTF-8.")]
CsvBom = Annotated[str | None, _file("csv-bom", "As --csv, with the mark by which Excel knows UTF-8.")]


@dataclass(frozen=True, kw_only=True)
class Tables:
    """A record as files for people."""

    html: Html = None
    markdown: Annotated[str | None, _file("markdown", "A summary for a pull request.")] = None
    csv: Csv = None
    csv_bom: CsvBom = None


@dataclass(frozen=True, kw_only=True)
class ProfileOptions:
    """Stacks as files for other viewers."""

    flame: Annotated[str | None, _file("flame", "A flame graph as a separate page.")] = None
    folded: Annotated[str | None, _file("folded", "Folded stacks, for flamegraph.pl and others.")] = None
    pprof: Annotated[str | None, _file("pprof", "A profile for go tool pprof.")] = None
    otlp: Annotated[
        str | None, typer.Option("--otlp", metavar="URL|FILE", help="OTLP, to a collector (http, https) or a file.")
    ] = None
    perfetto: Annotated[str | None, _file("perfetto", "A timeline per CPU for ui.perfetto.dev.")] = None


@dataclass(frozen=True, kw_only=True)
class EnergyOptions:
    """Which meters are read, and what the estimate cannot see where none is."""

    energy_source: Annotated[
        str,
        typer.Option(
            "--energy-source",
            metavar="NAME[,NAME]",
            callback=_energy,
            help="auto, or the meters to read (powerprof doctor).",
        ),
    ] = "auto"
    meter_log: Annotated[
        Path | None,
        typer.Option(
            "--meter-log", metavar="FILE", callback=to_read, help="CSV log that an external meter is writing."
        ),
    ] = None
    cpu_model: Annotated[
        str | None,
        typer.Option(
            "--cpu-model",
            metavar="NAME[:CPUS]",
            callback=_cpu_model,
            help="For the estimate: the CPU that a guest hides ('EPYC 7763'), and its server's logical CPUs.",
        ),
    ] = None
    vcpu: Annotated[
        Vcpu | None,
        typer.Option("--vcpu", help="For the estimate: what one CPU of this guest is, a hardware thread or a core."),
    ] = None

    @property
    def request(self) -> EnergyRequest:
        """The same for what measures."""
        return EnergyRequest(
            source=self.energy_source, meter_log=self.meter_log, cpu_model=self.cpu_model, vcpu=self.vcpu
        )


# The parameters of EnergyOptions, for commands that refuse them where they have no effect.
ENERGY = ("energy_source", "meter_log", "cpu_model", "vcpu")


@dataclass(frozen=True, kw_only=True)
class MeterOptions:
    """What each window is measured with."""

    energy: EnergyOptions
    residency_source: ResidencySource = "cpuidle"


Interval = Annotated[
    float, typer.Option("--interval", metavar="S", min=0.5, max=3600, help="Length of an interval in seconds.")
]


# What of `Watched` is for the servers that are asked: the parameters' names.
ASKING = ("ask_every", "defaults_file")


@dataclass(frozen=True, kw_only=True)
class Watched:
    """What is measured, and how often."""

    pid: Annotated[
        list[str] | None, typer.Option("--pid", metavar="ID|NAME", help="These processes by function (default: all).")
    ] = None
    interval: Interval = 5.0
    no_ask: Annotated[bool, typer.Option("--no-ask", help="Do not ask database servers for their state.")] = False
    ask_every: Annotated[
        float, typer.Option("--ask-every", metavar="S", min=0.5, max=86_400, help="How often servers are asked.")
    ] = 60.0
    defaults_file: Annotated[
        list[Path] | None,
        typer.Option(
            "--defaults-file", metavar="FILE", callback=to_read, help="Option file of a server to ask; repeatable."
        ),
    ] = None


@dataclass(frozen=True, kw_only=True)
class Given:
    """A server of yours instead of a private one."""

    server: Annotated[
        str | None,
        typer.Option(
            "--server",
            metavar="URL",
            help="Your server: mysql://user@host:port/ (password: --defaults-file, MYSQL_PWD).",
        ),
    ] = None
    socket: Annotated[Path | None, typer.Option("--socket", metavar="PATH", help="Your server's unix socket.")] = None
    defaults_file: Annotated[
        Path | None,
        typer.Option(
            "--defaults-file", metavar="FILE", callback=to_read, help="Option file with user, password, socket."
        ),
    ] = None


@dataclass(frozen=True, kw_only=True)
class OfferedLoadOptions:
    """How much each condition has to do."""

    design: Annotated[
        str | None,
        typer.Option("--design", metavar="rate|work", help="Equal rate for equal time (default), or equal work."),
    ] = None
    rate: Rate = None
    queries: Annotated[
        int | None,
        typer.Option("--queries", metavar="N", min=1, max=MAX_QUERIES, help="Queries of each window: equal work."),
    ] = None

    @property
    def chosen(self) -> Literal["rate", "work"] | None:
        """The design by its name. Raises UsageError."""
        if self.rate is not None and self.queries is not None:
            raise UsageError("--rate and --queries are two designs: equal rate, equal work", "leave one of the two out")
        designs: dict[str | None, Literal["rate", "work"] | None] = {None: None, "rate": "rate", "work": "work"}
        if self.design is None and self.queries is not None:
            return "work"
        if self.design in designs:
            return designs[self.design]
        raise UsageError(f"--design {self.design} is not a choice", "rate or work")


# Where results go, in every command that writes some: the parameters' names.
SAVED = ("html", "markdown", "csv", "csv_bom", "json", "quiet", "runs_dir", "no_save", "label")


def files_of(*groups: Tables | ProfileOptions, **single: str | None) -> dict[str, str | None]:
    """The files that groups, and options by themselves, ask for: kind → where it goes."""
    return {**single, **{kind.replace("_", "-"): target for group in groups for kind, target in asdict(group).items()}}


# What was typed, as against what holds by default: an option that changes nothing here is refused.


def typed(context: typer.Context) -> dict[str, str]:
    """The options that stand on the command line: the parameter's name → the option as it is documented."""
    given = {}
    for parameter in context.command.params:
        source = context.get_parameter_source(parameter.name or "")
        if parameter.param_type_name == "option" and source is not None and source.name == "COMMANDLINE":
            given[parameter.name or ""] = parameter.opts[0]
    return given


def typed_command(context: typer.Context) -> tuple[str, ...]:
    """The words after --, as the table of commands put them aside; empty where there are none."""
    given = context.obj
    return given if isinstance(given, tuple) else ()


def refuse_without_effect(
    context: typer.Context, where: str, names: Collection[str] | None = None, *, but: Collection[str] = ()
) -> None:
    """Refuse those of the options `names` (None: all) that were typed, `but` some. Raises UsageError.

    `where` says in what they have no effect: somebody who gives an option expects that it changes something.
    """
    options = [
        option for name, option in typed(context).items() if (names is None or name in names) and name not in but
    ]
    if options:
        verb, those = ("has", "it") if len(options) == 1 else ("have", "them")
        raise UsageError(f"{join_words(options)} {verb} no effect {where}", f"leave {those} out")


def refuse_too_few(option: str, number: int, least: int) -> None:
    """Refuse so few windows that no interval can be had from them. Raises UsageError."""
    if number < least:
        raise UsageError(f"{option} {number}: no interval can be had from fewer than {least}", f"{option} {least}")


# What the verbs about a target share: which processes, how many rows, which backend.

Top = Annotated[int, typer.Option("--top", metavar="N", min=1, max=100_000, help="Rows to print.")]
Lines = Annotated[bool, typer.Option("--lines", help="Show stacks with file and line of the source.")]
Backend = Annotated[str, typer.Option("--backend", metavar="NAME", help="auto (BPF, else DTrace), bpf or dtrace.")]


@dataclass(frozen=True, kw_only=True)
class TargetOptions:
    """Which processes."""

    pid: Annotated[
        list[str] | None, typer.Option("--pid", metavar="ID|NAME", help="Process ids or names, with commas between.")
    ] = None
    cgroup: Annotated[
        str | None, typer.Option("--cgroup", metavar="PATH|UNIT", help="All processes of a cgroup or unit.")
    ] = None
    system: Annotated[bool, typer.Option("--system", help="Every process of this host.")] = False


def check_by(by: str | None, choices: Sequence[str], *, sources: bool = False, default: str = "stack") -> None:
    """Refuse a `--by` that the report does not have, and --lines where it has no stacks. Raises UsageError."""
    if sources and (by or default) != "stack":
        raise UsageError(f"--lines has no effect on rows by {by or default}", "add --by stack")
    if by is not None and by not in choices:
        raise UsageError(f"--by {by} is not a choice here", f"one of {', '.join(choices)}")
