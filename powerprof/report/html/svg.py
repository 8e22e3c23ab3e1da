"""Charts as inline SVG. Widths are percentages, so that a chart fits a phone and a sheet of paper without a script;
colours are classes, so that light, dark and print are one drawing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from powerprof.report import labels, text
from powerprof.report.html.scales import Scale, by_powers, from_zero

_SVG = Markup('<svg role="img" aria-label="{}" width="100%" height="{}">{}</svg>')
_LOG_FROM = 30  # highest / lowest value from which a linear axis would hide one of the two


def _joined(parts: Sequence[Markup]) -> Markup:
    return Markup().join(parts)


@dataclass(frozen=True)
class Interval:
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


def interval_axis(intervals: Sequence[Interval]) -> IntervalAxis:
    """The axis that shows all of them, symmetrical about no difference."""
    shown = [one for one in intervals if not one.aside] or intervals
    largest = max((max(abs(one.low), abs(one.high)) for one in shown), default=1.0) or 1.0
    if largest <= 60:
        scale, ticks = from_zero([largest], 50, 98)
        whole = Scale(-scale.high, scale.high, 2, 98)
        far = scale.high
        middle = ticks[len(ticks) // 2] if len(ticks) > 3 else far
        marks = [-far, -middle, 0.0, middle, far] if middle != far else [-far, 0.0, far]
        return IntervalAxis(whole, tuple((mark, text.signed(mark, 6).rstrip("0").rstrip(".") if mark else "0")
                                         for mark in marks), ratios=False)  # fmt: skip
    ratios = [1 + end / 100 for one in shown for end in (one.low, one.high)]
    extreme = max([*ratios, *(1 / ratio for ratio in ratios if ratio > 0.001)], default=2.0)
    power = 1
    while 10.0**power < extreme and power < 6:
        power += 1
    # Five labels at most: the column is narrow.
    exponents = [-power, -power // 2, 0, power // 2, power] if power % 2 == 0 else [-power, 0, power]
    return IntervalAxis(
        Scale(10.0**-power, 10.0**power, 2, 98, logarithmic=True),
        tuple((10.0**exponent, _times(exponent)) for exponent in exponents), ratios=True,
    )  # fmt: skip


def _times(exponent: int) -> str:
    if exponent == 0:
        return "= A"
    power = f"10{'⁰¹²³⁴⁵⁶'[abs(exponent)]}" if abs(exponent) > 3 else f"{10 ** abs(exponent):,}"
    return f"{'×' if exponent > 0 else '÷'}{power}"


def _axis_value(axis: IntervalAxis, percent: float) -> float:
    return 1 + percent / 100 if axis.ratios else percent


def interval_ticks(axis: IntervalAxis) -> Markup:
    """The axis' labels, for the head of the column."""
    parts = []
    for index, (value, label) in enumerate(axis.ticks):
        anchor = "start" if index == 0 else "end" if index == len(axis.ticks) - 1 else "middle"
        # Between the ends and the middle there is room only in a wide column.
        kind = "major" if index in (0, len(axis.ticks) // 2, len(axis.ticks) - 1) else "minor"
        parts.append(Markup('<text class="{}" x="{:.2f}%" y="12" text-anchor="{}">{}</text>').format(
            kind, axis.scale(value), anchor, label))
    return _SVG.format("axis: B relative to A", 16, _joined(parts))


def interval_row(axis: IntervalAxis, one: Interval, label: str) -> Markup:
    """A bar for the interval, a dot for the mean, a line where there is no difference."""
    low, middle, high = (axis.scale(_axis_value(axis, value)) for value in (one.low, one.percent, one.high))
    none = axis.scale(1.0 if axis.ratios else 0.0)
    kind = "clear" if one.clear else "open"
    parts = [Markup('<line class="zero" x1="{0:.2f}%" x2="{0:.2f}%" y1="0" y2="18"/>').format(none)]
    parts.append(Markup('<line class="bar {}" x1="{:.2f}%" x2="{:.2f}%" y1="9" y2="9"/>').format(kind, low, high))
    value = _axis_value(axis, one.percent)
    if axis.scale.low <= value <= axis.scale.high:
        parts.append(Markup('<circle class="dot {}" cx="{:.2f}%" cy="9" r="4"/>').format(kind, middle))
    else:
        arrow = "M0 4 l8 5 l-8 5 z" if value > axis.scale.high else "M0 4 l-8 5 l8 5 z"
        parts.append(Markup('<svg x="{:.2f}%" overflow="visible"><path class="dot" d="{}"/></svg>').format(
            middle, arrow))
    return _SVG.format(label, 18, _joined(parts))


def _grid(scale: Scale, ticks: Sequence[float], unit: str) -> list[Markup]:
    parts = []
    for tick in ticks:
        y = scale(tick)
        parts.append(Markup('<line class="grid" x1="0" x2="100%" y1="{0:.1f}" y2="{0:.1f}"/>').format(y))
        label = f"{tick:,.6f}".rstrip("0").rstrip(".") if abs(tick) >= 1e-5 or not tick else f"{tick:g}"
        last = unit if tick == ticks[-1] else ""
        parts.append(Markup('<text x="0" y="{:.1f}">{} {}</text>').format(y - 4, label, last))
    return parts


def _mark(arm: str, x: float, y: float, title: str) -> Markup:
    # A and B differ in shape as well: colour alone is lost on paper and on some readers.
    if arm == "a":
        return Markup('<circle class="mark a" cx="{:.2f}%" cy="{:.1f}" r="4.5"><title>{}</title></circle>').format(
            x, y, title)
    return Markup('<rect class="mark b" x="{:.2f}%" y="{:.1f}" width="9" height="9" transform="translate(-4.5 -4.5)">'
                  "<title>{}</title></rect>").format(x, y, title)


def pairs(a: Sequence[float | None], b: Sequence[float | None], unit: str, names: tuple[str, str]) -> Markup:
    """Each pair in the order of time: A and B joined by a line. Logarithmic where they lie far apart."""
    both = [(x, y) for x, y in zip(a, b, strict=False) if x is not None and y is not None]
    values = [value for pair in both for value in pair]
    if not values:
        return Markup()
    unit, factor = labels.prefix(unit, max(map(abs, values)))
    both = [(x * factor, y * factor) for x, y in both]
    values = [value * factor for value in values]
    far = min(values) > 0 and max(values) / min(values) >= _LOG_FROM
    scale, ticks = (by_powers if far else from_zero)(values, 212, 18)
    parts = _grid(scale, ticks, f"{unit}, logarithmic" if far else unit)
    for index, (x, y) in enumerate(both):
        at = 12 + 86 * (index + 0.5) / len(both)
        parts.append(Markup('<line class="pair" x1="{0:.2f}%" x2="{0:.2f}%" y1="{1:.1f}" y2="{2:.1f}"/>').format(
            at, scale(x), scale(y)))
        parts += [_mark(arm, at, scale(value), f"pair {index + 1}, {name}: {value:.4g} {unit}")
                  for arm, value, name in (("a", x, names[0]), ("b", y, names[1]))]  # fmt: skip
        if len(both) <= 24 or index % 5 == 4:
            parts.append(Markup('<text x="{:.2f}%" y="232" text-anchor="middle">{}</text>').format(at, index + 1))
    return _SVG.format(f"{len(both)} pairs of {names[0]} and {names[1]} in {unit}", 238, _joined(parts))


@dataclass(frozen=True)
class Share:
    """A part of a bar: the class is c0, poll or s0 … s5 from the shallowest idle state."""

    name: str
    percent: float
    look: str


def state_bar(shares: Sequence[Share], name: str) -> Markup:
    """One bar of 100 %."""
    parts, at = [], 0.0
    for share in shares:
        width = max(0.0, min(share.percent, 100 - at))
        parts.append(Markup('<rect class="state {}" x="{:.3f}%" y="1" width="{:.3f}%" height="26"><title>{} {:.2f} %'
                            "</title></rect>").format(share.look, at, width, share.name, share.percent))
        if width > 4 + 1.6 * len(share.name):
            parts.append(Markup('<text class="in {}" x="{:.3f}%" y="19" dx="7">{}</text>').format(
                share.look, at, share.name))
        at += width
    said = ", ".join(f"{share.name} {share.percent:.2f} %" for share in shares)
    return _SVG.format(f"{name}: {said}", 28, _joined(parts))


@dataclass(frozen=True)
class Bar:
    """A window on the time axis: seconds since the first, and the height's value."""

    start_s: float
    end_s: float
    value: float | None
    look: str
    title: str
    label: str = ""


def course(bars: Sequence[Bar], unit: str) -> Markup:
    """Windows over time, as high as their value: drift and disturbed windows are seen here."""
    values = [bar.value for bar in bars if bar.value is not None]
    if not bars or not values:
        return Markup()
    scale, ticks = from_zero(values, 132, 18)
    length = max(bar.end_s for bar in bars) or 1.0
    across = Scale(0, length, 9, 99.5)
    parts = _grid(scale, ticks, unit)
    for bar in bars:
        left, right = across(bar.start_s), across(bar.end_s)
        top = scale(bar.value) if bar.value is not None else 132.0
        parts.append(Markup('<rect class="{}" x="{:.3f}%" y="{:.1f}" width="{:.3f}%" height="{:.1f}"><title>{}</title>'
                            "</rect>").format(bar.look, left, top, max(0.2, right - left), max(1.0, 132 - top),
                                              bar.title))
        if bar.label and right - left > 2.2:
            parts.append(Markup('<text x="{:.3f}%" y="146" text-anchor="middle">{}</text>').format(
                (left + right) / 2, bar.label))
    minutes = length >= 180
    _, marks = from_zero([length / 60 if minutes else length], 0, 1)
    for mark in marks:
        seconds = mark * 60 if minutes else mark
        if seconds <= length:
            anchor = "end" if across(seconds) > 94 else "middle"
            parts.append(Markup('<text x="{:.2f}%" y="162" text-anchor="{}">{:g} {}</text>').format(
                across(seconds), anchor, mark, "min" if minutes else "s"))
    return _SVG.format(f"{len(bars)} windows over {length:.0f} s", 168, _joined(parts))
