# SPDX-License-Identifier: Apache-2.0
"""Several points measured in rounds, each once a round: which of them differ, whatever changed from round to round."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from powerprof.statistics.intervals import LEVEL, Interval, student_p, student_quantile, welch_error
from powerprof.statistics.scatter import step_of
from powerprof.statistics.verdicts import paired_difference, survivors

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
