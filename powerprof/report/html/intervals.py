# SPDX-License-Identifier: Apache-2.0
"""Differences with their intervals on one axis, one row per metric."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from markupsafe import Markup

from powerprof.model import text
from powerprof.report.html.svg import SVG, Scale, arrow, join_parts, linear_axis

_GROUND = Markup('<rect class="ground" width="100%" height="18"/>')


class DrawnInterval(msgspec.Struct, frozen=True):
    """A difference in percent of A with its 95 % interval; ratios are 1 + percent / 100.

    The axis does not extend to an interval that is `aside`: an arrow shows that it continues.
    """

    percent: float
    low: float
    high: float
    clear: bool
    aside: bool = False


class IntervalAxis(msgspec.Struct, frozen=True):
    """One axis for all rows of a table: percent, or B / A on a logarithmic scale for large effects."""

    scale: Scale
    ticks: tuple[tuple[float, str], ...]
    ratios: bool


def interval_axis(intervals: Sequence[DrawnInterval]) -> IntervalAxis:
    """Return the axis that shows all clear differences, symmetrical about zero.

    Inconclusive intervals may be wider than all clear ones: they are cut off.
    """
    near = [interval for interval in intervals if not interval.aside] or list(intervals)
    shown = [interval for interval in near if interval.clear] or near
    largest = max((max(abs(interval.low), abs(interval.high)) for interval in shown), default=1.0) or 1.0
    if largest <= 60:
        scale, ticks = linear_axis([largest], 50, 98)
        whole = Scale(-scale.high, scale.high, 2, 98)
        far = scale.high
        middle = ticks[len(ticks) // 2] if len(ticks) > 3 else far
        marks = [-far, -middle, 0.0, middle, far] if middle != far else [-far, 0.0, far]
        return IntervalAxis(
            whole,
            tuple((mark, text.signed(mark, 6).rstrip("0").rstrip(".") if mark else "0") for mark in marks),
            ratios=False,
        )
    ratios = [1 + end / 100 for interval in shown for end in (interval.low, interval.high)]
    extreme = max([*ratios, *(1 / ratio for ratio in ratios if ratio > 0.001)], default=2.0)
    # Beyond × 20 an arrow suffices: the other intervals would shrink to dots at "= A".
    end, middle = (10.0, 3.0) if extreme <= 10 else (20.0, 5.0)
    times = (1 / end, 1 / middle, 1.0, middle, end)
    return IntervalAxis(
        Scale(1 / end, end, 2, 98, logarithmic=True), tuple((ratio, _word_ratio(ratio)) for ratio in times), ratios=True
    )


def _word_ratio(ratio: float) -> str:
    if ratio == 1.0:
        return "= A"
    return f"×\u00a0{ratio:.0f}" if ratio > 1 else f"÷\u00a0{1 / ratio:.0f}"


def _axis_value(axis: IntervalAxis, percent: float) -> float:
    return 1 + percent / 100 if axis.ratios else percent


def interval_ticks(axis: IntervalAxis) -> Markup:
    """Return the labels of the axis, for the head of the column."""
    parts = []
    for index, (value, label) in enumerate(axis.ticks):
        anchor = "start" if index == 0 else "end" if index == len(axis.ticks) - 1 else "middle"
        # Only a wide column has room between the ends and the middle.
        kind = "major" if index in (0, len(axis.ticks) // 2, len(axis.ticks) - 1) else "minor"
        parts.append(
            Markup('<text class="{}" x="{:.2f}%" y="12" text-anchor="{}">{}</text>').format(
                kind, axis.scale(value), anchor, label
            )
        )
    return SVG.format("axis: B relative to A", 16, join_parts(parts))


def interval_row(axis: IntervalAxis, interval: DrawnInterval, label: str) -> Markup:
    """Return a bar for the interval, a dot for the mean and a line at no difference."""
    low, middle, high = (
        axis.scale(_axis_value(axis, value)) for value in (interval.low, interval.percent, interval.high)
    )
    none = axis.scale(1.0 if axis.ratios else 0.0)
    kind = "clear" if interval.clear else "open"
    parts = [
        Markup('<line class="tick" x1="{0:.2f}%" x2="{0:.2f}%" y1="0" y2="18"/>').format(axis.scale(value))
        for value, _ in axis.ticks
    ]
    parts.append(Markup('<line class="zero" x1="{0:.2f}%" x2="{0:.2f}%" y1="0" y2="18"/>').format(none))
    parts.append(Markup('<line class="bar {}" x1="{:.2f}%" x2="{:.2f}%" y1="9" y2="9"/>').format(kind, low, high))
    inside = axis.scale.low <= _axis_value(axis, interval.percent) <= axis.scale.high
    if inside:
        parts.append(Markup('<circle class="dot {}" cx="{:.2f}%" cy="9" r="4"/>').format(kind, middle))
    ends = _axis_value(axis, interval.low), _axis_value(axis, interval.high)
    for beyond, at, left in ((ends[0] < axis.scale.low, low, True), (ends[1] > axis.scale.high, high, False)):
        parts += [arrow(at, 9, f"dot {kind}", left=left)] if beyond else []
    # A pointer over any part shows the title.
    return SVG.format(label, 18, join_parts([Markup("<title>{}</title>").format(label), _GROUND, *parts]))
