# SPDX-License-Identifier: Apache-2.0
"""Compare the cost of two conditions, two commands or two saved runs, with a verdict.

`powerprof workloads` lists the conditions. Name one as index, or as city:index if several workloads have that name. A
and B alternate on a private MariaDB or on a server of yours. Each difference has a 95 % interval.

powerprof compare -- COMMAND... -- COMMAND... alternates two commands of yours, under your account even with sudo.

Saved runs of `run`, `idle`, `attribute` or `compare` (RUN, or RUN:condition) are compared without measuring;
differences between their hosts, kernels and servers are listed first. Of `idle` and `attribute` the server's own
wake-ups decide. For two sweeps the report shows the values at which they diverge, and the system metric that changes
with them. For two runs of `queries` it shows the statements that became more expensive.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import msgspec

from powerprof.cli.bench_options import BenchChoice
from powerprof.cli.meter_options import MeterOptions
from powerprof.cli.options import CommandOptions, parse_percent
from powerprof.cli.output import check_saving, deliver
from powerprof.cli.outputs import DESTINATIONS, TABLES, Outputs, Saving, output_files
from powerprof.cli.parameters import EXPERT_HEADING, Mode, argument, flag, group, option, time_span, whole_number
from powerprof.cli.terminal import progress_printer
from powerprof.cli.window_options import OfferedLoadOptions, allow_failure, own_duration, seed, trace_after
from powerprof.experiment.options import (
    BASELINE_WINDOWS,
    COMMAND_WINDOW_S,
    MINIMUM_PAIRS,
    PAIRS,
    QUICK_BASELINES,
    QUICK_PAIRS,
    QUICK_WINDOW_S,
    TURN_S,
    WINDOW_S,
    ExperimentOptions,
)
from powerprof.system.errors import MissingArgumentError, SeveralCommandsError, UsageError, WorseError
from powerprof.system.next_steps import command_line

if TYPE_CHECKING:
    from pathlib import Path

    from powerprof.experiment.records import Comparison
    from powerprof.experiment.sweep_comparison import SweepComparison
    from powerprof.model.runs import RunStore
    from powerprof.report.document import View

# Options with an effect on saved runs, and on two commands.
_OF_SAVED_RUNS = ("--all", "--seed", "--fail-if-worse", "--with", *DESTINATIONS)
_OF_COMMANDS = ("--duration", "--pairs", "--quick", "--allow-failure", "--meter", "--residency-source", *_OF_SAVED_RUNS)


class WindowOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The length and number of the windows."""

    HEADING: ClassVar[str] = "Windows"

    duration: float | None = own_duration()
    pairs: int = whole_number(
        "--pairs",
        "N",
        "Number of A/B window pairs (a warm-up pair is added).",
        default=PAIRS,
        low=MINIMUM_PAIRS,
        high=1000,
        needed_by="an interval",
    )
    turn: float = time_span(
        "--turn",
        "Time after which A and B alternate within a window; 0: whole windows.",
        default=TURN_S,
        heading=EXPERT_HEADING,
    )
    precision: str | None = option("--precision", "P%", "Continue until the 95 % interval is this narrow, such as 2%.")
    quick: bool = flag("--quick", "4 pairs of windows of 1.2 s: faster, with wider intervals.")


class VerdictOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The verdict to reach."""

    HEADING: ClassVar[str] = "Verdict"

    control: bool = flag(
        "--control", "Also compare A with itself; the result must be inconclusive.", heading=EXPERT_HEADING
    )
    seed: int = seed()
    fail_if_worse: bool = flag("--fail-if-worse", "Exit with code 4 if B is worse.")


class Options(CommandOptions, frozen=True, kw_only=True):
    """The options of `compare`."""

    MODES: ClassVar[tuple[Mode, ...]] = (
        Mode(words=("--",), circumstance="on commands", allows=_OF_COMMANDS),
        Mode(words=("--quick",), refuses=("--duration", "--pairs", "--precision", "--control", "--attribute")),
    )

    a: str | None = argument("[A]", "Condition, or saved run.")
    b: str | None = argument("[B]", "Condition or saved run to compare with A.")
    windows: WindowOptions = group(WindowOptions)
    load: OfferedLoadOptions = group(OfferedLoadOptions)
    verdict: VerdictOptions = group(VerdictOptions)
    other: str | None = option(
        "--with",
        "last|LABEL",
        "Compare saved run A with an earlier run: the previous run of its kind, or the run with LABEL.",
    )
    bench: BenchChoice = group(BenchChoice)
    attribute: float | None = trace_after()
    on_cpu: bool = flag("--on-cpu", "Also sample the CPU time of the server's functions (as root).")
    everything: bool = flag("--all", "Print all metrics and details, not only the first six metrics.")
    allow_failure: bool = allow_failure()
    meters: MeterOptions = group(MeterOptions)
    outputs: Outputs = output_files(*TABLES)
    saving: Saving = group(Saving)

    def check(self) -> None:
        """Raise UsageError unless two sides are given."""
        words = self.command_words
        if self.other is not None:
            if words or self.a is None or self.b is not None:
                raise UsageError("--with needs one saved run", f"such as {command_line('compare RUN --with last')}")
        elif words:
            _split_commands(words, self.a)
        elif self.a is None or self.b is None:
            message = "compare needs two conditions, two saved runs, or -- COMMAND… -- COMMAND…"
            example = "no-index" if self.a == "index" else "index no-index" if self.a is None else ""
            raise MissingArgumentError(message, example, command_line("compare --help"))


def estimate_s(options: Options) -> float:
    """Return the approximate duration in s of a measured comparison."""
    return _plan(options).seconds(2)


def _plan(options: Options) -> ExperimentOptions:
    windows, load, verdict, meters = options.windows, options.load, options.verdict, options.meters
    is_command = bool(options.command_words)
    default_s = COMMAND_WINDOW_S if is_command else WINDOW_S
    return ExperimentOptions(
        pairs=QUICK_PAIRS if windows.quick else windows.pairs,
        window_s=QUICK_WINDOW_S if windows.quick else windows.duration or default_s,
        baseline_windows=QUICK_BASELINES if windows.quick else BASELINE_WINDOWS,
        quick=windows.quick,
        turn_s=0.0 if is_command else windows.turn,
        seed=verdict.seed,
        design=load.chosen,
        rate_hz=load.rate,
        queries=load.queries,
        precision_percent=parse_percent("--precision", windows.precision),
        control=verdict.control,
        energy=meters.energy.request,
        residency_source=meters.residency_source,
        attribute_s=options.attribute,
        on_cpu=options.on_cpu,
    )


def command(options: Options) -> None:
    """Measure or read two sides, save and print their difference."""
    a, b, words = options.a, options.b, options.command_words
    load, verdict = options.load, options.verdict
    saving = check_saving(options.saving, options.outputs, judged=verdict.fail_if_worse)
    if options.other is not None:
        from powerprof.model.runs import RunStore

        a, b = RunStore(saving.runs_dir).find_earlier(str(a), options.other), a
    if words:
        first, second = _split_commands(words, a)
    from powerprof.experiment.compare import compare
    from powerprof.experiment.saved import are_runs

    if not words and are_runs(str(a), str(b), saving.runs_dir):
        options.refuse_without_effect("on saved runs", but=_OF_SAVED_RUNS)
        if _are_queries(str(a), str(b), saving.runs_dir):
            _compare_queries(str(a), str(b), options, saving)
            return
    if load.chosen == "work":
        options.refuse_without_effect("with equal work", ("--turn",))
    plan = _plan(options)
    if words:
        from powerprof.experiment.compare import compare_commands

        comparison: Comparison | SweepComparison
        comparison = compare_commands(first, second, plan, progress_printer(saving), may_fail=options.allow_failure)
    else:
        comparison = compare(
            str(a),
            str(b),
            options.bench.open,
            plan,
            runs_dir=saving.runs_dir,
            extra=options.bench.folders,
            say=progress_printer(saving),
        )
    try:
        comparison = deliver(comparison, "compare", saving, view=_choose_view(options, comparison))
    except (BrokenPipeError, SystemExit):
        # A closed reader (head) does not change the verdict. Rich turns it into an exit.
        if verdict.fail_if_worse:
            _judge(comparison)
        raise
    if verdict.fail_if_worse:
        _judge(comparison)


def _choose_view(options: Options, record: Any) -> View | None:
    """Return the view with all rows for --all; None for the usual one."""
    from powerprof.report.kinds import document_of

    return document_of(record).whole_view if options.everything else None


def _split_commands(words: tuple[str, ...], a: str | None) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the two commands, which -- separates. Raises UsageError."""
    at = words.index("--") if "--" in words else -1
    first, second = words[:at], words[at + 1 :]
    if a is not None:
        raise UsageError(f"{a} cannot be compared with a command", "compare two conditions, or two commands")
    if at < 0 or not first or not second:
        raise SeveralCommandsError(
            "compare needs two commands, each after --", command_line("compare -- COMMAND… -- COMMAND…")
        )
    return first, second


def _are_queries(a: str, b: str, runs_dir: Path | None) -> bool:
    """Return whether both are saved runs of `queries`. Raises UsageError if only one is."""
    from powerprof.model.runs import RunStore, read_schema

    store = RunStore(runs_dir)
    are = [name for name in (a, b) if _is_saved(store, name) and read_schema(store.find(name)) == "powerprof.queries/1"]
    if len(are) == 1:
        raise UsageError(f"{are[0]} is a run of queries, the other run is not", "compare two runs of queries")
    return len(are) == 2


def _is_saved(store: RunStore, name: str) -> bool:
    """Return whether the name is a saved run, and not a condition of one (RUN:condition)."""
    try:
        store.find(name)
    except UsageError:
        return False
    return True


def _compare_queries(a: str, b: str, options: Options, saving: Saving) -> None:
    """Compare by statement, save and print. Raises WorseError if judged and a statement became more expensive."""
    from powerprof.queries.comparison import compare_queries, select_changes
    from powerprof.queries.records import Queries
    from powerprof.report.kinds import load_saved

    first, second = load_saved(a, saving.runs_dir), load_saved(b, saving.runs_dir)
    assert isinstance(first, Queries)  # noqa: S101  their schemas are those of queries
    assert isinstance(second, Queries)  # noqa: S101
    compared = compare_queries(first, second, max(first.started_at, second.started_at))
    deliver(compared, "compare", saving, view=_choose_view(options, compared))
    worse = select_changes(compared, "more expensive")
    if options.verdict.fail_if_worse and worse:
        raise WorseError(f"{len(worse)} of {len(compared.statements)} statements became more expensive")


def _judge(comparison: Comparison | SweepComparison) -> None:
    """Raise WorseError if B is worse than A."""
    from powerprof.experiment import sweep_comparison
    from powerprof.experiment.claims import is_worse
    from powerprof.report.wording import word_record

    comparison = word_record(comparison)
    if isinstance(comparison, sweep_comparison.SweepComparison):
        if sweep_comparison.is_worse(comparison):
            raise WorseError(comparison.text)
    elif is_worse(comparison.metrics, comparison.verdict.metric):
        raise WorseError(f"{comparison.b.name} is worse than {comparison.a.name}: {comparison.verdict.text}")
