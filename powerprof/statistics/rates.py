# SPDX-License-Identifier: Apache-2.0
"""Compute intervals of counted rates, pooled differences and proportions."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from powerprof.statistics.intervals import (
    LEVEL,
    Interval,
    effective_freedom,
    rounding,
    serial_factor,
    step_of,
    student_p,
    student_quantile,
)

# Blocks of a window. A regular timer scatters only by its position in a block, which has more weight in many short
# blocks.
BLOCKS = 10
# With less than this the scatter of the blocks is unknown.
_FEW_EVENTS, _FEW_BLOCKS = 10, 6
# The variance of a regular event's count is at most 1/4, that of two edges anywhere in a block 1/6.
_EDGES = 1 / 6


def rate_interval(count: int, blocks: Sequence[float], window_s: float) -> Interval:
    """Return the interval of the rate, per second, of `count` events in `window_s` with equal `blocks`.

    Regular timers are more precise than Poisson's law, bursts less: the scatter and the correlation of the blocks show
    that. Fewer than ten events get Poisson's exact interval (F. Garwood, Biometrika 28, 1936).
    """
    if count < _FEW_EVENTS or len(blocks) < _FEW_BLOCKS:
        return _poisson(count, window_s)
    mean = sum(blocks) / len(blocks)
    variance = sum((block - mean) ** 2 for block in blocks) / (len(blocks) - 1)
    error = math.sqrt(max(variance, _EDGES) / len(blocks)) * serial_factor(blocks, in_a_row=True)
    reach = student_quantile(LEVEL, len(blocks) - 1) * error * len(blocks) / window_s
    rate = count / window_s
    return Interval(max(0.0, rate - reach), rate + reach, "blocks")


def _poisson(count: int, window_s: float) -> Interval:
    from scipy import special

    tail = (1 - LEVEL) / 2
    low = float(special.gammaincinv(count, tail)) if count else 0.0
    return Interval(low / window_s, float(special.gammaincinv(count + 1, 1 - tail)) / window_s, "poisson")


def difference_of_rates(a: float, of_a: Interval, b: float, of_b: Interval) -> Interval:
    """Return the interval of b − a from the intervals of both, which can be asymmetrical.

    G. Zou and A. Donner, Statistics in Medicine 27, 2008.
    """
    low = b - a - math.hypot(b - of_b.low, of_a.high - a)
    return Interval(low, b - a + math.hypot(of_b.high - b, a - of_a.low), "rates")


# Two conditions over several settings with a few windows each: the common difference.

_MOST = 200.0
Stratum = tuple[Sequence[float], Sequence[float]]


@dataclass(frozen=True)
class Pooled:
    """The mean of b − a over the settings, in percent of the mean of both; `p_value` is for no difference."""

    a_mean: float
    b_mean: float
    percent: float
    interval: Interval | None
    p_value: float | None


def pool_differences(strata: Sequence[Stratum]) -> Pooled | None:
    """Pool 200 (b − a) / (a + b), from −200 to 200, over the settings with equal weight.

    Unlike a ratio, that is defined if one of the two is 0. A setting with 0 in both counts as 0. The error is that of a
    mean of independent differences, with the degrees of freedom of Welch and Satterthwaite over all settings. None if
    no setting has values of both.
    """
    known = [(list(a), list(b)) for a, b in strata if a and b]
    if not known:
        return None
    each, variance, spread, sparse = [], 0.0, 0.0, 0.0
    for a, b in known:
        centre = (statistics.fmean(a) + statistics.fmean(b)) / 2
        each.append(100 * (statistics.fmean(b) - statistics.fmean(a)) / centre if centre else 0.0)
        least = rounding(step_of(a, b))
        for values in (a, b):
            if len(values) < 2 or not centre:
                continue
            spread_of = max(statistics.stdev(values) * serial_factor(values, in_a_row=True), least)
            part = (spread_of * 100 / centre) ** 2 / len(values)
            variance += part
            spread += part**2 / (len(values) - 1)
            sparse += part**2 / effective_freedom(values)
    count = len(known)
    mean, error = statistics.fmean(each), math.sqrt(variance) / count
    interval, p_value = None, None
    if all(min(len(a), len(b)) >= 2 for a, b in known):
        if error == 0:
            interval, p_value = Interval(mean, mean, "constant"), 1.0
        else:
            freedom = variance**2 / spread
            reach = student_quantile(LEVEL, freedom) * error
            interval = Interval(max(mean - reach, -_MOST), min(mean + reach, _MOST), "welch")
            p_value = student_p(mean / error, variance**2 / sparse)
    return Pooled(
        a_mean=statistics.fmean(statistics.fmean(a) for a, _ in known),
        b_mean=statistics.fmean(statistics.fmean(b) for _, b in known),
        percent=mean,
        interval=interval,
        p_value=p_value,
    )


# Shares of samples: a percentage and its interval.

_Z95 = 1.959964


class Proportion(NamedTuple):
    """A share and its 95 % interval in percent: `low_percent` <= `percent` <= `high_percent` <= 100."""

    percent: float
    low_percent: float
    high_percent: float


def proportion(count: int, whole: int, of: int | None = None) -> Proportion:
    """Return the share of `count` in `of`; `count` was found among `whole` samples, which are a part of `of`.

    The interval is the score interval (E. B. Wilson, JASA 22, 1927), which is valid near 0 and 100 too. For all or none
    of the samples, the share is exactly the end of the interval. Without samples the result is 0, from 0 to 100.
    """
    among = whole if of is None else of
    if not whole:
        return Proportion(0.0, 0.0, 100.0)
    share, square = count / whole, _Z95 * _Z95 / whole
    middle = (share + square / 2) / (1 + square)
    half = _Z95 * math.sqrt((share * (1 - share) + square / 4) / whole) / (1 + square)
    percent, most = 100 * count / among, 100 * whole / among
    return Proportion(
        percent, min(max(middle - half, 0.0) * most, percent), max(min(middle + half, 1.0) * most, percent)
    )
