# SPDX-License-Identifier: Apache-2.0
"""Search the highest rate at which one condition, or two alternately, hold a limit: `powerprof sweep --until`.

The record is `powerprof.saturation/1`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from statistics import fmean
from typing import Literal

import msgspec
from msgspec.structs import replace

from powerprof.experiment.apparatus import Apparatus, Slot
from powerprof.experiment.bench import Bench
from powerprof.experiment.bench_options import BenchOptions
from powerprof.experiment.block import measure_block
from powerprof.experiment.claims import are_starts_repeated
from powerprof.experiment.ending import Ending
from powerprof.experiment.options import AROUND_S, ExperimentOptions, condition_record
from powerprof.experiment.plan import Offer, check_comparable, check_options, measure_capacity
from powerprof.experiment.records import Block, ConditionRecord, Ratio
from powerprof.experiment.starts import Starts
from powerprof.measure.clock import format_now
from powerprof.measure.means import interval
from powerprof.measure.progress import Countdown, join_parts
from powerprof.model.records import Estimate, Record, ServerInfo
from powerprof.model.text import Say, approximate_time
from powerprof.statistics.intervals import interval_ends
from powerprof.statistics.points import SWEEP_LEVEL
from powerprof.statistics.verdicts import Verdict, compare_pairs, compare_unpaired, primary_verdict
from powerprof.system.errors import Retryable, UsageError
from powerprof.workloads.reading import Case

# Below this share of the offered rate the queue grows. At low rates a Poisson stream itself varies more.
_KEPT_UP, _DEVIATIONS = 0.9, 3.0


class Limit(msgspec.Struct, frozen=True, kw_only=True):
    """A metric of a window and its largest permitted value."""

    metric: Literal["latency_p50_ms", "latency_p95_ms", "latency_p99_ms", "c0_percent"]
    at_most: float
    unit: Literal["ms", "%"]


class Trial(msgspec.Struct, frozen=True, kw_only=True):
    """One window at one rate. `value` is that of the limited metric."""

    round: int
    rate_hz: float
    finished_hz: float | None
    value: float | None
    held: bool
    failure: str | None = None


class Saturated(msgspec.Struct, frozen=True, kw_only=True):
    """The search of one condition: capacity, and highest rate per round.

    Attributes:
        values: None if not even the lowest rate held.
        limited: false if the limit held up to the capacity.
    """

    name: str
    condition: ConditionRecord
    capacity_hz: float
    rate_hz: Estimate | None
    values: list[float | None]
    resolution_hz: float
    limited: bool
    trials: list[Trial]


class Saturation(Record, frozen=True, kw_only=True):
    """The highest rate that holds a limit."""

    limit: Limit
    a: Saturated
    b: Saturated | None = None
    ratio: Ratio | None = None
    verdict: Verdict | None = None
    rounds_count: int = 0
    schema: Literal["powerprof.saturation/1"] = "powerprof.saturation/1"

    @property
    def condition(self) -> ConditionRecord:
        """The condition of the run in the history: the only or first one."""
        return self.a.condition


def judge_trial(limit: Limit, block: Block, number: int, rate_hz: float) -> Trial:
    """Return whether a window held the limit. A server that falls behind holds no limit."""
    seconds = block.window.window_s
    finished_hz = block.queries / seconds if block.queries is not None and seconds else None
    found = {
        "latency_p50_ms": block.p50_ms,
        "latency_p95_ms": block.p95_ms,
        "latency_p99_ms": block.p99_ms,
        "c0_percent": block.window.c0_percent,
    }[limit.metric]
    chance_hz = _DEVIATIONS * math.sqrt(rate_hz / seconds) if seconds else 0.0
    kept_up = finished_hz is not None and finished_hz >= min(_KEPT_UP * rate_hz, rate_hz - chance_hz)
    held = kept_up and found is not None and found <= limit.at_most
    return Trial(round=number, rate_hz=rate_hz, finished_hz=finished_hz, value=found, held=held)


def halve_rates(trial: Callable[[float], Trial], capacity_hz: float, steps: int) -> list[Trial]:
    """Search the highest rate between 0 and the capacity in `steps` windows that halve the range.

    A lower rate than one that held is assumed to hold, and a higher one than a failed rate to fail. Rates are whole
    numbers from 1, as clients require.
    """
    low, high = 0.0, capacity_hz
    trials: list[Trial] = []
    for _ in range(steps):
        rate = float(max(1, round((low + high) / 2)))
        if trials and rate in (low, high):
            break
        trials.append(trial(rate))
        low, high = (rate, high) if trials[-1].held else (low, rate)
    return trials


def highest_rate(trials: Sequence[Trial], capacity_hz: float) -> float | None:
    """Return the middle between the highest rate that held and the next rate that did not; None if none held."""
    held = [trial.rate_hz for trial in trials if trial.held]
    if not held:
        return None
    failed = [trial.rate_hz for trial in trials if not trial.held]
    return (max(held) + min([*failed, capacity_hz])) / 2


def condition_rate(
    name: str, condition: ConditionRecord, capacity_hz: float, rounds: Sequence[Sequence[Trial]]
) -> Saturated:
    """Return one condition over at least one round."""
    values = [highest_rate(trials, capacity_hz) for trials in rounds]
    known = [value for value in values if value is not None]
    trials = [trial for each in rounds for trial in each]
    return Saturated(
        name=name,
        condition=condition,
        capacity_hz=capacity_hz,
        rate_hz=interval(known, 0.0) if len(known) == len(values) else None,
        values=values,
        resolution_hz=max(1.0, capacity_hz / 2 ** max(len(each) for each in rounds)),
        limited=any(not trial.held for trial in trials),
        trials=trials,
    )


def compare_rates(
    a: Saturated, b: Saturated, seed: int, *, in_rounds: bool = True
) -> tuple[Ratio | None, Verdict | None]:
    """Compare the rates b / a over the rounds that both have; None for fewer than two such rounds.

    Conditions that are not `in_rounds` are judged like two saved runs.
    """
    both = [(x, y) for x, y in zip(a.values, b.values, strict=False) if x is not None and y is not None]
    if len(both) < 2:
        return None, None
    of_a, of_b = ([pair[side] for pair in both] for side in (0, 1))
    mean_a, mean_b = fmean(of_a), fmean(of_b)
    # The step with which the ratio is as uncertain as with the resolutions of both.
    relative = math.hypot(a.resolution_hz / mean_a, b.resolution_hz / mean_b)
    step = relative / math.hypot(1 / mean_a, 1 / mean_b)
    result = (compare_pairs if in_rounds else compare_unpaired)(of_a, of_b, seed=seed, step=step)
    if result.ratio is None:
        return None, None
    ends = interval_ends(result.ratio_interval)
    if ends is None and result.difference_interval is not None:
        low, high = (1 + end / result.a_mean for end in interval_ends(result.difference_interval) or ())
        ends = max(low, 0.0), high
    return Ratio(b_over_a=result.ratio, ci95=ends), primary_verdict(result.verdict, result.p_value, SWEEP_LEVEL)


# Loads with a rate.
_AT_A_RATE = ("statements", "pgbench", "connector-j")


class _SaturatedSide(msgspec.Struct):
    """One condition: its capacity, and the trials of each round."""

    case: Case
    capacity_hz: float = 0.0
    rounds: list[list[Trial]] = msgspec.field(default_factory=list)

    def format_so_far(self) -> str:
        """Return the mean of the highest rates that held; empty before the first round."""
        held = [max((trial.rate_hz for trial in trials if trial.held), default=0.0) for trials in self.rounds]
        return f"{sum(held) / len(held):,.0f} queries/s so far" if held else ""

    def record(self, rounds: int) -> Saturated:
        """Return the result of the first `rounds` rounds."""
        return condition_rate(self.case.name, condition_record(self.case), self.capacity_hz, self.rounds[:rounds])


def search_highest_rate(
    cases: Sequence[Case], limit: Limit, steps: int, bench_options: BenchOptions, options: ExperimentOptions, say: Say
) -> Saturation:
    """Search in rounds, the conditions alternately. An interrupt keeps the complete rounds.

    Raises UsageError for a load without a rate, and PowerprofError if no round was completed.
    """
    check_options(cases, options)
    for case in cases:
        if case.load.kind not in _AT_A_RATE:
            raise UsageError(
                f"{case.qualified} cannot run at a given rate (load {case.load.kind})",
                f"--until needs a condition with a load of kind {', '.join(_AT_A_RATE)}",
            )
    check_comparable(cases)
    sides, started_at, ending = [_SaturatedSide(case) for case in cases], format_now(), Ending()
    notes: list[str] = []
    server: ServerInfo | None = None
    each_s = steps * (options.window_s + AROUND_S)
    seconds = options.pairs * len(cases) * each_s
    say(f"{options.pairs} rounds of {steps} windows of {options.window_s:g} s a condition: {approximate_time(seconds)}")
    progress = Countdown(say, seconds)
    starts_count = 0
    with ending.keeping(lambda: _whole(sides)), Bench(list(cases), bench_options, notes.append) as bench:
        one = bench.server(cases[0])
        server = ServerInfo(version=one.version, private=one.private, pid=one.pid)
        for side in sides:
            progress(f"{side.case.name}: at full speed")
            side.capacity_hz = measure_capacity(bench, side.case, options.calibrate_s)
        done, starts = 0, Starts(bench, cases, say)
        for number in range(options.pairs):
            starts.begin_repetition()
            starts_count = starts.count
            # Alternate the order, so that a drift affects both conditions.
            for side in sides if number % 2 == 0 else sides[::-1]:
                label = join_parts(f"{side.case.name}: round {number + 1} of {options.pairs}", side.format_so_far())
                progress.step(label, done, options.pairs * len(sides), each_s + starts.seconds)
                done += 1
                starts.renew(side.case, None)
                side.rounds.append(_round(bench, side, limit, steps, options, number, progress))
    return _record(sides, limit, started_at, server, notes, options, steps, ending, starts_count)


def _whole(sides: Sequence[_SaturatedSide]) -> int:
    return min(len(side.rounds) for side in sides)


def _round(
    bench: Bench, side: _SaturatedSide, limit: Limit, steps: int, options: ExperimentOptions, number: int, say: Say
) -> list[Trial]:
    def trial(rate_hz: float) -> Trial:
        own = replace(options, rate_hz=rate_hz)
        apparatus = Apparatus(bench, own, Offer("rate", rate_hz, None, (), ()), None, lambda window: window, say)
        slot = Slot(number, "a", False, 1 + 1000 * options.seed + number)
        try:
            return judge_trial(limit, measure_block(apparatus, side.case, slot, 1), number, rate_hz)
        except Retryable as error:
            # A client whose queue is full gives up: the rate does not hold.
            bench.revive(side.case)
            return Trial(round=number, rate_hz=rate_hz, finished_hz=None, value=None, held=False, failure=error.message)

    return halve_rates(trial, side.capacity_hz, steps)


def _record(
    sides: Sequence[_SaturatedSide],
    limit: Limit,
    started_at: str,
    server: ServerInfo | None,
    notes: list[str],
    options: ExperimentOptions,
    steps: int,
    ending: Ending,
    starts_count: int,
) -> Saturation:
    from powerprof.host.describe import host_record

    rounds = _whole(sides)
    found = [side.record(rounds) for side in sides]
    ratio, verdict = None, None
    if len(found) == 2:
        repeated = are_starts_repeated(starts_count, rounds)
        ratio, verdict = compare_rates(found[0], found[1], options.seed, in_rounds=repeated)
    return Saturation(
        command="sweep",
        started_at=started_at,
        limit=limit,
        a=found[0],
        b=found[1] if len(found) == 2 else None,
        ratio=ratio,
        verdict=verdict,
        rounds_count=rounds,
        host=host_record(),
        server=server,
        options={
            "window_s": options.window_s,
            "steps_count": steps,
            "seed": options.seed,
            **({"starts_count": starts_count} if starts_count else {}),
        },
        notes=notes,
        ended=ending.ended,
    )
