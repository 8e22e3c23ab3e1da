# SPDX-License-Identifier: Apache-2.0
"""Intervals of counts: rates of events, and shares of samples."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from powerprof.statistics.distributions import gamma_quantile, student_quantile
from powerprof.statistics.intervals import LEVEL, Z95, Interval
from powerprof.statistics.scatter import serial_factor

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
    error = math.sqrt(max(variance, _EDGES) / len(blocks)) * serial_factor(blocks)
    reach = student_quantile(LEVEL, len(blocks) - 1) * error * len(blocks) / window_s
    rate = count / window_s
    return Interval(max(0.0, rate - reach), rate + reach, "blocks")


def _poisson(count: int, window_s: float) -> Interval:
    tail = (1 - LEVEL) / 2
    low = gamma_quantile(count, tail) if count else 0.0
    return Interval(low / window_s, gamma_quantile(count + 1, 1 - tail) / window_s, "poisson")


def difference_of_rates(a: float, of_a: Interval, b: float, of_b: Interval) -> Interval:
    """Return the interval of b − a from the intervals of both, which can be asymmetrical.

    G. Zou and A. Donner, Statistics in Medicine 27, 2008.
    """
    low = b - a - math.hypot(b - of_b.low, of_a.high - a)
    return Interval(low, b - a + math.hypot(of_b.high - b, a - of_a.low), "rates")


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
    share, square = count / whole, Z95 * Z95 / whole
    middle = (share + square / 2) / (1 + square)
    half = Z95 * math.sqrt((share * (1 - share) + square / 4) / whole) / (1 + square)
    percent, most = 100 * count / among, 100 * whole / among
    return Proportion(
        percent, min(max(middle - half, 0.0) * most, percent), max(min(middle + half, 1.0) * most, percent)
    )
