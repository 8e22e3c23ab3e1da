# SPDX-License-Identifier: Apache-2.0
"""Measure one condition at several numbers of clients, or at several values of another parameter.

At each point the workload runs at full speed (or at --rate) while system metrics are recorded. Each round measures all
points in a different order, so that changes on the host affect all points equally. Every finished round is saved; --set
server=NAME,NAME compares server releases (powerprof servers). With --attribute S, powerprof also counts the wake-ups of
each server thread after each window.

--until LIMIT finds the highest query rate within a limit on latency or CPU use. Each round halves the range of rates,
so the result has an interval. With a second condition, both searches alternate and the results are compared.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, ClassVar

import msgspec
from msgspec.structs import replace

from powerprof.cli.bench_options import BenchChoice
from powerprof.cli.meter_options import MeterOptions
from powerprof.cli.options import CommandOptions
from powerprof.cli.output import check_saving, deliver
from powerprof.cli.outputs import TABLES, Outputs, Saving, output_files
from powerprof.cli.parameters import EXPERT_HEADING, Mode, argument, finite_number, flag, group, option, time_span
from powerprof.cli.terminal import progress_printer
from powerprof.cli.window_options import rate, seed, trace_after, windows_repeat
from powerprof.experiment.options import MINIMUM_PAIRS, QUICK_WINDOW_S
from powerprof.model.text import parse_time
from powerprof.system.errors import MissingArgumentError, UsageError
from powerprof.system.next_steps import command_line

if TYPE_CHECKING:
    from powerprof.experiment.options import ExperimentOptions
    from powerprof.experiment.sweep_until import Limit
    from powerprof.workloads.definition import Value


class VariedOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The varied parameter."""

    HEADING: ClassVar[str] = "Parameter"

    clients: str | None = option("--clients", "LIST", "Numbers of clients, such as 1,2,4.")
    setting: str | None = option("--set", "NAME=LIST", "Another parameter and its values, or server=NAME,NAME.")

    @property
    def parameter(self) -> tuple[str, list[Value]]:
        """The name and the values; without values, the workload declares them. Raises UsageError."""
        if self.clients is not None and self.setting is not None:
            raise UsageError("--clients and --set exclude each other", "sweep one at a time")
        if self.setting is None:
            return "clients", _values(self.clients, "--clients ") if self.clients is not None else []
        name, separator, rest = self.setting.partition("=")
        if not name.strip():
            raise UsageError(f"--set {self.setting} has no name before =", "such as --set rate=100,200,400")
        return name, _values(rest, f"--set {name}=") if separator else []


class WindowOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The length and number of the windows."""

    HEADING: ClassVar[str] = "Windows"

    duration: float | None = time_span(
        "--duration", "Length of each window (default: 5 s; with --until 2 s).", low=0.3, high=3600
    )
    repeat: int = windows_repeat(5, "Number of rounds; each measures one window per point.", least=MINIMUM_PAIRS)
    quick: bool = flag("--quick", "3 rounds of windows of 1.2 s: faster, with wider intervals.")

    @property
    def rounds(self) -> int:
        """The number of rounds."""
        return MINIMUM_PAIRS if self.quick else self.repeat

    def seconds(self, default: float) -> float:
        """Return the length of a window in s."""
        return QUICK_WINDOW_S if self.quick else self.duration or default


class SearchOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The search for the highest rate."""

    HEADING: ClassVar[str] = "Highest rate within a limit"

    until: str | None = option(
        "--until",
        "LIMIT",
        "Find the highest rate within p50=TIME, p95=TIME, p99=TIME (such as 5ms) or cpu=PERCENT of all CPUs.",
    )


# Windows per round; each halves the range of rates.
_STEPS = 6
_LATENCY = re.compile(r"p(50|95|99)=(.*)")
_CPU = re.compile(r"cpu=([0-9]+(?:\.[0-9]+)?)%?", re.ASCII)


def parse_limit(text: str) -> Limit:
    """Return the limit of `p95=5ms` or `cpu=80%`. Raise UsageError."""
    from powerprof.experiment.sweep_until import Limit

    if match := _LATENCY.fullmatch(text):
        try:
            at_most, name = 1e3 * parse_time(match[2]), f"latency_p{match[1]}_ms"
        except ValueError as error:
            raise UsageError(f"--until {text}: {error}", "such as --until p95=5ms") from None
        if at_most > 0:
            return Limit(metric=name, at_most=at_most, unit="ms")  # type: ignore[arg-type]
    if match := _CPU.fullmatch(text):
        if 0 < float(match[1]) < 100:
            return Limit(metric="c0_percent", at_most=float(match[1]), unit="%")
        raise UsageError(f"--until {text}: must be between 0 and 100 %", "such as --until cpu=80%")
    raise UsageError(f"--until {text}: not a limit", "such as --until p95=5ms, or --until cpu=80%")


def _values(text: str, source: str) -> list[Value]:
    """Return the values of a list. `source` is the text before it on the command line. Raises UsageError."""
    words = [word.strip() for word in text.split(",")]
    if not all(words):
        raise UsageError(f"{source}{text} has an empty value", "such as 1,2,4")
    values = [_number(word) for word in words]
    twice = next((value for value in values if values.count(value) > 1), None)
    if twice is not None:
        raise UsageError(f"{source}{text} names {twice} twice", "name each value once")
    return values


def _number(text: str) -> Value:
    """Return the text as a number if it is one."""
    for kind in (int, float) if text.isascii() and "_" not in text else ():
        try:
            return kind(text)
        except ValueError:
            continue
    return text


# Above it queues grow for longer than a window.
_MOST_LOAD_PERCENT = 85


def _load_share(text: str) -> float:
    value = finite_number(text.removesuffix("%"))
    if not 0 <= value <= _MOST_LOAD_PERCENT:
        raise ValueError(f"must be between 0 and {_MOST_LOAD_PERCENT} %")
    return value


class Options(CommandOptions, frozen=True, kw_only=True):
    """The options of `sweep`."""

    MODES: ClassVar[tuple[Mode, ...]] = (
        Mode(words=("--quick",), refuses=("--duration", "--repeat")),
        # They are of points and meters.
        Mode(
            words=("--until",),
            refuses=(
                *("--clients", "--set", "--rate", "--load", "--attribute", "--on-cpu", "--resume", "--meter"),
                "--residency-source",
            ),
        ),
        Mode(
            words=("--resume",),
            circumstance="with --resume, which keeps the original values",
            refuses=(
                *("--clients", "--set", "--duration", "--repeat", "--quick", "--rate", "--load", "--seed"),
                *("--attribute", "--on-cpu", "--meter", "--residency-source"),
            ),
        ),
    )

    name: str | None = argument("[CONDITION]", "Condition to measure: NAME or WORKLOAD:NAME.")
    other: str | None = argument("[OTHER]", "With --until: condition to compare with.")
    varied: VariedOptions = group(VariedOptions)
    windows: WindowOptions = group(WindowOptions)
    search: SearchOptions = group(SearchOptions)
    rate: float | None = rate()
    load: float | None = option(
        "--load",
        "PERCENT",
        "Share of the first point's capacity; 0 means idle clients.",
        convert=_load_share,
        heading=EXPERT_HEADING,
    )
    seed: int = seed()
    attribute: float | None = trace_after()
    on_cpu: bool = flag("--on-cpu", "Also sample the CPU time of the server's functions at each point (as root).")
    resume: str | None = option("--resume", "RUN", "Continue an interrupted sweep.")
    bench: BenchChoice = group(BenchChoice)
    meters: MeterOptions = group(MeterOptions)
    outputs: Outputs = output_files(*TABLES)
    saving: Saving = group(Saving)

    def check(self) -> None:
        """Raise UsageError unless a condition or a sweep to resume is given, and nothing without an effect."""
        name, until, parameter = self.name, self.search.until, self.varied.parameter[0]
        if name is None and (until is not None or self.resume is None):
            or_resume = "" if until is not None else ", or --resume RUN"
            raise MissingArgumentError(
                f"sweep needs a condition{or_resume}", "city:index", command_line("sweep --help")
            )
        if self.other is not None and until is None:
            raise UsageError(f"{self.other} has no effect without --until", "such as --until p95=5ms")
        if name is not None and self.resume is not None:
            raise UsageError(
                f"{name} has no effect with --resume, which keeps the original condition", f"leave {name} out"
            )
        if self.load is not None and (self.rate is not None or parameter in ("rate", "server")):
            raise UsageError("--load has no effect with --rate, --set rate=… and --set server=…", "leave --load out")
        if parameter == "rate" and self.rate is not None:
            raise UsageError("--rate and --set rate=… set the same parameter", "leave one of the two out")
        if self.attribute is not None and parameter != "server":
            raise UsageError(
                "--attribute has no effect without a sweep over servers", "--set server=mariadb-10.11,mariadb-11.8"
            )


def estimate_s(options: Options) -> float:
    """Return the approximate duration in s, without --until."""
    from powerprof.experiment.sweep import estimate_seconds
    from powerprof.experiment.sweep_record import SERVER

    name, values = options.varied.parameter
    return estimate_seconds(len(values), _plan(options), baseline=name == SERVER)


def _plan(options: Options) -> ExperimentOptions:
    from powerprof.experiment.options import ExperimentOptions

    return ExperimentOptions(
        pairs=options.windows.rounds,
        window_s=options.windows.seconds(5.0),
        seed=options.seed,
        rate_hz=options.rate,
        load_percent=options.load,
        attribute_s=options.attribute,
        on_cpu=options.on_cpu,
        warm_up_pairs=0,
        energy=options.meters.energy.request,
        residency_source=options.meters.residency_source,
    )


def command(options: Options) -> None:
    """Measure round by round, save and print."""
    name, resume, varied = options.name, options.resume, options.varied
    saving = check_saving(options.saving, options.outputs)
    if options.search.until is not None:
        _search(str(name), parse_limit(options.search.until), options, saving)
        return
    from powerprof.experiment import sweep

    store = sweep.SweepStore(saving.runs_dir, keep=not saving.no_save)
    asked = resume or sweep.SweepRequest(str(name), *varied.parameter)
    record = sweep.measure_sweep(
        asked, options.bench.open, _plan(options), store, extra=options.bench.folders, say=progress_printer(saving)
    )
    # It is in the store since its first point.
    if record.id is not None:
        from powerprof.model.runs import RunStore
        from powerprof.report.history import about

        RunStore(saving.runs_dir).describe(record.id, about(record, saving.label or ()))
    resumed_by = command_line("sweep --resume {}", record.id) if record.id else None
    deliver(record, "sweep", replace(saving, no_save=True, label=None), resumed_by=resumed_by)


def _search(name: str, limit: Limit, options: Options, saving: Saving) -> None:
    """Search the highest rate of one condition or two, save and print."""
    from powerprof.experiment.options import ExperimentOptions
    from powerprof.experiment.sweep_until import search_highest_rate
    from powerprof.workloads.catalogue import find_one
    from powerprof.workloads.reading import resolve

    other, windows, bench = options.other, options.windows, options.bench
    cases = [resolve(*find_one(each, bench.folders)) for each in (name, other) if each is not None]
    if len(cases) == 2 and cases[0].qualified == cases[1].qualified:
        raise UsageError(f"{name} and {other} are the same condition", "name another condition, or only one")
    window_s = windows.seconds(2.0)
    plan = ExperimentOptions(pairs=windows.rounds, window_s=window_s, seed=options.seed, warm_up_pairs=0, turn_s=0.0)
    with bench.open() as server_options:
        rates = search_highest_rate(cases, limit, _STEPS, server_options, plan, progress_printer(saving))
    deliver(rates, "sweep", saving)
