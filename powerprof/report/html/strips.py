# SPDX-License-Identifier: Apache-2.0
"""How windows are spread: a mark for each window's value, a row a condition, on one axis."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from powerprof.experiment.judge import phases
from powerprof.experiment.records import Comparison, LoadRun
from powerprof.records import Run
from powerprof.report.html.figures import clean
from powerprof.report.html.scales import Scale, from_zero, step
from powerprof.report.html.svg import SVG, joined
from powerprof.report.tables import labels

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
            values = phases.host_watts(phase, meters) if name == "watts" else phases.values(phase.windows, name)
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
