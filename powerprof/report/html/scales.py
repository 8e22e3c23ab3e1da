# SPDX-License-Identifier: Apache-2.0
"""Axes: where a value lies, in percent of the width or in pixels of the height, and where the ticks are."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Scale:
    """A linear or logarithmic axis from `low` to `high`, drawn from `start` to `end`."""

    low: float
    high: float
    start: float
    end: float
    logarithmic: bool = False

    def __call__(self, value: float) -> float:
        """The place of a value, kept within the axis."""
        low, high, at = self.low, self.high, value
        if self.logarithmic:
            low, high, at = math.log(low), math.log(high), math.log(max(value, self.low))
        share = (at - low) / (high - low) if high > low else 0.5
        return self.start + (self.end - self.start) * min(1.0, max(0.0, share))


def step(span: float, count: int = 4) -> float:
    """A round distance (1, 2 or 5 times a power of ten) that cuts `span` in about `count` parts."""
    if span <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(span / count))
    return next(power * factor for factor in (1, 2, 5, 10) if power * factor * count >= span * 0.999)


def from_zero(values: Iterable[float], start: float, end: float) -> tuple[Scale, list[float]]:
    """A linear axis from 0 (or the lowest value below it) and its ticks."""
    known = list(values)
    low, high = min(0.0, *known), max(known, default=0.0)
    distance = step((high - low) or 1.0)
    low, high = math.floor(low / distance) * distance, math.ceil((high or distance) / distance) * distance
    count = round((high - low) / distance)
    return Scale(low, high, start, end), [low + distance * index for index in range(count + 1)]


def by_powers(values: Iterable[float], start: float, end: float) -> tuple[Scale, list[float]]:
    """A logarithmic axis around positive values, with ticks at powers of ten."""
    known = list(values)
    low, high = math.floor(math.log10(min(known))), math.ceil(math.log10(max(known)))
    if low == high:
        high += 1
    return Scale(10.0**low, 10.0**high, start, end, logarithmic=True), [10.0**power for power in range(low, high + 1)]
