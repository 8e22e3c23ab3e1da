# SPDX-License-Identifier: Apache-2.0
"""Differences with their intervals on one axis, a row a metric."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from powerprof import text
from powerprof.report.html.scales import Scale, from_zero
from powerprof.report.html.svg import SVG, joined

_GROUND = Markup('<rect class="ground" width="100%" height="18"/>')


@dataclass(frozen=True)
class DrawnInterval:
    """A difference in percent of A with its 95 % interval; ratios are 1 + percent / 100.

    The axis does not stretch to an interval that is `aside`: where it lies beyond, an arrow says so.
    """

    percent: float
    low: float
    high: float
    clear: bool
    aside: bool = False


@dataclass(frozen=True)
class IntervalAxis:
    """One axis for all rows of a table: percent, or B / A on a logarithmic scale where effects are large."""

    scale: Scale
    ticks: tuple[tuple[float, str], ...]
    ratios: bool


def interval_axis(intervals: Sequence[DrawnInterval]) -> IntervalAxis:
    """The axis that shows all clear differences, symmetrical about none.

    What says nothing may be wider than all that says something: it is cut off, and the axis is made for the others.
    """
    near = [interval for interval in intervals if not interval.aside] or list(intervals)
    shown = [interval for interval in near if interval.clear] or near
    largest = max((max(abs(interval.low), abs(interval.high)) for interval in shown), default=1.0) or 1.0
    if largest <= 60:
        scale, ticks = from_zero([largest], 50, 98)
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
    # Beyond × 20 an arrow says enough: the others would shrink to dots at "= A".
    end, middle = (10.0, 3.0) if extreme <= 10 else (20.0, 5.0)
    times = (1 / end, 1 / middle, 1.0, middle, end)
    return IntervalAxis(
        Scale(1 / end, end, 2, 98, logarithmic=True), tuple((ratio, _times(ratio)) for ratio in times), ratios=True
    )


def _times(ratio: float) -> str:
    if ratio == 1.0:
        return "= A"
    return f"×\u00a0{ratio:.0f}" if ratio > 1 else f"÷\u00a0{1 / ratio:.0f}"


def _axis_value(axis: IntervalAxis, percent: float) -> float:
    return 1 + percent / 100 if axis.ratios else percent


def interval_ticks(axis: IntervalAxis) -> Markup:
    """The axis' labels, for the head of the column."""
    parts = []
    for index, (value, label) in enumerate(axis.ticks):
        anchor = "start" if index == 0 else "end" if index == len(axis.ticks) - 1 else "middle"
        # Between the ends and the middle there is room only in a wide column.
        kind = "major" if index in (0, len(axis.ticks) // 2, len(axis.ticks) - 1) else "minor"
        parts.append(
            Markup('<text class="{}" x="{:.2f}%" y="12" text-anchor="{}">{}</text>').format(
                kind, axis.scale(value), anchor, label
            )
        )
    return SVG.format("axis: B relative to A", 16, joined(parts))


def interval_row(axis: IntervalAxis, interval: DrawnInterval, label: str) -> Markup:
    """A bar for the interval, a dot for the mean, a line where there is no difference."""
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
    for beyond, at, arrow in (
        (ends[0] < axis.scale.low, low, "M0 5 l-7 4 l7 4 z"),
        (ends[1] > axis.scale.high, high, "M0 5 l7 4 l-7 4 z"),
    ):
        if beyond:
            parts.append(
                Markup('<svg x="{:.2f}%" overflow="visible"><path class="dot {}" d="{}"/></svg>').format(
                    at, kind, arrow
                )
            )
    # The title is what a pointer over any of it shows.
    return SVG.format(label, 18, joined([Markup("<title>{}</title>").format(label), _GROUND, *parts]))
