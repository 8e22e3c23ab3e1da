# SPDX-License-Identifier: Apache-2.0
"""One chart of a whole sweep: energy per query over throughput, a mark a setting, the best of each marked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from markupsafe import Markup

from powerprof import text
from powerprof.report.html.scales import Scale, from_zero
from powerprof.report.html.svg import SVG, grid, joined
from powerprof.report.tables import labels

_TOP, _BOTTOM, _LEFT, _RIGHT = 34, 300, 9, 97
# A label that would leave the chart at the right is written to the left of its mark.
_FLIPPED_FROM = 70.0
_DOT = Markup('<circle class="mark a" cx="{:.2f}%" cy="{:.1f}" r="5"><title>{}</title></circle>')
_LABEL = Markup('<text class="{}" x="{:.2f}%" y="{:.1f}" dx="{}" text-anchor="{}">{}</text>')
_ACROSS = Markup('<text class="axis" x="{}%" y="{}" text-anchor="end">queries per second</text>')


@dataclass(frozen=True)
class TradeoffPoint:
    """One value of the parameter: queries per second and joules per query."""

    label: str
    queries_hz: float
    joules: float


def tradeoff(settings: Sequence[TradeoffPoint], parameter: str, kind: str) -> Markup:
    """The chart; nothing for fewer than two settings. `kind`: measured or estimated."""
    if len(settings) < 2:
        return Markup()
    unit, factor = labels.prefix("J", max(abs(setting.joules) for setting in settings))
    down, down_ticks = from_zero([setting.joules * factor for setting in settings], _BOTTOM, _TOP)
    across, across_ticks = from_zero([setting.queries_hz for setting in settings], _LEFT, _RIGHT)
    parts = grid(down, down_ticks, "")
    parts.append(Markup('<text class="axis" x="0" y="12">energy per query, {}, {}</text>').format(unit, kind))
    parts += _across(across, across_ticks)
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
            f"{parameter} {setting.label}: {setting.queries_hz:,.4g} queries/s, {setting.joules * factor:.3g} {unit}"
        )
        if best_in:
            parts.append(Markup('<circle class="best" cx="{:.2f}%" cy="{:.1f}" r="9"/>').format(x, y))
        parts.append(_DOT.format(x, y, title))
        label = text.cut(setting.label, 12) + (f": {' and '.join(best_in)}" if best_in else "")
        look, side = "named best" if best_in else "named", (-12, "end") if x > _FLIPPED_FROM else (12, "start")
        parts.append(_LABEL.format(look, x, y - (16 if best_in else 8), *side, label))
    what = f"{parameter} {least.label} uses least energy per query, {parameter} {most.label} does most queries"
    return SVG.format(f"energy per query over queries per second: {what}", _BOTTOM + 40, joined(parts))


def _across(scale: Scale, ticks: Sequence[float]) -> list[Markup]:
    parts = [
        Markup('<text x="{:.2f}%" y="{}" text-anchor="middle">{:,.6g}</text>').format(scale(tick), _BOTTOM + 16, tick)
        for tick in ticks
    ]
    return [*parts, _ACROSS.format(_RIGHT, _BOTTOM + 34)]
