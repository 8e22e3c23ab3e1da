# SPDX-License-Identifier: Apache-2.0
"""How well the rate of counted events is known: by the scatter of blocks, by Poisson where few were counted."""

from __future__ import annotations

import math
from collections.abc import Sequence

from powerprof.statistics.intervals import LEVEL, Interval, student_quantile
from powerprof.statistics.scatter import serial_factor

# Blocks of a window. A regular timer scatters by its place in a block alone, which weighs more in many short blocks.
BLOCKS = 10
# Below these the scatter of the blocks is not known.
_FEW_EVENTS, _FEW_BLOCKS = 10, 6
# Of a count whose first and last event fall anywhere in a block: the variance of a regular event's count is at most
# 1/4, that of two edges 1/6.
_EDGES = 1 / 6


def rate_interval(count: int, blocks: Sequence[float], window_s: float) -> Interval:
    """The interval of the rate, per second, of `count` events in `window_s`, of which equal parts had `blocks`.

    Regular timers are known better than by Poisson's law, bursts worse: the scatter of the blocks says which, with
    their correlation. Ten events at least are needed for that; fewer have Poisson's exact interval (F. Garwood,
    Biometrika 28, 1936).
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
    """The interval of b − a from those of both, which need not be symmetrical (G. Zou and A. Donner, Statistics in
    Medicine 27, 2008)."""
    low = b - a - math.hypot(b - of_b.low, of_a.high - a)
    return Interval(low, b - a + math.hypot(of_b.high - b, a - of_a.low), "rates")
