# SPDX-License-Identifier: Apache-2.0
"""The spread of windows as charts: one mark per window, one row per condition or phase, and one axis."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import msgspec
from markupsafe import Markup

from powerprof.experiment import phases
from powerprof.experiment.records import Comparison, LoadRun
from powerprof.model.records import Run
from powerprof.report import labels
from powerprof.report.html.charts import place_charts
from powerprof.report.html.phases import choose_looks, title_of
from powerprof.report.html.svg import SVG, Scale, arrow, join_parts, linear_axis, round_step, tick_labels
from powerprof.report.html.text import clean_name

_ROW = 46
_MIDDLE = 29
# More marks in a row would overlap, and a page of a thousand windows would be large.
_MOST_MARKS = 120
_MOST_CHARTS = 6
# Marks nearer than this, in percent of the width, are drawn one above the other.
_NEAR = 1.8
_LEVELS = (0.0, -7.0, 7.0)

_CIRCLE = Markup('<circle class="one {}" cx="{:.2f}%" cy="{:.1f}" r="3.8"><title>{}</title></circle>')
_SQUARE = Markup(
    '<rect class="one {}" x="{:.2f}%" y="{:.1f}" width="7" height="7" transform="translate(-3.5 -3.5)">'
    "<title>{}</title></rect>"
)

Chart = tuple[str, bool, Markup]
"""The metric's label, whether it is estimated, the drawing."""


class Strip(msgspec.Struct, frozen=True):
    """The windows of one condition in a chart of their spread.

    Attributes:
        look: The class of the marks; `bar-b` has squares, others have circles.
        mean: The mean.
        low: The lower end of the 95 % interval of the mean, if it is known.
        high: The upper end.
    """

    name: str
    values: tuple[float, ...]
    look: str
    mean: float
    low: float | None = None
    high: float | None = None


def draw_strips(rows: Sequence[Strip], unit: str, label: str) -> Markup:
    """Return a chart of all rows on one axis.

    The axis begins at 0 if the marks then still have half of the width.
    """
    marks = [value for row in rows for value in row.values]
    # An interval of a few windows may be a hundred times as wide as their values.
    reach = (max(marks) - min(marks)) or max(map(abs, marks))
    least, most = min(marks) - reach, max(marks) + reach
    bounds = [min(max(end, least), most) for row in rows for end in (row.low, row.high) if end is not None]
    unit, factor = labels.choose_prefix(unit, max(map(abs, marks)))
    scale, ticks = _choose_axis([value * factor for value in (*marks, *bounds)])
    bottom = _ROW * len(rows)
    parts = [
        Markup('<line class="grid" x1="{0:.2f}%" x2="{0:.2f}%" y1="16" y2="{1}"/>').format(scale(tick), bottom)
        for tick in ticks
    ]
    parts += tick_labels(scale, ticks, unit, bottom + 14)
    descriptions = []
    for number, row in enumerate(rows):
        parts += _draw_row(row, number * _ROW, scale, factor, unit)
        values = [value * factor for value in row.values]
        ends = f"from {labels.format_significant(min(values))} to {labels.format_point(max(values), unit)}"
        descriptions.append(f"{row.name} {len(values)} windows {ends}")
    return SVG.format(f"{label}: {'; '.join(descriptions)}", bottom + 20, join_parts(parts))


def _choose_axis(values: Sequence[float]) -> tuple[Scale, list[float]]:
    low, high = min(values), max(values)
    if low <= high / 2:
        scale, ticks = linear_axis(values, 2, 97)
    else:
        distance = round_step((high - low) or high or 1.0, 3)
        first, last = math.floor(low / distance), max(math.ceil(high / distance), math.floor(low / distance) + 1)
        scale, ticks = Scale(first * distance, last * distance, 2, 97), [n * distance for n in range(first, last + 1)]
    return scale, ticks


def _draw_row(row: Strip, top: float, scale: Scale, factor: float, unit: str) -> list[Markup]:
    parts = [Markup('<text x="0" y="{}">{}</text>').format(top + 12, row.name)]
    # Every n-th window in the order of size, so that the drawn marks have the spread of all windows.
    drawn = sorted(enumerate(row.values, 1), key=lambda mark: mark[1])[:: math.ceil(len(row.values) / _MOST_MARKS)]
    last = dict.fromkeys(_LEVELS, -math.inf)
    for number, value in drawn:
        x = scale(value * factor)
        level = next((level for level in _LEVELS if x - last[level] >= _NEAR), min(last, key=lambda level: last[level]))
        last[level] = x
        title = f"{row.name}, window {number}: {labels.format_point(value * factor, unit)}"
        mark = _SQUARE if row.look == "bar-b" else _CIRCLE
        parts.append(mark.format(row.look, x, top + _MIDDLE + level, title))
    if row.low is not None and row.high is not None:
        low, high, y = row.low * factor, row.high * factor, top + 43
        parts.append(
            Markup('<line class="bar" x1="{:.2f}%" x2="{:.2f}%" y1="{y}" y2="{y}"/>').format(
                scale(low), scale(high), y=y
            )
        )
        parts += [
            arrow(scale(end), y, "dot", left=end == low)
            for end, beyond in ((low, low < scale.low), (high, high > scale.high))
            if beyond
        ]
    x = scale(row.mean * factor)
    parts.append(
        Markup('<line class="bar" x1="{x:.2f}%" x2="{x:.2f}%" y1="{}" y2="{}"/>').format(top + 38, top + 45, x=x)
    )
    return parts


def chart_comparison(record: Comparison) -> list[Chart]:
    """Return the charts of a comparison: the judged metric first, then the order of the table."""
    of_metrics = []
    for metric in sorted(record.metrics, key=lambda metric: metric.name != record.verdict.metric):
        rows = []
        for side, condition, look in ((metric.a, record.a, "bar-a"), (metric.b, record.b, "bar-b")):
            rows += _list_strips(clean_name(condition.name, 60), side.values, look, (side.mean, side.ci95))
        if len(rows) == 2:
            label = labels.metric_words(metric.name)
            of_metrics.append((label, metric.kind == "estimated", draw_strips(rows, metric.unit, label)))
    return of_metrics[:_MOST_CHARTS]


def draw_run_spread(run: Run) -> Markup:
    """Return the spread of the windows: the metrics of a load, else C0, wake-ups and watts of each phase."""
    return draw_spread(_chart_load(run) if isinstance(run, LoadRun) else _chart_phases(run))


def _chart_load(run: LoadRun) -> list[Chart]:
    of_metrics: list[Chart] = []
    for metric in run.metrics:
        ends, label = metric.estimate, labels.metric_words(metric.name)
        rows = _list_strips(
            clean_name(run.condition.name, 60), metric.values, "bar-a", (ends.mean, (ends.low, ends.high))
        )
        if rows:
            of_metrics.append((label, metric.kind == "estimated", draw_strips(rows, metric.unit, label)))
    return of_metrics[:_MOST_CHARTS]


def _chart_phases(run: Run) -> list[Chart]:
    of_metrics: list[Chart] = []
    meters, looks = phases.find_run_meters(run.phases), choose_looks(run)
    estimated = run.energy_source is not None and not run.energy_source.metered
    for name, unit in (("c0_percent", "%"), ("wakeups_hz", "1/s"), ("watts", "W")):
        rows = []
        for phase in run.phases:
            values = phases.host_watts(phase, meters) if name == "watts" else phases.window_values(phase.windows, name)
            rows += _list_strips(title_of(run, phase), values, looks[phase.name])
        if rows:
            label = labels.metric_words(name)
            of_metrics.append((label, estimated and name == "watts", draw_strips(rows, unit, label)))
    return of_metrics


_SPREAD = Markup(
    '<p class="muted">Each mark is a window. Below the marks: their mean, with its 95 % interval if it is known. Axes '
    "start at 0 unless that would hide the spread.</p>\n"
)


def draw_spread(of_metrics: Sequence[Chart]) -> Markup:
    """Return the charts of the spread of windows side by side; an empty text without any."""
    return _SPREAD + place_charts(of_metrics) if of_metrics else Markup()


def _list_strips(
    name: str,
    values: Iterable[float | None],
    look: str,
    mean: tuple[float | None, tuple[float | None, float | None] | None] = (None, None),
) -> list[Strip]:
    """Return one strip; none for fewer than two windows."""
    known = tuple(value for value in values if value is not None)
    if len(known) < 2:
        return []
    low, high = mean[1] or (None, None)
    return [Strip(name, known, look, mean[0] if mean[0] is not None else sum(known) / len(known), low, high)]
