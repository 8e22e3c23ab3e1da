# SPDX-License-Identifier: Apache-2.0
"""Options that commands share, and the choices of servers and workloads in experiments."""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, cast

import msgspec
import typer

from powerprof.cli.outputs import OutputFile
from powerprof.cli.parameters import (
    EXPERT_HEADING,
    Mode,
    existing_folder,
    finite_number,
    flag,
    group,
    no_effect,
    option,
    program_value,
    readable_file,
    time_span,
    whole_number,
)
from powerprof.cli.targets import OWN_SERVER, OptionalServerOptions
from powerprof.energy.request import DEFAULT_REQUEST, EnergyRequest
from powerprof.system.errors import Declined, PowerprofError, UsageError

_MAX_DURATION_S = 7 * 24 * 3600.0
# No server of today answers more; calculations need a limit.
_MAX_RATE_HZ = 10_000_000.0
_MAX_QUERIES = 1_000_000_000
_MAX_SEED = (1 << 32) - 1  # a record holds 64 bits


class CommandOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The base of the options of one command.

    Attributes:
        typed: options of the command line: field name → option.
        command_words: words after --.
    """

    MODES: ClassVar[tuple[Mode, ...]] = ()

    typed: Mapping[str, str] = msgspec.field(default_factory=dict)
    command_words: tuple[str, ...] = ()

    def refuse_without_effect(
        self, circumstance: str, names: Collection[str] | None = None, *, but: Collection[str] = ()
    ) -> None:
        """Raise UsageError if one of the options `names` (None: any), except `but`, was typed.

        It is for circumstances that only the command knows; others are declared (`Mode`, needs, excludes).
        """
        refused = [words for words in self.typed.values() if (names is None or words in names) and words not in but]
        if refused:
            raise no_effect(refused, circumstance)


def parse_percent(words: str, typed: str | None) -> float | None:
    """Return `2%` or `2` as 2.0, and None without a text. Raises UsageError."""
    try:
        return None if typed is None else float(typed.strip().removesuffix("%"))
    except ValueError:
        raise UsageError(f"{words} {typed} is not a percentage", "such as 2%") from None


# Windows and experiments.


def duration(default: float) -> Any:
    """Return the field of --duration in seconds."""
    return time_span("--duration", "Length of a window.", default=default, low=0.05, high=_MAX_DURATION_S)


def own_duration() -> Any:
    """Return the field of --duration in seconds, with a default that depends on the load."""
    text = "Length of each window (default: 6.4 s; for a command 2 s, or one execution)."
    return time_span("--duration", text, low=0.3, high=3600)


def windows_repeat(default: int, text: str, *, least: int = 2) -> Any:
    """Return the field of --repeat. Fewer than two windows have no interval."""
    return whole_number("--repeat", "N", text, default=default, low=least, high=1000, needed_by="an interval")


def _query_rate(text: str) -> float:
    value = finite_number(text)
    if not 0 < value <= _MAX_RATE_HZ:
        raise ValueError(f"must be above 0 and at most {_MAX_RATE_HZ:,.0f} queries/s")
    return value


def rate() -> Any:
    """Return the field of --rate in queries/s."""
    return option(
        "--rate", "HZ", "Queries per second (default: calibrated).", convert=_query_rate, heading=EXPERT_HEADING
    )


def seed(text: str = "Random seed of the order and the intervals.", **declared: Any) -> Any:
    """Return the field of --seed."""
    return whole_number("--seed", "N", text, default=1, low=0, high=_MAX_SEED, heading=EXPERT_HEADING, **declared)


def trace_after() -> Any:
    """Return the field of --attribute in seconds."""
    return time_span("--attribute", "Trace each server for this time afterwards.", low=0.5, high=3600)


def allow_failure() -> Any:
    """Return the field of --allow-failure."""
    return flag("--allow-failure", "Keep measuring if the command exits with a non-zero code.", needs=("--",))


class OfferedLoadOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The load of each condition."""

    HEADING: ClassVar[str] = "Load"

    design: str | None = option(
        "--design", "rate|work", "Equal query rate (default), or equal number of queries.", heading=EXPERT_HEADING
    )
    rate: float | None = rate()
    queries: int | None = whole_number(
        "--queries",
        "N",
        "Queries per window (implies --design work).",
        low=1,
        high=_MAX_QUERIES,
        heading=EXPERT_HEADING,
        excludes=("--rate",),
    )

    @property
    def chosen(self) -> Literal["rate", "work"] | None:
        """The design; None if the options leave it open. Raises UsageError."""
        if self.design not in (None, "rate", "work"):
            raise UsageError(f"--design {self.design} is not a choice", "rate or work")
        return cast(Literal["rate", "work"] | None, self.design or ("work" if self.queries is not None else None))


# Files, and the saved run.


def json_file() -> Any:
    """Return the field of --json."""
    return option("--json", "FILE", "Write the result as JSON; - for stdout, without the report.")


def labels(**declared: Any) -> Any:
    """Return the field of --label."""
    text = "Label of the run, such as a release; repeatable."
    return option("--label", "NAME", text, is_repeatable=True, **declared)


# Options of the destinations of a result, in every command that has some.
DESTINATIONS = ("-o", "--json", "--no-save", "--label")


class Saving(msgspec.Struct, frozen=True, kw_only=True):
    """The destinations of a result besides the terminal.

    Attributes:
        files: the files of --json and -o, after their check.
    """

    HEADING: ClassVar[str] = "Output"

    json: str | None = json_file()
    quiet: bool = program_value("quiet", False)
    runs_dir: Path | None = program_value("runs_dir")
    no_save: bool = flag("--no-save", "Do not save the run.")
    label: list[str] | None = labels(excludes=("--no-save",))
    files: tuple[OutputFile, ...] = ()


# Meters.


def _residency_source(text: str) -> str:
    from powerprof.measure.residency_sources import check_name

    try:
        check_name(text)
    except UsageError as error:
        raise UsageError(f"--residency-source: {error.message}", error.hint) from error
    return text


def residency_source(default: str | None = "cpuidle") -> Any:
    """Return the field of --residency-source."""
    text = "Source of idle states: cpuidle (default), powertop, turbostat or procfs."
    return option(
        "--residency-source", "NAME", text, convert=_residency_source, default=default, heading=EXPERT_HEADING
    )


def _meter(text: str) -> EnergyRequest:
    from powerprof.energy.request import parse_meter

    return parse_meter(text)


class EnergyOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The meters to read, or the parameters of the estimate."""

    HEADING: ClassVar[str] = "Energy"

    meter: EnergyRequest | None = option(
        "--meter",
        "SOURCE",
        "Meters to read (doctor lists them), a CSV log of a meter (FILE[#COLUMN]), both with a comma, none, or the "
        "estimate with the CPU that a guest hides: 'model:EPYC 7763@thread' (default: the best meter).",
        convert=_meter,
    )

    @property
    def request(self) -> EnergyRequest:
        """The request for the meters. Raises UsageError, PowerprofError and DataError for a wrong default."""
        if self.meter is not None:
            return self.meter
        from powerprof.cli.defaults import default_meter

        default = default_meter()
        if default is None:
            return DEFAULT_REQUEST
        text, place = default
        try:
            return _meter(text)
        except PowerprofError as error:
            error.message = f"{place}: {error.message}"
            raise


class MeterOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The meters of each window."""

    HEADING: ClassVar[str] = "Measurement"

    energy: EnergyOptions = group(EnergyOptions)
    residency_source: str = residency_source()


# Processes and servers.


def top(text: str = "Rows to print.", default: int | None = 20, **declared: Any) -> Any:
    """Return the field of --top."""
    return whole_number("--top", "N", text, default=default, low=1, high=100_000, **declared)


def source_lines() -> Any:
    """Return the field of --lines."""
    return flag("--lines", "Show source file and line in stacks.")


def backend() -> Any:
    """Return the field of --backend."""
    return option(
        "--backend", "NAME", "auto (BPF, or DTrace without BPF), bpf or dtrace.", default="auto", heading=EXPERT_HEADING
    )


def _server_program(text: str) -> Path:
    from powerprof.database.builds import check_program

    try:
        check_program(Path(text))
    except PowerprofError as error:
        raise PowerprofError(f"--server-binary: {error.message}", error.hint) from error
    return Path(text)


class PrivateServerOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The program of private servers."""

    HEADING: ClassVar[str] = "Private server"

    server_binary: Path | None = option(
        "--server-binary", "FILE", "Start this mariadbd or mysqld.", convert=_server_program, excludes=OWN_SERVER
    )
    server_build: str | None = option(
        "--server-build",
        "NAME",
        "Start this fetched server (servers lists them).",
        excludes=(*OWN_SERVER, "--server-binary"),
    )

    def load_build(self) -> ServerBuild | None:
        """Return the fetched server of --server-build, if any. Raises UsageError, PowerprofError."""
        if self.server_build is None:
            return None
        from powerprof.database import historical

        try:
            return historical.load_build(self.server_build)
        except UsageError as error:
            raise UsageError(f"--server-build: {error.message}", error.hint) from error


def workload_folders() -> Any:
    """Return the field of --workloads."""
    text = "Additional directory with workloads; repeatable."
    return option("--workloads", "DIR", text, convert=existing_folder, is_repeatable=True)


def check_by(by: str | None, choices: Sequence[str], *, lines: bool = False, default: str = "stack") -> None:
    """Raise UsageError if the report has no rows by `by`, or --lines has no stacks to show."""
    if lines and (by or default) != "stack":
        raise UsageError(f"--lines has no effect on rows by {by or default}", "add --by stack")
    if by is not None and by not in choices:
        raise UsageError(f"--by {by} is not a choice here", f"one of {', '.join(choices)}")


def require_terminal(hint: str) -> None:
    """Raise UsageError if no question can be asked; a command with a question calls this before it measures."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise UsageError("confirmation needs a terminal", hint)


def confirm(question: str, *, without_terminal: str, declined: str) -> None:
    """Ask on the terminal whether to continue.

    Raises:
        UsageError: there is no terminal, with the hint `without_terminal`.
        Declined: the answer is no; `declined` is the state after it.
    """
    from powerprof.cli.progress import clear_progress

    require_terminal(without_terminal)
    clear_progress()
    try:
        is_agreed = typer.confirm(question, err=True)
    except typer.Abort:  # end of input
        is_agreed = False
    if not is_agreed:
        raise Declined(f"Declined: {declined}.")


if TYPE_CHECKING:
    from powerprof.database.base import Server
    from powerprof.database.builds import ServerBuild
    from powerprof.experiment.bench_data import BenchOptions

_MAX_CPU = 1 << 16


class BenchChoice(msgspec.Struct, frozen=True, kw_only=True):
    """The workload folders, and the place of their servers."""

    HEADING: ClassVar[str] = "Workloads and placement"

    workloads: list[Path] | None = workload_folders()
    server: OptionalServerOptions = group(OptionalServerOptions)
    program: PrivateServerOptions = group(PrivateServerOptions)
    network_namespaces: bool = flag(
        "--network-namespaces",
        "One network namespace per server of a topology (as root).",
        heading=EXPERT_HEADING,
        excludes=OWN_SERVER,
    )
    server_cpus: str | None = option(
        "--server-cpus",
        "LIST",
        "CPUs of private servers: 0-1,4, or per name or role: router=0,host=1-2.",
        heading=EXPERT_HEADING,
        excludes=OWN_SERVER,
    )
    client_cpus: str | None = option(
        "--client-cpus", "LIST", "CPUs of the client, such as 2-3.", heading=EXPERT_HEADING
    )
    world_sql: Path | None = option(
        "--world-sql",
        "FILE",
        "Load the official world.sql instead of generated data.",
        convert=readable_file,
        heading=EXPERT_HEADING,
        excludes=OWN_SERVER,
    )
    trust: bool = flag(
        "--trust",
        "Allow the workload to run its own programs; remembered until its files change.",
        heading=EXPERT_HEADING,
    )

    @property
    def folders(self) -> list[Path]:
        """Other folders of workloads."""
        return self.workloads or []

    @contextmanager
    def open(self) -> Iterator[BenchOptions]:
        """Yield the options of the bench, connected to an existing server if one was named. Raises UsageError."""
        from powerprof.experiment.bench_data import BenchOptions

        own, members = cpu_sets(self.server_cpus, "--server-cpus")
        with _given(self) as server:
            yield BenchOptions(
                given=server,
                server_cpus=own,
                member_cpus=members,
                client_cpus=cpu_list(self.client_cpus, "--client-cpus"),
                world_sql=self.world_sql,
                server_binary=self.program.server_binary,
                server_build=self.program.load_build(),
                network_namespaces=self.network_namespaces,
                trust=self.trust,
            )


@contextmanager
def _given(bench: BenchChoice) -> Iterator[Server | None]:
    existing = bench.server
    if not existing.is_given:
        yield None
        return
    from powerprof.database.given import given_server

    with given_server(existing.server, socket=existing.socket, defaults_file=existing.defaults_file) as server:
        yield server


def cpu_sets(text: str | None, word: str) -> tuple[tuple[int, ...] | None, dict[str, tuple[int, ...]]]:
    """Return the CPUs of all servers (`0-1,4`), and of servers by name or role (`router=0,host-a=1-2,4`).

    Raises UsageError.
    """
    if text is None or "=" not in text:
        return cpu_list(text, word), {}
    lists: dict[str, list[str]] = {}
    for part in text.split(","):
        name, equals, rest = part.partition("=")
        name = name.strip() if equals else next(reversed(lists), "")
        if not name or (equals and name in lists):
            raise UsageError(f"{word} {text} is not a list of CPUs per server", "such as router=0,host-a=1-2,host-b=3")
        lists.setdefault(name, []).append(rest if equals else part)
    return None, {name: cpu_list(",".join(parts), f"{word} {name}=") or () for name, parts in lists.items()}


def cpu_list(text: str | None, word: str) -> tuple[int, ...] | None:
    """Return `0-1,4` as numbers. Raises UsageError for another format, and for CPUs that are not usable here."""
    if text is None:
        return None
    numbers: set[int] = set()
    try:
        for part in text.split(","):
            low, dash, high = part.strip().partition("-")
            first, last = int(low), int(high if dash else low)
            if first > last or not part.isascii():
                raise ValueError(part)
            if last > _MAX_CPU:
                raise UsageError(f"{word} {text}: CPU {last} does not exist", "such as 0-1,4")
            numbers |= set(range(first, last + 1))
    except ValueError:
        raise UsageError(f"{word} {text} is not a list of CPUs", "such as 0-1,4") from None
    usable = os.sched_getaffinity(0)
    if not numbers or not numbers <= usable:
        raise UsageError(f"{word} {text}: some are not usable here", f"usable: {','.join(map(str, sorted(usable)))}")
    return tuple(sorted(numbers))
