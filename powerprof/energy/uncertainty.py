# SPDX-License-Identifier: Apache-2.0
"""The uncertainty of a model as the set of possible pairs of idle watts and slope. Pure.

Three intervals are known: of the idle watts, of the slope (the power of a running CPU above an idle one) and of their
ratio. A server is in all three, so the possible pairs fill a polygon. A difference or a ratio between two loads uses
one pair for both. It is therefore known better than the watts themselves. Joules are linear in the pair, and the
quotient of two linear functions has its extremes at the corners.
"""

from __future__ import annotations

from collections.abc import Callable

from powerprof.model.records import EstimateRange

# Idle watts and slope.
Pair = tuple[float, float]


def find_corners(span: EstimateRange) -> list[Pair]:
    """Return the corners of the possible pairs.

    Without a consistent interval of the ratio these are the corners of the box.
    """
    box = [
        (span.idle_low_watts, span.slope_low_watts),
        (span.idle_high_watts, span.slope_low_watts),
        (span.idle_high_watts, span.slope_high_watts),
        (span.idle_low_watts, span.slope_high_watts),
    ]
    if span.odds_low is None or span.odds_high is None:
        return box
    low, high = span.odds_low, span.odds_high
    bounded = _clip_polygon(box, lambda pair: pair[0] - low * pair[1])
    return _clip_polygon(bounded, lambda pair: high * pair[1] - pair[0]) or box


def _clip_polygon(polygon: list[Pair], inside: Callable[[Pair], float]) -> list[Pair]:
    """Return the part of a convex polygon in which a linear function is not below 0 (Sutherland and Hodgman)."""
    kept: list[Pair] = []
    for number, here in enumerate(polygon):
        before = polygon[number - 1]
        this, last = inside(here), inside(before)
        if (this >= 0) != (last >= 0):
            part = last / (last - this)
            kept.append((before[0] + part * (here[0] - before[0]), before[1] + part * (here[1] - before[1])))
        if this >= 0:
            kept.append(here)
    return kept


def bound_over_range(span: EstimateRange, of: Callable[[float, float], float]) -> tuple[float, float]:
    """Return the least and the largest value of a function of idle watts and slope: joules, or a quotient of joules."""
    values = [of(idle, slope) for idle, slope in find_corners(span)]
    return min(values), max(values)


def bound_difference(low: float, high: float, span: EstimateRange) -> tuple[float, float]:
    """Return a difference's interval with the doubt of the model's slope. Idle watts cancel in a difference."""
    if span.slope_watts <= 0:
        return low, high
    scales = (span.slope_low_watts / span.slope_watts, span.slope_high_watts / span.slope_watts)
    return min(low * scale for scale in scales), max(high * scale for scale in scales)


def bound_ratio(before_watts: float, after_watts: float, span: EstimateRange) -> tuple[float, float] | None:
    """Return the interval of the ratio of two estimates of one host, with one model for both. None if it is unknown."""
    if span.slope_watts <= 0:
        return None
    before, after = ((watts - span.idle_watts) / span.slope_watts for watts in (before_watts, after_watts))
    if min(before, after) < 0 or span.idle_low_watts <= 0:
        return None
    return bound_over_range(span, lambda idle, slope: (idle + slope * after) / (idle + slope * before))
