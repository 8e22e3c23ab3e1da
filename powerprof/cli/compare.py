# SPDX-License-Identifier: Apache-2.0
"""Does one condition cost less than the other, and significantly so? Two conditions, two commands or two saved runs.

A condition is a name that `powerprof workloads` lists (index, or city:index where several have it). Both
run in turns on a private MariaDB, or on a server of yours; the answer comes with a 95 % interval. Saved
runs (of `run`, `idle` or `compare`, RUN:condition) are compared without measuring; what differs between
their hosts, kernels and servers is listed first. So are two sweeps: at which values they diverge, by how
much, and which figure of the system changes with them; and two runs of `queries`: which statements
became more expensive. powerprof compare -- COMMAND… -- COMMAND… runs two
commands of yours in turns, as you (under sudo too).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from powerprof.cli.bench import BenchChoice
from powerprof.cli.options import (
    ENERGY,
    SAVED,
    AllowFailure,
    Attribute,
    MeterOptions,
    OfferedLoadOptions,
    OwnDuration,
    Saving,
    Seed,
    Tables,
    files_of,
    percent_of,
    refuse_too_few,
    refuse_without_effect,
    typed_command,
)
from powerprof.cli.output import check, deliver, say_to
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
from powerprof.system.errors import UsageError, WorseError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from powerprof.experiment.records import Comparison
    from powerprof.experiment.sweep_comparison import SweepComparison
    from powerprof.model.runs import RunStore

    Targets = Mapping[str, str | None]

First = Annotated[str | None, typer.Argument(metavar="[A]", help="A condition, or a saved run.", show_default=False)]
Second = Annotated[str | None, typer.Argument(metavar="[B]", help="Another one.", show_default=False)]

With = Annotated[
    str | None,
    typer.Option("--with", metavar="last|LABEL", help="Compare saved run A with the last one of its kind before it."),
]


# What a comparison of saved runs takes besides its files.
_OF_SAVED_RUNS = ("seed", "fail_if_worse", "other", *SAVED)
# And one of two commands.
_OF_COMMANDS = (*("duration", "pairs", "quick", "allow_failure", *ENERGY, "residency_source"), *_OF_SAVED_RUNS)


@dataclass(frozen=True, kw_only=True)
class CompareWindows:
    """How long and how often."""

    duration: OwnDuration = None
    pairs: Annotated[
        int, typer.Option("--pairs", metavar="N", min=1, max=1000, help="Pairs of windows that count.")
    ] = PAIRS
    turn: Annotated[
        float, typer.Option("--turn", metavar="S", help="Length of a turn of one condition; 0: whole windows.")
    ] = TURN_S
    precision: Annotated[
        str | None,
        typer.Option("--precision", metavar="P%", help="Continue until the interval is this narrow, such as 2%."),
    ] = None

    quick: Annotated[
        bool, typer.Option("--quick", help="Within 40 s: 4 pairs of windows of 1.2 s, and wider intervals.")
    ] = False

    @property
    def percent(self) -> float | None:
        """The precision: `2%` or `2` as 2.0. Raises UsageError."""
        return percent_of("--precision", self.precision)


@dataclass(frozen=True, kw_only=True)
class Judging:
    """What is asked of the answer."""

    control: Annotated[bool, typer.Option("--control", help="Also compare A with itself: it must be inconclusive.")] = (
        False
    )
    seed: Seed = 1
    fail_if_worse: Annotated[bool, typer.Option("--fail-if-worse", help="Exit with 4 where B is worse.")] = False


def command(
    a: First = None,
    b: Second = None,
    *,
    context: typer.Context,
    windows: CompareWindows,
    load: OfferedLoadOptions,
    judging: Judging,
    other: With = None,
    bench: BenchChoice,
    attribute: Attribute = None,
    on_cpu: Annotated[
        bool, typer.Option("--on-cpu", help="Also sample which functions of the server grew or shrank (as root).")
    ] = False,
    allow_failure: AllowFailure = False,
    meters: MeterOptions,
    tables: Tables,
    saving: Saving,
) -> None:
    """Measure or read, save, print."""
    files = files_of(tables)
    saving = check(saving, files, reads_runs=True, judged=judging.fail_if_worse)
    typed = typed_command(context)
    if other is not None:
        if typed or a is None or b is not None:
            raise UsageError("--with compares one saved run with another", "powerprof compare RUN --with last")
        from powerprof.model.runs import RunStore
        from powerprof.report.history import find_earlier_run

        # What was before is A, and what came of it B.
        runs = RunStore(saving.runs_dir).list()
        this = next((run for run in runs if run.id == a), None)
        if this is None:
            raise UsageError(f"no run {a!r} is saved", "powerprof runs lists them")
        a, b = find_earlier_run(runs, this, other).id, a
    if typed:
        first, second = _two(typed, a)
        refuse_without_effect(context, "on commands", but=_OF_COMMANDS)
    elif a is None or b is None:
        raise UsageError(
            "compare needs two conditions, two saved runs, or -- COMMAND… -- COMMAND…", "powerprof compare --help"
        )
    elif allow_failure:
        raise UsageError("--allow-failure has no effect on conditions and runs", "leave it out")
    from powerprof.experiment.compare import compare
    from powerprof.experiment.saved import are_runs

    if not typed and are_runs(str(a), str(b), saving.runs_dir):
        refuse_without_effect(context, "on saved runs, which are compared as they are", but=_OF_SAVED_RUNS)
        if _are_queries(str(a), str(b), saving.runs_dir):
            _compare_queries(str(a), str(b), saving, files, judged=judging.fail_if_worse)
            return
    elif windows.quick:
        own = ("duration", "pairs", "precision", "control", "attribute")
        refuse_without_effect(context, "with --quick, which sets pairs and windows", own)
    refuse_too_few("--pairs", windows.pairs, MINIMUM_PAIRS)
    if load.chosen == "work":
        refuse_without_effect(context, "with equal work, whose windows are whole", ("turn",))
    options = ExperimentOptions(
        pairs=QUICK_PAIRS if windows.quick else windows.pairs,
        window_s=QUICK_WINDOW_S if windows.quick else windows.duration or (COMMAND_WINDOW_S if typed else WINDOW_S),
        baseline_windows=QUICK_BASELINES if windows.quick else BASELINE_WINDOWS,
        quick=windows.quick,
        turn_s=0.0 if typed else windows.turn,
        seed=judging.seed,
        design=load.chosen,
        rate_hz=load.rate,
        queries=load.queries,
        precision_percent=windows.percent,
        control=judging.control,
        energy=meters.energy.request,
        residency_source=meters.residency_source,
        attribute_s=attribute,
        on_cpu=on_cpu,
    )
    if typed:
        from powerprof.experiment.compare import compare_commands

        comparison: Comparison | SweepComparison
        comparison = compare_commands(first, second, options, say_to(saving), may_fail=allow_failure)
    else:
        comparison = compare(
            str(a), str(b), bench.open, options, runs_dir=saving.runs_dir, extra=bench.folders, say=say_to(saving)
        )
    try:
        comparison = deliver(comparison, "compare", saving, files)
    except (BrokenPipeError, SystemExit):
        # A reader that has enough (head), of which Rich makes an exit, does not change the answer.
        if judging.fail_if_worse:
            _judge(comparison)
        raise
    if judging.fail_if_worse:
        _judge(comparison)


def _two(typed: tuple[str, ...], a: str | None) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The two commands. Raises UsageError."""
    at = typed.index("--") if "--" in typed else -1
    first, second = typed[:at], typed[at + 1 :]
    if a is not None:
        raise UsageError(f"{a} and commands after -- were given", "compare two of a kind")
    if at < 0 or not first or not second:
        raise UsageError("compare needs two commands, each after its own --", "compare -- COMMAND… -- COMMAND…")
    return first, second


def _are_queries(a: str, b: str, runs_dir: Path | None) -> bool:
    """Whether both are saved runs of `queries`. Raises UsageError where one is."""
    from powerprof.model.runs import RunStore, read_schema

    store = RunStore(runs_dir)
    are = [name for name in (a, b) if _is_saved(store, name) and read_schema(store.find(name)) == "powerprof.queries/1"]
    if len(are) == 1:
        raise UsageError(f"{are[0]} is a run of queries and the other is not", "compare two runs of queries")
    return len(are) == 2


def _is_saved(store: RunStore, name: str) -> bool:
    """Not a condition of one (RUN:condition)."""
    try:
        store.find(name)
    except UsageError:
        return False
    return True


def _compare_queries(a: str, b: str, saving: Saving, files: Targets, *, judged: bool) -> None:
    """By statement. Raises WorseError where that is asked for and one became more expensive."""
    from powerprof.queries.comparison import compare_queries, select_changes
    from powerprof.queries.records import Queries
    from powerprof.report.kinds import check_files, load_saved

    asked = [name for name, target in files.items() if target is not None]
    check_files("powerprof.queries-comparison/1", asked)
    first, second = load_saved(a, saving.runs_dir), load_saved(b, saving.runs_dir)
    assert isinstance(first, Queries)  # noqa: S101  their schemas are those of queries
    assert isinstance(second, Queries)  # noqa: S101
    compared = compare_queries(first, second, max(first.started_at, second.started_at))
    deliver(compared, "compare", saving, files)
    worse = select_changes(compared, "more expensive")
    if judged and worse:
        raise WorseError(f"{len(worse)} of {len(compared.statements)} statements became more expensive")


def _judge(comparison: Comparison | SweepComparison) -> None:
    from powerprof.experiment import sweep_comparison
    from powerprof.experiment.verdict import is_worse
    from powerprof.report.kinds import word_record

    comparison = word_record(comparison)
    if isinstance(comparison, sweep_comparison.SweepComparison):
        if sweep_comparison.is_worse(comparison):
            raise WorseError(comparison.text)
    elif is_worse(comparison.metrics, comparison.verdict.metric):
        raise WorseError(f"{comparison.b.name} is worse than {comparison.a.name}: {comparison.verdict.text}")
