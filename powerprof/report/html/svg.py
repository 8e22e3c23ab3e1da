# SPDX-License-Identifier: Apache-2.0
"""Charts as inline SVG.

Widths are percentages, so that a chart fits a phone and paper without a script. Colours are classes, so that light,
dark and print share one drawing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import pairwise

import msgspec
from markupsafe import Markup

from powerprof.model import text
from powerprof.report import labels


class Scale(msgspec.Struct, frozen=True):
    """A linear or logarithmic axis from the values `low` to `high`, drawn from `start` to `end`."""

    low: float
    high: float
    start: float
    end: float
    logarithmic: bool = False

    def __call__(self, value: float) -> float:
        """Return the place of a value, limited to the axis."""
        low, high, at = self.low, self.high, value
        if self.logarithmic:
            low, high, at = math.log(low), math.log(high), math.log(max(value, self.low))
        share = (at - low) / (high - low) if high > low else 0.5
        return self.start + (self.end - self.start) * min(1.0, max(0.0, share))


def round_step(span: float, count: int = 4) -> float:
    """Return a round distance (1, 2 or 5 times a power of ten) that divides `span` into about `count` parts."""
    if span <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(span / count))
    return next(power * factor for factor in (1, 2, 5, 10) if power * factor * count >= span * 0.999)


def linear_axis(values: Iterable[float], start: float, end: float) -> tuple[Scale, list[float]]:
    """Return a linear axis from 0 (or from the lowest negative value) and its ticks."""
    known = list(values)
    low, high = min(0.0, *known), max(known, default=0.0)
    distance = round_step((high - low) or 1.0)
    low, high = math.floor(low / distance) * distance, math.ceil((high or distance) / distance) * distance
    count = round((high - low) / distance)
    return Scale(low, high, start, end), [low + distance * index for index in range(count + 1)]


def logarithmic_axis(values: Iterable[float], start: float, end: float) -> tuple[Scale, list[float]]:
    """Return a logarithmic axis around positive values, with ticks at powers of ten."""
    known = list(values)
    low, high = math.floor(math.log10(min(known))), math.ceil(math.log10(max(known)))
    if low == high:
        high += 1
    return Scale(10.0**low, 10.0**high, start, end, logarithmic=True), [10.0**power for power in range(low, high + 1)]


SVG = Markup('<svg role="img" aria-label="{}" width="100%" height="{}">{}</svg>')
_LOG_FROM = 30  # a larger ratio of highest to lowest value would hide one of the two on a linear axis


def join_parts(parts: Sequence[Markup]) -> Markup:
    """Return the parts as one."""
    return Markup().join(parts)


def draw_grid(scale: Scale, ticks: Sequence[float], unit: str) -> list[Markup]:
    """Return lines at the ticks of a vertical axis, with their values; the last has the unit."""
    parts = []
    for tick in ticks:
        y = scale(tick)
        parts.append(Markup('<line class="grid" x1="0" x2="100%" y1="{0:.1f}" y2="{0:.1f}"/>').format(y))
        label = f"{tick:,.6f}".rstrip("0").rstrip(".") if abs(tick) >= 1e-5 or not tick else f"{tick:g}"
        last = unit if tick == ticks[-1] else ""
        parts.append(Markup('<text x="0" y="{:.1f}">{} {}</text>').format(y - 4, label, last))
    return parts


# The narrowest chart, on a phone, and the width of a digit, in pixels.
_NARROWEST, _DIGIT = 320.0, 7.0


def tick_labels(scale: Scale, ticks: Sequence[float], unit: str, y: float) -> list[Markup]:
    """Return the values below a horizontal axis; the last has the unit. Values without room on a phone are left out."""
    parts, free = [], 0.0
    last = f"{ticks[-1]:,.6g} {unit}".strip()
    end = scale(ticks[-1]) / 100 * _NARROWEST - _DIGIT * (len(last) + 1)
    for number, tick in enumerate(ticks):
        label = last if number == len(ticks) - 1 else f"{tick:,.6g}"
        anchor, back = ("start", 0.0) if number == 0 else ("end", 1.0) if label is last else ("middle", 0.5)
        begin = scale(tick) / 100 * _NARROWEST - back * _DIGIT * len(label)
        if label is not last and (begin < free or begin + _DIGIT * len(label) > end):
            continue
        free = begin + _DIGIT * (len(label) + 1)
        parts.append(
            Markup('<text x="{:.2f}%" y="{:g}" text-anchor="{}">{}</text>').format(scale(tick), y, anchor, label)
        )
    return parts


def arrow(x: float, y: float, look: str, *, left: bool) -> Markup:
    """Return an arrow at the end of an axis: the interval continues."""
    shape = f"M0 {y - 4:g} l{-7 if left else 7} 4 l{7 if left else -7} 4 z"
    return Markup('<svg x="{:.2f}%" overflow="visible"><path class="{}" d="{}"/></svg>').format(x, look, shape)


def _mark(arm: str, x: float, y: float, title: str) -> Markup:
    # A and B also differ in shape, because colour is lost on paper and for some readers.
    if arm == "a":
        return Markup('<circle class="mark a" cx="{:.2f}%" cy="{:.1f}" r="4.5"><title>{}</title></circle>').format(
            x, y, title
        )
    return Markup(
        '<rect class="mark b" x="{:.2f}%" y="{:.1f}" width="9" height="9" transform="translate(-4.5 -4.5)">'
        "<title>{}</title></rect>"
    ).format(x, y, title)


def draw_pairs(a: Sequence[float | None], b: Sequence[float | None], unit: str, names: tuple[str, str]) -> Markup:
    """Return a chart of A and B in each pair, joined by a line, in the order of time.

    The axis is logarithmic if the values are far apart.
    """
    both = [(x, y) for x, y in zip(a, b, strict=False) if x is not None and y is not None]
    values = [value for pair in both for value in pair]
    if not values:
        return Markup()
    unit, factor = labels.choose_prefix(unit, max(map(abs, values)))
    both = [(x * factor, y * factor) for x, y in both]
    values = [value * factor for value in values]
    far = min(values) > 0 and max(values) / min(values) >= _LOG_FROM
    scale, ticks = (logarithmic_axis if far else linear_axis)(values, 212, 18)
    parts = draw_grid(scale, ticks, f"{unit}, logarithmic" if far else unit)
    for index, (x, y) in enumerate(both):
        at = 12 + 86 * (index + 0.5) / len(both)
        parts.append(
            Markup('<line class="pair" x1="{0:.2f}%" x2="{0:.2f}%" y1="{1:.1f}" y2="{2:.1f}"/>').format(
                at, scale(x), scale(y)
            )
        )
        parts += [
            _mark(arm, at, scale(value), f"pair {index + 1}, {name}: {labels.format_point(value, unit)}")
            for arm, value, name in (("a", x, names[0]), ("b", y, names[1]))
        ]
        if len(both) <= 24 or index % 5 == 4:
            parts.append(Markup('<text x="{:.2f}%" y="232" text-anchor="middle">{}</text>').format(at, index + 1))
    return SVG.format(f"{len(both)} pairs of {names[0]} and {names[1]} in {unit}", 238, join_parts(parts))


class BarShare(msgspec.Struct, frozen=True):
    """A part of a bar. Its class is c0, poll, or s0 to s5 from the shallowest idle state."""

    name: str
    percent: float
    look: str


def draw_state_bar(shares: Sequence[BarShare], name: str) -> Markup:
    """Return one bar of 100 %."""
    parts, at = [], 0.0
    for share in shares:
        width = max(0.0, min(share.percent, 100 - at))
        parts.append(
            Markup(
                '<rect class="state {}" x="{:.3f}%" y="1" width="{:.3f}%" height="26"><title>{} {:.2f} %</title></rect>'
            ).format(share.look, at, width, share.name, share.percent)
        )
        if width > 4 + 1.6 * len(share.name):
            parts.append(
                Markup('<text class="in {}" x="{:.3f}%" y="19" dx="7">{}</text>').format(share.look, at, share.name)
            )
        at += width
    description = ", ".join(f"{share.name} {share.percent:.2f} %" for share in shares)
    return SVG.format(f"{name}: {description}", 28, join_parts(parts))


class Bar(msgspec.Struct, frozen=True):
    """A window on the time axis: seconds since the first window, and the value that is its height."""

    start_s: float
    end_s: float
    value: float | None
    look: str
    title: str
    label: str = ""


def draw_course(bars: Sequence[Bar], unit: str) -> Markup:
    """Return a chart of windows over time, as high as their values. Drift and disturbed windows are visible in it."""
    values = [bar.value for bar in bars if bar.value is not None]
    if not bars or not values:
        return Markup()
    scale, ticks = linear_axis(values, 132, 18)
    length = max(bar.end_s for bar in bars) or 1.0
    across = Scale(0, length, 9, 99.5)
    parts = draw_grid(scale, ticks, unit)
    for bar in bars:
        left, right = across(bar.start_s), across(bar.end_s)
        top = scale(bar.value) if bar.value is not None else 132.0
        parts.append(
            Markup(
                '<rect class="{}" x="{:.3f}%" y="{:.1f}" width="{:.3f}%" height="{:.1f}"><title>{}</title></rect>'
            ).format(bar.look, left, top, max(0.2, right - left), max(1.0, 132 - top), bar.title)
        )
        if bar.label and right - left > 2.2:
            parts.append(
                Markup('<text x="{:.3f}%" y="146" text-anchor="middle">{}</text>').format((left + right) / 2, bar.label)
            )
    minutes = length >= 180
    _, marks = linear_axis([length / 60 if minutes else length], 0, 1)
    for mark in marks:
        seconds = mark * 60 if minutes else mark
        if seconds <= length:
            anchor = "end" if across(seconds) > 94 else "middle"
            parts.append(
                Markup('<text x="{:.2f}%" y="162" text-anchor="{}">{:g} {}</text>').format(
                    across(seconds), anchor, mark, "min" if minutes else "s"
                )
            )
    return SVG.format(f"{len(bars)} windows over {length:.0f} s", 168, join_parts(parts))


class SeriesPoint(msgspec.Struct, frozen=True):
    """A value with its interval at one setting; `None` if nothing was measured there."""

    label: str
    mean: float | None
    low: float | None
    high: float | None


def draw_series(arms: Sequence[Sequence[SeriesPoint]], unit: str, title: str, across: str = "") -> Markup:
    """Return a chart of one or two conditions over the settings of a parameter.

    Settings have equal distances, because they often double. Each condition has a point at each setting. `across` is
    the title of the horizontal axis.
    """
    every = [point for points in arms for point in points]
    known = [value for point in every for value in (point.mean, point.low, point.high) if value is not None]
    if not any(point.mean is not None for point in every):
        return Markup()
    unit, factor = labels.choose_prefix(unit, max(map(abs, known)))
    scale, ticks = linear_axis([value * factor for value in known], 132, 18)
    parts = draw_grid(scale, ticks, unit)
    settings = arms[0]
    places = [14 + 84 * (index + 0.5) / len(settings) for index in range(len(settings))]
    for arm, points in zip("ab", arms, strict=False):
        parts += _curve(arm, places, points, scale, factor, unit)
    apart = 1 + len(settings) // 12
    parts += [
        Markup('<text x="{:.2f}%" y="150" text-anchor="middle">{}</text>').format(x, text.shorten(point.label, 8))
        for index, (x, point) in enumerate(zip(places, settings, strict=True))
        if index % apart == 0
    ]
    if across:
        parts.append(Markup('<text class="axis" x="98%" y="166" text-anchor="end">{}</text>').format(across))
    return SVG.format(f"{title} at {len(settings)} settings", 172 if across else 156, join_parts(parts))


def _curve(
    arm: str, places: Sequence[float], points: Sequence[SeriesPoint], scale: Scale, factor: float, unit: str
) -> list[Markup]:
    """Return a mark and an interval at each setting, joined by lines."""
    parts = []
    drawn = [(x, point) for x, point in zip(places, points, strict=True) if point.mean is not None]
    for (x1, before), (x2, after) in pairwise(drawn):
        parts.append(
            Markup('<line class="pair" x1="{:.2f}%" y1="{:.1f}" x2="{:.2f}%" y2="{:.1f}"/>').format(
                x1, scale((before.mean or 0.0) * factor), x2, scale((after.mean or 0.0) * factor)
            )
        )
    for x, point in drawn:
        value = (point.mean or 0.0) * factor
        if point.low is not None and point.high is not None:
            parts.append(
                Markup('<line class="bar" x1="{0:.2f}%" x2="{0:.2f}%" y1="{1:.1f}" y2="{2:.1f}"/>').format(
                    x, scale(point.low * factor), scale(point.high * factor)
                )
            )
        ends = [None if end is None else end * factor for end in (point.low, point.high)]
        parts.append(_mark(arm, x, scale(value), f"{point.label}: {labels.format_point(value, unit, *ends)}"))
    return parts
