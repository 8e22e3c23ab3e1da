# SPDX-License-Identifier: Apache-2.0
"""Judge values of two conditions: lower, higher or inconclusive, and the detectable difference."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Literal

import msgspec

from powerprof.statistics.intervals import (
    LEVEL,
    Interval,
    effective_freedom,
    mean_interval,
    step_of,
    student_p,
    student_quantile,
    welch_error,
    welch_interval,
)
from powerprof.statistics.pairs import INDEPENDENT, Noise, PairedTest, measure_difference, pool_noise

Verdict = Literal["b_lower", "b_higher", "inconclusive"]
POWER = 0.8
# A comparison has one primary metric, some twenty other rows and, on request, a table of functions. The permitted error
# is divided: 1.5 % for the primary metric, 0.5 % for all rows, 0.5 % for all functions. Then one in forty comparisons
# of a condition with itself has a false verdict. If the noise of the host is not as Student assumes, it is one in
# twenty at most: docs/dev/experiments.md.
PRIMARY_LEVEL = 0.985
FAMILY_LEVEL = 0.995
FUNCTIONS_LEVEL = 0.995


class PairedResult(msgspec.Struct, frozen=True):
    """Two conditions over pairs of blocks, in the unit of the values; None for unknown figures.

    `p_value` is Student's (Welch's for unpaired values) for no difference, on the scale of the interval.
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


def verdict_of(interval: Interval | None, equal: float = 0.0) -> Verdict:
    """Return the verdict of an interval of b − a (or of b / a, `equal` at 1): below, above, or inconclusive."""
    if interval is None or not interval.excludes(equal):
        return "inconclusive"
    return "b_higher" if interval.low > equal else "b_lower"


class Claim(msgspec.Struct, frozen=True):
    """The statements that a verdict and its intervals permit; every report words this.

    Attributes:
        verdict: The verdict, if the interval of the difference has the same direction.
        hint: The direction of an interval that excludes 0 without a verdict: the difference may be chance.
        bound: The largest possible absolute difference, for an interval that contains 0 and is no wider than `widest`;
            0 if all readings are equal.
        times: The interval of the ratio, if it has the direction of the verdict.
        unknown: Whether there is no interval.
    """

    verdict: Verdict = "inconclusive"
    hint: Verdict | None = None
    bound: float | None = None
    times: tuple[float, float] | None = None
    unknown: bool = False


def judge_claim(
    verdict: Verdict,
    ends: tuple[float, float] | None,
    ratio_ends: tuple[float, float] | None = None,
    *,
    widest: float = math.inf,
) -> Claim:
    """Return the permitted statements about b − a, from the ends of the intervals of b − a and of b / a.

    `widest` is the largest useful bound, in the unit of b − a.
    """
    if ends is None:
        return Claim(unknown=True)
    direction = verdict_of(Interval(*ends, ""))
    if direction == "inconclusive":
        most = max(abs(end) for end in ends)
        return Claim(bound=most if most <= widest else None)
    if verdict != direction:
        return Claim(hint=direction)
    agrees = ratio_ends is not None and ratio_ends[0] > 0 and verdict_of(Interval(*ratio_ends, ""), 1.0) == verdict
    return Claim(verdict, times=ratio_ends if agrees else None)


def _minimum_detectable_percent(tested: PairedTest, a_mean: float) -> float | None:
    """Return the smallest difference in percent of mean(a) that these pairs detect in four of five cases.

    It is (t[0.9925] + t[0.8]) standard errors, at the level of the primary metric.
    """
    reach = tested.reach(PRIMARY_LEVEL) + tested.reach(2 * POWER - 1)
    if tested.on_logs:
        return 100 * math.expm1(min(reach, _MOST_LOG))
    return 100 * reach / abs(a_mean) if a_mean else None


def compare_pairs(
    a: Sequence[float], b: Sequence[float], *, seed: int, step: float | None = None, noise: Noise | None = None
) -> PairedResult:
    """Judge paired values in the order of time.

    `step` is the resolution of the readings; None estimates it from the values. `noise` is that of all rows of the
    report; None estimates it from these pairs alone. Raises ValueError for different lengths or no values.
    """
    if len(a) != len(b) or not a:
        raise ValueError("pairs need as many values of a as of b")
    if noise is None or min(*a, *b) == max(*a, *b):
        noise = pool_noise([(a, b)])  # Equal readings show no noise.
    plain = _result(a, b, None, seed, noise)
    if len(a) < 3:
        return msgspec.structs.replace(plain, pairs_count=len(a))
    tested, a_mean = measure_difference(a, b, step, noise), plain.a_mean
    interval, ratios = tested.interval, None
    if tested.on_logs:
        low, high = (math.exp(min(max(end, -_MOST_LOG), _MOST_LOG)) for end in (interval.low, interval.high))
        ratio = plain.b_mean / a_mean
        ratios = Interval(min(low, ratio), max(high, ratio), interval.method)
        interval = Interval(a_mean * (ratios.low - 1), a_mean * (ratios.high - 1), interval.method)
    return msgspec.structs.replace(
        plain,
        pairs_count=len(a),
        difference_interval=interval,
        ratio_interval=ratios,
        verdict=verdict_of(interval),
        minimum_detectable_percent=_minimum_detectable_percent(tested, a_mean),
        p_value=tested.p_value,
    )


def _result(
    a: Sequence[float], b: Sequence[float], interval: Interval | None, seed: int, noise: Noise | None = None
) -> PairedResult:
    """Return the common part for two sets of values; `interval` is that of the difference."""
    a_mean, b_mean = statistics.fmean(a), statistics.fmean(b)
    side = 0.0 if noise is None else noise.side_least(len(a))
    return PairedResult(
        pairs_count=0,
        a_mean=a_mean,
        b_mean=b_mean,
        a_interval=mean_interval(a, seed=seed, least=side * abs(a_mean)),
        b_interval=mean_interval(b, seed=seed, least=side * abs(b_mean)),
        difference=b_mean - a_mean,
        difference_interval=interval,
        percent=100 * (b_mean - a_mean) / a_mean if a_mean > 0 else None,
        ratio=b_mean / a_mean if a_mean > 0 else None,
        ratio_interval=None,
        verdict=verdict_of(interval),
        minimum_detectable_percent=None,
    )


# A deciding number of pairs further away than this is a guess.
_MOST_TIMES_PAIRS = 10


def count_deciding_pairs(pairs: int, detectable_percent: float, percent: float) -> int | None:
    """Return how many pairs detect the measured difference in four of five cases; None if it is too small to predict.

    `detectable_percent` is the smallest difference that `pairs` pairs detect, at the level of the primary metric. The
    scatter of a pair stays the same, so this shrinks with Student's quantiles and the square root of the pairs.
    """

    def reach(count: int) -> float:
        quantiles = [student_quantile(level, count - 1) for level in (PRIMARY_LEVEL, 2 * POWER - 1)]
        return sum(quantiles) / math.sqrt(count)

    if pairs < 3 or percent <= -100 or not percent or detectable_percent <= 0:
        return None
    scatter = math.log1p(detectable_percent / 100) / reach(pairs)
    apart = abs(math.log1p(percent / 100))
    further = range(pairs + 1, _MOST_TIMES_PAIRS * pairs + 1)
    return next((count for count in further if scatter * reach(count) <= apart), None)


def primary_verdict(verdict: Verdict, p_value: float | None, level: float = PRIMARY_LEVEL) -> Verdict:
    """Return the verdict of the primary metric: that of its interval if the p-value is below its level."""
    return verdict if p_value is not None and p_value <= 1 - level else "inconclusive"


def survivors(p_values: Sequence[float | None], level: float = FAMILY_LEVEL) -> list[bool]:
    """Return which differences can be claimed together by Holm's step-down at this level.

    S. Holm, "A simple sequentially rejective multiple test procedure", Scandinavian Journal of Statistics 6, 1979. None
    never survives.
    """
    known = sorted((p, index) for index, p in enumerate(p_values) if p is not None)
    claimed = [False] * len(p_values)
    for rank, (p, index) in enumerate(known):
        if p > (1 - level) / (len(known) - rank):
            break
        claimed[index] = True
    return claimed


# Two runs: each is one sample of its level, and its windows do not show how far runs of one condition differ. So a
# verdict assumes a deviation of levels of twice that of a run's windows.
RUN_LEVELS = 2.0


def compare_unpaired(a: Sequence[float], b: Sequence[float], *, seed: int, step: float | None = None) -> PairedResult:
    """Judge two saved runs, whose windows were not interleaved: beyond the assumed differences between runs.

    `step` is the resolution of the readings; None estimates it from the values.
    """
    if not a or not b:
        raise ValueError("two runs need values each")
    interval = welch_interval(a, b, RUN_LEVELS, step) if min(len(a), len(b)) >= 3 else None
    return msgspec.structs.replace(_result(a, b, interval, seed), p_value=_p_of_runs(a, b, step))


def _p_of_runs(a: Sequence[float], b: Sequence[float], step: float | None) -> float | None:
    """Return the probability of this difference between two runs of equal conditions; None for few windows."""
    if min(len(a), len(b)) < 3:
        return None
    difference, (error, _) = statistics.fmean(b) - statistics.fmean(a), welch_error(a, b, RUN_LEVELS, step)
    return student_p(difference / error, min(map(effective_freedom, (a, b)))) if error else 1.0


# Validity of the experiment: the A/A control, and drift of the idle baseline and over the blocks.

# An idle machine's C0 varies by some tenths of a point, which interleaving cancels. A drift counts if it is
# significant, exceeds this, and exceeds a quarter of the effect.
DRIFT_FLOOR_POINTS = 0.5
DRIFT_SHARE_OF_EFFECT = 0.25


class Control(msgspec.Struct, frozen=True):
    """A comparison of a condition with itself. `sound` if it found no difference."""

    sound: bool
    difference_percent: float | None
    half_width_percent: float | None


def judge_control(result: PairedResult) -> Control:
    """Judge an A/A run: it must be inconclusive; the half width of its interval is the resolution."""
    interval, base = result.difference_interval, abs(result.a_mean)
    if interval is None or not base:
        return Control(False, None, None)
    is_sound = result.verdict == "inconclusive"
    return Control(is_sound, 100 * result.difference / base, 100 * interval.half_width / base)


class Drift(msgspec.Struct, frozen=True):
    """The change of the idle baseline from start to end, in points of C0."""

    points: float
    low: float | None
    high: float | None
    failed: bool


def baseline_drift(before: Sequence[float], after: Sequence[float], effect_points: float | None) -> Drift | None:
    """Compare idle C0 percentages before and after; None if one of them is missing.

    It fails if Welch's interval excludes 0 and the drift exceeds both DRIFT_FLOOR_POINTS and DRIFT_SHARE_OF_EFFECT of
    the difference in C0 between the conditions (`effect_points`).
    """
    if not before or not after:
        return None
    moved = statistics.fmean(after) - statistics.fmean(before)
    tolerance = max(DRIFT_FLOOR_POINTS, DRIFT_SHARE_OF_EFFECT * abs(effect_points or 0.0))
    interval = welch_interval(before, after)
    if interval is None:
        return Drift(moved, None, None, abs(moved) > tolerance)
    return Drift(moved, interval.low, interval.high, interval.excludes(0.0) and abs(moved) > tolerance)


class MonotonicTrend(msgspec.Struct, frozen=True):
    """A monotonic trend over the blocks: Kendall's tau and its two-sided p-value."""

    tau: float
    p_value: float

    @property
    def present(self) -> bool:
        """Whether the p-value is below 1 %: with several metrics, 5 % would give false alarms."""
        return self.p_value < 0.01


def block_trend(values: Sequence[float]) -> MonotonicTrend | None:
    """Return Kendall's test of values in the order of time; None for fewer than six or equal values."""
    if len(values) < 6 or max(values) == min(values):
        return None
    from scipy import stats

    test = stats.kendalltau(range(len(values)), values)
    return MonotonicTrend(float(test.statistic), float(test.pvalue))


# Differences between points that are measured in rounds, independent of changes between rounds.

FEWEST_ROUNDS = 3
_MOST_LOG = 300.0  # within the range of a float


class PointPair(msgspec.Struct, frozen=True):
    """Two points by index; `percent` is the difference of the second to the first. None for unknown figures.

    `interval` is of `percent` for this pair alone. `p_value` is for no difference.
    """

    first: int
    second: int
    percent: float | None = None
    interval: Interval | None = None
    p_value: float | None = None


def compare_points(points: Sequence[Mapping[int, float]]) -> list[PointPair]:
    """Compare every two points, each given as values by round.

    Points are compared by their difference within each round, so changes between rounds have no effect, nor has the
    scatter of other points. Positive values are compared by ratios.
    """
    pairs = []
    step = step_of(*(list(point.values()) for point in points))
    for first, second in combinations(range(len(points)), 2):
        both = sorted(points[first].keys() & points[second].keys())
        a, b = ([points[place][number] for number in both] for place in (first, second))
        pairs.append(_compare(first, second, a, b, step) if len(both) >= FEWEST_ROUNDS else PointPair(first, second))
    return pairs


def _compare(first: int, second: int, a: Sequence[float], b: Sequence[float], step: float) -> PointPair:
    """Compare two points; `step` is the resolution of the values."""
    # Rounds run forwards and backwards, so a drift alternates in the differences.
    tested = measure_difference(a, b, step, INDEPENDENT)
    tested = msgspec.structs.replace(tested, lognormal=None)  # Points are compared by their typical ratio.
    base, interval = abs(statistics.fmean(a)), tested.interval
    if not tested.on_logs and not base:
        return PointPair(first, second, p_value=tested.p_value)
    low, percent, high = (
        100 * (math.expm1(min(value, _MOST_LOG)) if tested.on_logs else value / base)
        for value in (interval.low, tested.mean, interval.high)
    )
    return PointPair(first, second, percent, Interval(low, high, interval.method), tested.p_value)


def which_differ(p_values: Sequence[float | None]) -> list[bool]:
    """Return which pairs of points differ by Holm's test: a false one is as rare as a wrong interval."""
    return survivors(p_values, LEVEL)
