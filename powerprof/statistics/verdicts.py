# SPDX-License-Identifier: Apache-2.0
"""What paired values of two conditions say: lower, higher or inconclusive, and what could have been seen."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Literal

from powerprof.statistics.intervals import (
    LEVEL,
    Interval,
    difference_interval,
    effective_freedom,
    log_rounding,
    mean_interval,
    ratio_interval,
    rounding,
    serial_factor,
    step_of,
    student_p,
    student_quantile,
    welch_error,
    welch_interval,
)

Verdict = Literal["b_lower", "b_higher", "inconclusive"]
POWER = 0.8
# A comparison has one primary metric, some twenty other rows and, where asked for, a table of functions. What may be
# wrong anywhere is shared out: 1.5 % for the primary's, 0.5 % for the rows together, 0.5 % for the functions together.
# Of all comparisons of a condition with itself one in forty has a false word then, and at most one in twenty where the
# host's noise is not as Student assumes: docs/dev/experiments.md.
PRIMARY_LEVEL = 0.985
FAMILY_LEVEL = 0.995
FUNCTIONS_LEVEL = 0.995


@dataclass(frozen=True)
class PairedResult:
    """Two conditions over pairs of blocks, in the unit of the values; None where it is unknown.

    `p_value` is Student's (Welch's where nothing is paired) for no difference, on the scale of the interval.
    """

    pairs_count: int
    a_mean: float
    b_mean: float
    a_interval: Interval | None
    b_interval: Interval | None
    difference: float
    difference_interval: Interval | None
    percent: float | None
    ratio: float | None
    ratio_interval: Interval | None
    verdict: Verdict
    minimum_detectable_percent: float | None
    p_value: float | None = None


def verdict_of(interval: Interval | None) -> Verdict:
    """Where the interval of b − a lies: below 0, above 0, or not clear of it."""
    if interval is None or not interval.excludes(0.0):
        return "inconclusive"
    return "b_higher" if interval.low > 0 else "b_lower"


def minimum_detectable_percent(a: Sequence[float], b: Sequence[float], step: float | None = None) -> float | None:
    """The smallest true difference, in percent of mean(a), that so many pairs find four times in five.

    (t[0.9925] + t[0.8]) · s/√n with n − 1 degrees of freedom, at the level of the primary metric; s the deviation of
    the paired differences, as large as their correlation and the step of the readings make it.
    """
    count = len(a)
    centre = statistics.fmean(a) if a else 0.0
    if count < 3 or centre == 0:
        return None
    spread = _spread([y - x for x, y in zip(a, b, strict=True)], _rounding(a, b, step))
    quantiles = student_quantile(PRIMARY_LEVEL, count - 1) + student_quantile(2 * POWER - 1, count - 1)
    return 100 * quantiles * spread / math.sqrt(count) / abs(centre)


def _rounding(a: Sequence[float], b: Sequence[float], step: float | None) -> float:
    """The least deviation of b − a, of values that are read in steps."""
    return math.sqrt(2) * rounding(step_of(a, b) if step is None else step)


def _spread(each: Sequence[float], least: float) -> float:
    """The deviation whose n-th part under a root is the standard error of the mean."""
    return max(statistics.stdev(each) * serial_factor(each), least)


def compare_pairs(a: Sequence[float], b: Sequence[float], *, seed: int, step: float | None = None) -> PairedResult:
    """Judge paired values. `step`: in which they are read; None: what they show of it.

    Values that do not scatter are known no better than to their step. Raises ValueError where the two differ in length
    or are empty.
    """
    if len(a) != len(b) or not a:
        raise ValueError("pairs need as many values of a as of b")
    a_mean = statistics.fmean(a)
    interval = difference_interval(a, b, seed=seed)
    ratios = ratio_interval(a, b, seed=seed)
    if ratios is not None and ratios.method == "student-log":
        # The noise of a few windows grows with the figure: over logarithms a tenfold effect is seen with three pairs,
        # over differences it is not. The difference is then that of the ratio's ends.
        interval = Interval(a_mean * (ratios.low - 1), a_mean * (ratios.high - 1), "student-log")
    if interval is not None:
        difference = statistics.fmean(b) - a_mean
        reach = student_quantile(LEVEL, len(a) - 1) * _rounding(a, b, step) / math.sqrt(len(a))
        interval = interval.with_ends(Interval(difference - reach, difference + reach, "step"))
    on_logs = interval is not None and interval.method == "student-log"
    return dataclasses.replace(
        _result(a, b, interval, seed),
        pairs_count=len(a),
        ratio_interval=ratios,
        minimum_detectable_percent=minimum_detectable_percent(a, b, step),
        p_value=_p_of_pairs(a, b, step, on_logs=on_logs),
    )


def _result(a: Sequence[float], b: Sequence[float], interval: Interval | None, seed: int) -> PairedResult:
    """What holds of two sets of values, paired or not; `interval` is that of the difference."""
    a_mean, b_mean = statistics.fmean(a), statistics.fmean(b)
    return PairedResult(
        pairs_count=0,
        a_mean=a_mean,
        b_mean=b_mean,
        a_interval=mean_interval(a, seed=seed),
        b_interval=mean_interval(b, seed=seed),
        difference=b_mean - a_mean,
        difference_interval=interval,
        percent=100 * (b_mean - a_mean) / abs(a_mean) if a_mean else None,
        ratio=b_mean / a_mean if a_mean > 0 else None,
        ratio_interval=None,
        verdict=verdict_of(interval),
        minimum_detectable_percent=None,
    )


def paired_difference(
    a: Sequence[float], b: Sequence[float], step: float | None = None, *, on_logs: bool
) -> tuple[float, float]:
    """The mean of b − a over pairs, or of log(b / a), and its standard error. Two pairs at least."""
    each = [math.log(y / x) if on_logs else y - x for x, y in zip(a, b, strict=True)]
    least = log_rounding(a, b, step) if on_logs else _rounding(a, b, step)
    return statistics.fmean(each), _spread(each, least) / math.sqrt(len(each))


def _p_of_pairs(a: Sequence[float], b: Sequence[float], step: float | None, *, on_logs: bool) -> float | None:
    if len(a) < 3:
        return None
    difference, error = paired_difference(a, b, step, on_logs=on_logs)
    return student_p(difference / error, len(a) - 1) if error else 1.0


def primary_verdict(verdict: Verdict, p_value: float | None, level: float = PRIMARY_LEVEL) -> Verdict:
    """The word of the metric that the answer is about: its interval's, where its p-value leaves room for the rows'."""
    return verdict if p_value is not None and p_value <= 1 - level else "inconclusive"


def survivors(p_values: Sequence[float | None], level: float = FAMILY_LEVEL) -> list[bool]:
    """Which differences can be claimed together: Holm's step-down, so that any false one is as rare as `level` says.

    S. Holm, "A simple sequentially rejective multiple test procedure", Scandinavian Journal of Statistics 6, 1979.
    None never survives.
    """
    known = sorted((p, index) for index, p in enumerate(p_values) if p is not None)
    claimed = [False] * len(p_values)
    for rank, (p, index) in enumerate(known):
        if p > (1 - level) / (len(known) - rank):
            break
        claimed[index] = True
    return claimed


def compare_unpaired(a: Sequence[float], b: Sequence[float], *, seed: int) -> PairedResult:
    """Judge two saved runs, whose blocks were not interleaved: Welch's interval, no pairing to lean on."""
    if not a or not b:
        raise ValueError("two runs need values each")
    interval = welch_interval(a, b) if min(len(a), len(b)) >= 3 else None
    return dataclasses.replace(_result(a, b, interval, seed), p_value=p_of_two(a, b))


def p_of_two(a: Sequence[float], b: Sequence[float]) -> float | None:
    """How often chance alone makes two runs of equal conditions differ so much; None for fewer than three windows."""
    if min(len(a), len(b)) < 3:
        return None
    difference, (error, _) = statistics.fmean(b) - statistics.fmean(a), welch_error(a, b)
    return student_p(difference / error, min(map(effective_freedom, (a, b)))) if error else 1.0


# Is the experiment itself sound: the A/A control, and drift of the idle baseline and over the blocks.

# An idle machine's C0 wanders by some tenths of a point for reasons that interleaving cancels; a drift
# counts when it is statistically there, exceeds this, and could be taken for a quarter of the effect.
DRIFT_FLOOR_POINTS = 0.5
DRIFT_SHARE_OF_EFFECT = 0.25


@dataclass(frozen=True)
class Control:
    """An A/A comparison: the same condition under two names. `sound` where it found no difference."""

    sound: bool
    difference_percent: float | None
    half_width_percent: float | None


def judge_control(result: PairedResult) -> Control:
    """An A/A run must be inconclusive; its interval's half width is what the apparatus can resolve."""
    interval = result.difference_interval
    if interval is None or result.percent is None:
        return Control(False, None, None)
    width = 100 * interval.half_width / abs(result.a_mean)
    return Control(result.verdict == "inconclusive", result.percent, width)


@dataclass(frozen=True)
class Drift:
    """How far the idle baseline moved between the beginning and the end, in points of C0."""

    points: float
    low: float | None
    high: float | None
    failed: bool


def baseline_drift(before: Sequence[float], after: Sequence[float], effect_points: float | None) -> Drift | None:
    """Compare idle C0 percentages before and after. None where one of them is missing.

    It fails where Welch's interval excludes 0 and the drift is larger than both DRIFT_FLOOR_POINTS and
    DRIFT_SHARE_OF_EFFECT of the difference in C0 between the conditions (`effect_points`).
    """
    if not before or not after:
        return None
    moved = statistics.fmean(after) - statistics.fmean(before)
    tolerance = max(DRIFT_FLOOR_POINTS, DRIFT_SHARE_OF_EFFECT * abs(effect_points or 0.0))
    interval = welch_interval(before, after)
    if interval is None:
        return Drift(moved, None, None, abs(moved) > tolerance)
    return Drift(moved, interval.low, interval.high, interval.excludes(0.0) and abs(moved) > tolerance)


@dataclass(frozen=True)
class MonotonicTrend:
    """A monotonic trend over the blocks: Kendall's tau and its two-sided p value."""

    tau: float
    p_value: float

    @property
    def present(self) -> bool:
        """True below 1 %: with several metrics looked at, 5 % would cry wolf."""
        return self.p_value < 0.01


def block_trend(values: Sequence[float]) -> MonotonicTrend | None:
    """Kendall's test of values in the order of time. None for fewer than six or constant ones."""
    if len(values) < 6 or max(values) == min(values):
        return None
    from scipy import stats

    test = stats.kendalltau(range(len(values)), values)
    return MonotonicTrend(float(test.statistic), float(test.pvalue))


# Several points measured in rounds, each once a round: which of them differ, whatever changed from round to round.

FEWEST_ROUNDS = 3
_MOST_LOG = 300.0  # as far as a float reaches


@dataclass(frozen=True)
class PointPair:
    """Two of the points by their places: how many percent the second is above the first.

    `interval` is of `percent` and holds by itself; `p_value` is for no difference. None where it is unknown.
    """

    first: int
    second: int
    percent: float | None = None
    interval: Interval | None = None
    p_value: float | None = None


def compare_points(points: Sequence[Mapping[int, float]], *, in_rounds: bool) -> list[PointPair]:
    """Every two of the points, each a value by round.

    In rounds two points are compared by what they differ by within each round: what comes and goes between the rounds
    is in neither's favour, and nothing is taken from how much others scatter. By ratios where all values are positive.
    Points that were measured one after the other are compared as runs that were measured apart.
    """
    pairs = []
    step = step_of(*(list(point.values()) for point in points))
    for first, second in combinations(range(len(points)), 2):
        both = sorted(points[first].keys() & points[second].keys())
        if in_rounds:
            a, b = ([points[place][number] for number in both] for place in (first, second))
        else:
            a, b = (list(points[place].values()) for place in (first, second))
        known = min(len(a), len(b)) >= FEWEST_ROUNDS
        pairs.append(_compared(first, second, a, b, step if in_rounds else None) if known else PointPair(first, second))
    return pairs


def _compared(first: int, second: int, a: Sequence[float], b: Sequence[float], step: float | None) -> PointPair:
    """`step`: in which the values are read; None: they were not measured in rounds."""
    on_logs = step is not None and min(*a, *b) > 0
    freedom: float = len(a) - 1
    if step is not None:
        middle, error = paired_difference(a, b, step, on_logs=on_logs)
    else:
        middle, (error, freedom) = statistics.fmean(b) - statistics.fmean(a), welch_error(a, b)
    p_value = student_p(middle / error, freedom) if error else 1.0
    base, reach = abs(statistics.fmean(a)), student_quantile(LEVEL, freedom) * error
    if not on_logs and not base:
        return PointPair(first, second, p_value=p_value)
    low, percent, high = (
        100 * (math.expm1(min(value, _MOST_LOG)) if on_logs else value / base)
        for value in (middle - reach, middle, middle + reach)
    )
    return PointPair(first, second, percent, Interval(low, high, "student-log" if on_logs else "student"), p_value)


def which_differ(p_values: Sequence[float | None]) -> list[bool]:
    """Of all pairs of points that one answer is about: any false one is as rare as an interval that misses (Holm)."""
    return survivors(p_values, LEVEL)
