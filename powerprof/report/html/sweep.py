# SPDX-License-Identifier: Apache-2.0
"""Charts of a sweep: energy per query over throughput, and each metric over the parameter."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import msgspec
from markupsafe import Markup

from powerprof.experiment.sweep_record import Sweep
from powerprof.model import text
from powerprof.report import labels
from powerprof.report.html.charts import draw_metrics, one_curve, place_charts
from powerprof.report.html.svg import SVG, Scale, draw_grid, join_parts, linear_axis, tick_labels
from powerprof.report.html.text import clean_name

_TOP, _BOTTOM, _LEFT, _RIGHT = 34, 300, 9, 97
# Labels right of this percentage are written to the left of their marks.
_FLIPPED_FROM = 70.0
_DOT = Markup('<circle class="mark a" cx="{:.2f}%" cy="{:.1f}" r="5"><title>{}</title></circle>')
_LABEL = Markup('<text class="{}" x="{:.2f}%" y="{:.1f}" dx="{}" text-anchor="{}">{}</text>')
_X_TITLE = Markup('<text class="axis" x="{}%" y="{}" text-anchor="end">queries per second</text>')


class TradeoffPoint(msgspec.Struct, frozen=True):
    """A value of the parameter with its queries per second and joules per query."""

    label: str
    queries_hz: float
    joules: float


def tradeoff(settings: Sequence[TradeoffPoint], parameter: str, kind: str) -> Markup:
    """Draw the chart; empty for fewer than two settings. `kind` is measured or estimated."""
    if len(settings) < 2:
        return Markup()
    unit, factor = labels.choose_prefix("J", max(abs(setting.joules) for setting in settings))
    down, down_ticks = linear_axis([setting.joules * factor for setting in settings], _BOTTOM, _TOP)
    across, across_ticks = linear_axis([setting.queries_hz for setting in settings], _LEFT, _RIGHT)
    parts = draw_grid(down, down_ticks, "")
    parts.append(Markup('<text class="axis" x="0" y="12">energy per query, {}, {}</text>').format(unit, kind))
    parts += _draw_x_axis(across, across_ticks)
    places = [(across(setting.queries_hz), down(setting.joules * factor)) for setting in settings]
    parts += [
        Markup('<line class="pair" x1="{:.2f}%" y1="{:.1f}" x2="{:.2f}%" y2="{:.1f}"/>').format(*one, *other)
        for one, other in pairwise(places)
    ]
    least = min(settings, key=lambda setting: setting.joules)
    most = max(settings, key=lambda setting: setting.queries_hz)
    for setting, (x, y) in zip(settings, places, strict=True):
        best_in = [*(["least energy"] if setting is least else []), *(["most queries"] if setting is most else [])]
        title = (
            f"{parameter} {setting.label}: {labels.format_significant(setting.queries_hz)} queries/s, "
            f"{labels.format_point(setting.joules * factor, unit)} {kind}"
        )
        if best_in:
            parts.append(Markup('<circle class="best" cx="{:.2f}%" cy="{:.1f}" r="9"/>').format(x, y))
        parts.append(_DOT.format(x, y, title))
        label = text.shorten(setting.label, 12) + (f": {' and '.join(best_in)}" if best_in else "")
        look, side = "named best" if best_in else "named", (-12, "end") if x > _FLIPPED_FROM else (12, "start")
        parts.append(_LABEL.format(look, x, y - (16 if best_in else 8), *side, label))
    what = f"{parameter} {least.label} uses least energy per query, {parameter} {most.label} does most queries"
    return SVG.format(f"energy per query over queries per second: {what}", _BOTTOM + 40, join_parts(parts))


def _draw_x_axis(scale: Scale, ticks: Sequence[float]) -> list[Markup]:
    return [*tick_labels(scale, ticks, "", _BOTTOM + 16), _X_TITLE.format(_RIGHT, _BOTTOM + 34)]


_CHART_METRICS = (
    *("joules_per_query", "queries_hz", "latency_p95_ms", "c0_percent", "c0_ms_per_query_server", "watts"),
    *("wakeups_per_query", "server_wakings_hz"),
)


def draw_charts(record: Sweep) -> Markup:
    """Draw each important metric over the parameter."""
    names = dict.fromkeys(metric.name for point in record.points for metric in point.metrics)
    points = [(str(point.value), point.metrics) for point in record.points]
    return place_charts(
        draw_metrics([name for name in names if name in _CHART_METRICS], points, one_curve, record.parameter)
    )


def draw_tradeoff(record: Sweep) -> Markup:
    """Draw energy per query over throughput for the points that have both."""
    settings, kind = [], "estimated"
    for point in record.points:
        known = {metric.name: metric for metric in point.metrics}
        joules, queries = known.get("joules_per_query"), known.get("queries_hz")
        if joules is None or queries is None or joules.estimate.mean is None or queries.estimate.mean is None:
            continue
        kind = joules.kind
        settings.append(TradeoffPoint(clean_name(point.value, 20), queries.estimate.mean, joules.estimate.mean))
    return tradeoff(settings, clean_name(record.parameter, 60), kind)
