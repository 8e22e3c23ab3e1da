# SPDX-License-Identifier: Apache-2.0
"""What the model does not know, taken together: which pairs of idle watts and slope are possible. Pure.

Three intervals are known: of the idle watts, of the slope (what a running CPU draws above an idle one) and of their
ratio. A server lies in all three, so the pairs that are possible fill a polygon. A difference or a ratio between two
loads is judged with one pair for both, never with one end for one of them and the other end for the other: that is why
it is known better than the watts themselves. Joules are linear in the pair, and the quotient of two linear functions
has its extremes where they have theirs, so that the corners are enough.
"""

from __future__ import annotations

from collections.abc import Callable

from powerprof.records import EstimateRange

# Idle watts and slope.
Pair = tuple[float, float]


def corners(span: EstimateRange) -> list[Pair]:
    """The corners of what is possible; those of the box where the ratio's interval is unknown or contradicts it."""
    box = [
        (span.idle_low_watts, span.slope_low_watts),
        (span.idle_high_watts, span.slope_low_watts),
        (span.idle_high_watts, span.slope_high_watts),
        (span.idle_low_watts, span.slope_high_watts),
    ]
    if span.odds_low is None or span.odds_high is None:
        return box
    low, high = span.odds_low, span.odds_high
    cut = _clipped(box, lambda pair: pair[0] - low * pair[1])
    return _clipped(cut, lambda pair: high * pair[1] - pair[0]) or box


def _clipped(polygon: list[Pair], inside: Callable[[Pair], float]) -> list[Pair]:
    """The part of a convex polygon where a linear function is not below 0 (Sutherland and Hodgman)."""
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


def ends(span: EstimateRange, of: Callable[[float, float], float]) -> tuple[float, float]:
    """The least and the most that a function of idle watts and slope can be: joules, or a quotient of joules."""
    values = [of(idle, slope) for idle, slope in corners(span)]
    return min(values), max(values)
