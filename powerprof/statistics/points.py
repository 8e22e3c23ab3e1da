# SPDX-License-Identifier: Apache-2.0
"""Compare points that are measured in rounds, independent of changes between the rounds."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import combinations
from statistics import fmean

import msgspec
from msgspec.structs import replace

from powerprof.statistics.intervals import Interval, exp_ends
from powerprof.statistics.pairs import INDEPENDENT, measure_difference
from powerprof.statistics.scatter import step_of
from powerprof.statistics.verdicts import measure_runs, survivors

FEWEST_ROUNDS = 3
# Of a sweep, which has no other verdicts: at most one in forty sweeps of equal points has a false difference.
SWEEP_LEVEL = 0.98


class PointPair(msgspec.Struct, frozen=True):
    """Two points by index; `percent` is the difference of the second to the first. None for unknown figures.

    `interval` is of `percent` for this pair alone. `p_value` is for no difference.
    """

    first: int
    second: int
    percent: float | None = None
    interval: Interval | None = None
    p_value: float | None = None


def compare_points(points: Sequence[Mapping[int, float]], *, in_rounds: bool = True) -> list[PointPair]:
    """Compare every two points, each given as values by round.

    Points are compared by their difference within each round, so changes between rounds have no effect, nor has the
    scatter of other points. Positive values are compared by ratios. Points that are not `in_rounds` are judged like
    saved runs.
    """
    compare = _compare if in_rounds else _compare_runs
    pairs = []
    step = step_of(*(list(point.values()) for point in points))
    for first, second in combinations(range(len(points)), 2):
        both = sorted(points[first].keys() & points[second].keys())
        a, b = ([points[place][number] for number in both] for place in (first, second))
        pairs.append(compare(first, second, a, b, step) if len(both) >= FEWEST_ROUNDS else PointPair(first, second))
    return pairs


def _compare(first: int, second: int, a: Sequence[float], b: Sequence[float], step: float) -> PointPair:
    """Compare two points; `step` is the resolution of the values."""
    # Rounds run forwards and backwards, so a drift alternates in the differences.
    tested = measure_difference(a, b, step, INDEPENDENT)
    tested = replace(tested, lognormal=None)  # Points are compared by their typical ratio.
    base, interval = abs(fmean(a)), tested.interval
    if tested.on_logs:
        ends, percent = exp_ends(interval.low, tested.mean, interval.high), 100 * math.expm1(tested.mean)
        found = None if ends is None else Interval(100 * (ends[0] - 1), 100 * (ends[1] - 1), interval.method)
        return PointPair(first, second, percent, found, tested.p_value)
    if not base:
        return PointPair(first, second, p_value=tested.p_value)
    low, percent, high = (100 * value / base for value in (interval.low, tested.mean, interval.high))
    return PointPair(first, second, percent, Interval(low, high, interval.method), tested.p_value)


def _compare_runs(first: int, second: int, a: Sequence[float], b: Sequence[float], step: float) -> PointPair:
    """Compare two points whose windows do not show how far their levels scatter."""
    interval, p_value = measure_runs(a, b, step)
    base = abs(fmean(a))
    if not base or interval is None:
        return PointPair(first, second, p_value=p_value)
    low, percent, high = (100 * value / base for value in (interval.low, fmean(b) - fmean(a), interval.high))
    return PointPair(first, second, percent, Interval(low, high, interval.method), p_value)


def which_differ(p_values: Sequence[float | None]) -> list[bool]:
    """Return which pairs of points differ by Holm's test over all of them."""
    return survivors(p_values, SWEEP_LEVEL)
