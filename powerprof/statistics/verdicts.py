# SPDX-License-Identifier: Apache-2.0
"""Judge values of two conditions: lower, higher or inconclusive, and the detectable difference."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Literal

import msgspec

from powerprof.statistics.distributions import student_p, student_quantile
from powerprof.statistics.intervals import WIDEST_FACTOR, Interval, exp_ends, mean_interval, welch_error, welch_interval
from powerprof.statistics.pairs import Noise, PairedTest, measure_difference, pool_noise
from powerprof.statistics.scatter import effective_freedom

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
    """The statements that a verdict and its intervals permit; every report words this. Only `judge_claim` makes it.

    Attributes:
        verdict: The verdict, if the interval of the difference has the same direction.
        hint: The direction of an interval that excludes 0 without a verdict: the difference may be chance.
        bound: The largest possible absolute difference, for an interval that contains 0 and is no wider than `widest`;
            0 if all readings are equal.
        times: The interval of the ratio, if it has the direction of the verdict.
        unknown: Whether there is no interval.
        ends: The interval of the difference.
        is_typical: Whether verdict and `times` are those of typical pairs, because those of the mean are undecided.
    """

    verdict: Verdict = "inconclusive"
    hint: Verdict | None = None
    bound: float | None = None
    times: tuple[float, float] | None = None
    unknown: bool = False
    ends: tuple[float, float] | None = None
    is_typical: bool = False


def judge_claim(
    verdict: Verdict,
    ends: tuple[float, float] | None,
    ratio_ends: tuple[float, float] | None = None,
    *,
    widest: float = math.inf,
    typical_ends: tuple[float, float] | None = None,
) -> Claim:
    """Return the permitted statements about b − a, from the ends of the intervals of b − a and of b / a.

    `widest` is the largest useful bound, in the unit of b − a. `typical_ends` is the interval of the ratio of typical
    pairs, if their ranks decide. They count only if the mean is undecided and does not point in the other direction.
    """
    direction = "inconclusive" if ends is None else verdict_of(Interval(*ends, ""))
    typical = "inconclusive" if typical_ends is None else verdict_of(Interval(*typical_ends, ""), 1.0)
    if typical != "inconclusive" and verdict == "inconclusive" and direction in ("inconclusive", typical):
        return Claim(typical, times=typical_ends, ends=ends, is_typical=True)
    if ends is None:
        return Claim(unknown=True)
    if direction == "inconclusive":
        most = max(abs(end) for end in ends)
        return Claim(bound=most if most <= widest else None, ends=ends)
    if verdict != direction:
        return Claim(hint=direction, ends=ends)
    agrees = ratio_ends is not None and ratio_ends[0] > 0 and verdict_of(Interval(*ratio_ends, ""), 1.0) == verdict
    return Claim(verdict, times=ratio_ends if agrees else None, ends=ends)


UNKNOWN_CLAIM = judge_claim("inconclusive", None)


def _minimum_detectable_percent(tested: PairedTest, a_mean: float) -> float | None:
    """Return the smallest difference in percent of mean(a) that these pairs detect in four of five cases.

    It is (t[0.9925] + t[0.8]) standard errors, at the level of the primary metric. None if it is unknown.
    """
    reach = tested.reach(PRIMARY_LEVEL) + tested.reach(2 * POWER - 1)
    if tested.on_logs:
        return 100 * math.expm1(reach) if reach < math.log(WIDEST_FACTOR) else None
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
        ends, ratio = exp_ends(interval.low, tested.mean, interval.high), plain.b_mean / a_mean
        if ends is None:
            return msgspec.structs.replace(plain, pairs_count=len(a), p_value=tested.p_value)
        ratios = Interval(min(ends[0], ratio), max(ends[1], ratio), interval.method)
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


def compare_unpaired(
    a: Sequence[float], b: Sequence[float], *, seed: int, step: float | None = None, levels: float = RUN_LEVELS
) -> PairedResult:
    """Judge two saved runs, whose windows were not interleaved: beyond the assumed differences between runs.

    `step` is the resolution of the readings; None estimates it from the values. `levels` is the deviation of a run's
    level relative to that of the values.
    """
    if not a or not b:
        raise ValueError("two runs need values each")
    interval, p_value = measure_runs(a, b, step, levels)
    return msgspec.structs.replace(_result(a, b, interval, seed), p_value=p_value)


def measure_runs(
    a: Sequence[float], b: Sequence[float], step: float | None = None, levels: float = RUN_LEVELS
) -> tuple[Interval | None, float | None]:
    """Return the interval of mean(b) − mean(a) of two runs, and its p-value for equal conditions.

    Both are None for fewer than three windows.
    """
    if min(len(a), len(b)) < 3:
        return None, None
    difference, (error, _) = statistics.fmean(b) - statistics.fmean(a), welch_error(a, b, levels, step)
    p_value = student_p(difference / error, min(map(effective_freedom, (a, b)))) if error else 1.0
    return welch_interval(a, b, levels, step), p_value
