# SPDX-License-Identifier: Apache-2.0
"""Charts of metrics over settings or over time: one a metric, with one curve or two."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol, TypeVar

from markupsafe import Markup

from powerprof.experiment import phases
from powerprof.experiment.records import Comparison, LoadRun
from powerprof.model import text
from powerprof.model.records import Run, RunMetric, Window
from powerprof.report import labels
from powerprof.report.html import svg
from powerprof.report.html.page import clean
from powerprof.report.html.svg import SVG, Bar, Scale, from_zero, joined, step

Ends = tuple[float | None, float | None, float | None]
"""Mean, low, high."""


class _ChartedMetric(Protocol):
    @property
    def name(self) -> str: ...
    @property
    def unit(self) -> str: ...
    @property
    def kind(self) -> str: ...


M = TypeVar("M", bound=_ChartedMetric)


def one_curve(metric: RunMetric) -> list[Ends]:
    """The estimate of a metric as the only curve of its chart."""
    return [(metric.estimate.mean, metric.estimate.low, metric.estimate.high)]


def charts(
    names: Iterable[str],
    points: Sequence[tuple[str, Sequence[M]]],
    curves: Callable[[M], Sequence[Ends]],
    across: str = "",
) -> list[tuple[str, bool, Markup]]:
    """For each metric that some point has: its name, whether it is estimated, the drawing.

    `points` are (label, metrics) in their order, `curves` the values of a metric at a point, one a curve, `across`
    the title of the horizontal axis. One point is no course: then there is no chart.
    """
    drawn_charts = []
    for name in dict.fromkeys(names):
        same = [next((metric for metric in metrics if metric.name == name), None) for _, metrics in points]
        first = next((metric for metric in same if metric is not None), None)
        if first is None or len(points) < 2:
            continue
        values = [curves(metric) if metric is not None else None for metric in same]
        drawn = [
            [
                svg.SeriesPoint(clean(label, 20), *(each[number] if each else (None, None, None)))
                for (label, _), each in zip(points, values, strict=True)
            ]
            for number in range(len(curves(first)))
        ]
        label = labels.metric(name)
        drawn_charts.append((label, first.kind == "estimated", svg.series(drawn, first.unit, label, clean(across, 60))))
    return drawn_charts


# How windows are spread: a mark for each window's value, a row a condition, on one axis.

_ROW = 46
_MIDDLE = 29
# More marks than this in a row are a smear, and a page of a thousand windows would be large.
_MOST_MARKS = 120
_MOST_CHARTS = 6
# Marks this near to each other, in percent of the width, stand one above the other.
_NEAR = 1.8
_LEVELS = (0.0, -7.0, 7.0)

_CIRCLE = Markup('<circle class="one {}" cx="{:.2f}%" cy="{:.1f}" r="3.8"><title>{}</title></circle>')
_SQUARE = Markup(
    '<rect class="one {}" x="{:.2f}%" y="{:.1f}" width="7" height="7" transform="translate(-3.5 -3.5)">'
    "<title>{}</title></rect>"
)

Chart = tuple[str, bool, Markup]
"""The metric's label, whether it is estimated, the drawing."""


@dataclass(frozen=True)
class Strip:
    """The windows of one condition. The class `bar-b` has squares, the others circles; `low` and `high` are the mean's
    95 % interval where it is known.
    """

    name: str
    values: tuple[float, ...]
    look: str
    mean: float
    low: float | None = None
    high: float | None = None


def strips(rows: Sequence[Strip], unit: str, label: str) -> Markup:
    """All rows on one axis, which begins at 0 where that leaves the marks half of the width."""
    known = [value for row in rows for value in (*row.values, row.low, row.high) if value is not None]
    unit, factor = labels.prefix(unit, max(map(abs, known)))
    scale, ticks = _axis([value * factor for value in known])
    bottom = _ROW * len(rows)
    parts: list[Markup] = []
    for number, tick in enumerate(ticks):
        anchor = "start" if number == 0 else "end" if number == len(ticks) - 1 else "middle"
        parts.append(
            Markup(
                '<line class="grid" x1="{0:.2f}%" x2="{0:.2f}%" y1="16" y2="{1}"/>'
                '<text x="{0:.2f}%" y="{2}" text-anchor="{3}">{4}</text>'
            ).format(
                scale(tick), bottom, bottom + 14, anchor, f"{tick:,.6g}" + (f" {unit}" if tick == ticks[-1] else "")
            )
        )
    descriptions = []
    for number, row in enumerate(rows):
        parts += _row(row, number * _ROW, scale, factor, unit)
        values = [value * factor for value in row.values]
        descriptions.append(f"{row.name} {len(values)} windows from {min(values):.4g} to {max(values):.4g} {unit}")
    return SVG.format(f"{label}: {'; '.join(descriptions)}", bottom + 20, joined(parts))


def _axis(values: Sequence[float]) -> tuple[Scale, list[float]]:
    low, high = min(values), max(values)
    if low <= high / 2:
        scale, ticks = from_zero(values, 2, 97)
    else:
        distance = step((high - low) or high or 1.0, 3)
        first, last = math.floor(low / distance), max(math.ceil(high / distance), math.floor(low / distance) + 1)
        scale, ticks = Scale(first * distance, last * distance, 2, 97), [n * distance for n in range(first, last + 1)]
    return scale, ticks


def _row(row: Strip, top: float, scale: Scale, factor: float, unit: str) -> list[Markup]:
    parts = [Markup('<text x="0" y="{}">{}</text>').format(top + 12, row.name)]
    # Every so many of them in the order of size, so that what is drawn is spread as all are.
    drawn = sorted(enumerate(row.values, 1), key=lambda mark: mark[1])[:: math.ceil(len(row.values) / _MOST_MARKS)]
    last = dict.fromkeys(_LEVELS, -math.inf)
    for number, value in drawn:
        x = scale(value * factor)
        level = next((level for level in _LEVELS if x - last[level] >= _NEAR), min(last, key=lambda level: last[level]))
        last[level] = x
        title = f"{row.name}, window {number}: {value * factor:.4g} {unit}"
        mark = _SQUARE if row.look == "bar-b" else _CIRCLE
        parts.append(mark.format(row.look, x, top + _MIDDLE + level, title))
    if row.low is not None and row.high is not None:
        parts.append(
            Markup('<line class="bar" x1="{:.2f}%" x2="{:.2f}%" y1="{y}" y2="{y}"/>').format(
                scale(row.low * factor), scale(row.high * factor), y=top + 43
            )
        )
    x = scale(row.mean * factor)
    parts.append(
        Markup('<line class="bar" x1="{x:.2f}%" x2="{x:.2f}%" y1="{}" y2="{}"/>').format(top + 38, top + 45, x=x)
    )
    return parts


def of_comparison(record: Comparison) -> list[Chart]:
    """The judged metric first, then as the table has them."""
    of_metrics = []
    for metric in sorted(record.metrics, key=lambda metric: metric.name != record.verdict.metric):
        rows = []
        for side, condition, look in ((metric.a, record.a, "bar-a"), (metric.b, record.b, "bar-b")):
            rows += _strip(clean(condition.name, 60), side.values, look, (side.mean, side.ci95))
        if len(rows) == 2:
            label = labels.metric(metric.name)
            of_metrics.append((label, metric.kind == "estimated", strips(rows, metric.unit, label)))
    return of_metrics[:_MOST_CHARTS]


def of_run(record: Run, titles: Sequence[str], looks: dict[str, str]) -> list[Chart]:
    """Of a load its metrics; else C0, wake-ups and watts of each phase. `titles` and `looks` are of the phases."""
    of_metrics: list[Chart] = []
    if isinstance(record, LoadRun):
        for metric in record.metrics:
            ends, label = metric.estimate, labels.metric(metric.name)
            rows = _strip(clean(record.condition.name, 60), metric.values, "bar-a", (ends.mean, (ends.low, ends.high)))
            if rows:
                of_metrics.append((label, metric.kind == "estimated", strips(rows, metric.unit, label)))
        return of_metrics[:_MOST_CHARTS]
    meters = phases.run_meters(record.phases)
    estimated = record.energy_source is not None and not record.energy_source.metered
    for name, unit in (("c0_percent", "%"), ("wakeups_hz", "1/s"), ("watts", "W")):
        rows = []
        for title, phase in zip(titles, record.phases, strict=True):
            values = phases.host_watts(phase, meters) if name == "watts" else phases.window_values(phase.windows, name)
            rows += _strip(title, values, looks[phase.name])
        if rows:
            label = labels.metric(name)
            of_metrics.append((label, estimated and name == "watts", strips(rows, unit, label)))
    return of_metrics


def _strip(
    name: str,
    values: Iterable[float | None],
    look: str,
    mean: tuple[float | None, tuple[float | None, float | None] | None] = (None, None),
) -> list[Strip]:
    """One strip; none where there are not two windows to be spread."""
    known = tuple(value for value in values if value is not None)
    if len(known) < 2:
        return []
    low, high = mean[1] or (None, None)
    return [Strip(name, known, look, mean[0] if mean[0] is not None else sum(known) / len(known), low, high)]


# The windows of a record in the order of time, as bars as high as their C0.


def c0_bars(named: Iterable[tuple[Window, str, str, str]]) -> list[Bar]:
    """A bar for each (window, look, title, label) that says when it began."""
    times = [(start, *bar) for bar in named if (start := _seconds(bar[0])) is not None]
    first = min((start for start, *_ in times), default=0.0)
    bars: list[Bar] = []
    for start, window, look, title, label in sorted(times, key=lambda bar: bar[0]):
        # Two that took turns began together and were measured half of the time each: side by side that is as long.
        begin = max(start - first, bars[-1].end_s) if bars else start - first
        tooltip = f"{title}: C0 {text.number(window.c0_percent, 2, ' %')}"
        bars.append(Bar(begin, begin + (window.window_s or 0.0), window.c0_percent, look, tooltip, label))
    return bars


def _seconds(window: Window) -> float | None:
    try:
        return datetime.fromisoformat(window.started_at).timestamp()
    except ValueError:
        return None


# Differences with their intervals on one axis, a row a metric.

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
