# SPDX-License-Identifier: Apache-2.0
"""Charts of metrics over settings and over time, intervals of differences, and flame graphs."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Protocol, TypeVar

import msgspec
from markupsafe import Markup

from powerprof.experiment import phases
from powerprof.experiment.records import Comparison, LoadRun
from powerprof.model import text
from powerprof.model.records import Phase, Run, RunMetric, Window
from powerprof.report import labels
from powerprof.report.html import svg
from powerprof.report.html.page import clean_name, draw_macro
from powerprof.report.html.svg import SVG, Bar, Scale, arrow, join_parts, linear_axis, round_step, tick_labels
from powerprof.report.phases import looks_of, phase_title, shown_phases
from powerprof.report.stacks import Flame, FlameFrame

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
    """Return the estimate of a metric as the only curve of its chart."""
    return [(metric.estimate.mean, metric.estimate.low, metric.estimate.high)]


def draw_metrics(
    names: Iterable[str],
    points: Sequence[tuple[str, Sequence[M]]],
    curves: Callable[[M], Sequence[Ends]],
    across: str = "",
) -> list[tuple[str, bool, Markup]]:
    """Return for each metric of the points its name, whether it is estimated, and its chart.

    One point is no chart.

    Args:
        names: The metrics in their order.
        points: The label and the metrics of each point.
        curves: Returns the values of a metric at a point, one per curve.
        across: The title of the horizontal axis.
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
                svg.SeriesPoint(clean_name(label, 20), *(each[number] if each else (None, None, None)))
                for (label, _), each in zip(points, values, strict=True)
            ]
            for number in range(len(curves(first)))
        ]
        label = labels.metric_words(name)
        drawn_charts.append(
            (label, first.kind == "estimated", svg.draw_series(drawn, first.unit, label, clean_name(across, 60)))
        )
    return drawn_charts


_CAPTIONED = Markup('<figure class="chart"><figcaption>{}{}</figcaption>{}</figure>')
_ESTIMATED = Markup(', <span class="kind">estimated</span>')
_SIDE_BY_SIDE = Markup('<div class="columns">\n{}\n</div>')


def place_charts(charts: Sequence[tuple[str, bool, Markup]]) -> Markup:
    """Return charts side by side, each with its name and whether it is estimated; an empty text without any."""
    drawn = [_CAPTIONED.format(label, _ESTIMATED if estimated else "", chart) for label, estimated, chart in charts]
    return _SIDE_BY_SIDE.format(Markup("\n").join(drawn)) if drawn else Markup()


_LEGEND = Markup('<p class="legend"><span class="key a"></span> A {} <span class="key b"></span> B {}</p>')


def draw_legend(a: str, b: str) -> Markup:
    """Return the colours of two sides with their names."""
    return _LEGEND.format(clean_name(a, 60), clean_name(b, 60))


# Spread of the windows: a mark per window, a row per condition, one axis.

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
    ends = [min(max(end, least), most) for row in rows for end in (row.low, row.high) if end is not None]
    unit, factor = labels.choose_prefix(unit, max(map(abs, marks)))
    scale, ticks = _axis([value * factor for value in (*marks, *ends)])
    bottom = _ROW * len(rows)
    parts = [
        Markup('<line class="grid" x1="{0:.2f}%" x2="{0:.2f}%" y1="16" y2="{1}"/>').format(scale(tick), bottom)
        for tick in ticks
    ]
    parts += tick_labels(scale, ticks, unit, bottom + 14)
    descriptions = []
    for number, row in enumerate(rows):
        parts += _row(row, number * _ROW, scale, factor, unit)
        values = [value * factor for value in row.values]
        descriptions.append(f"{row.name} {len(values)} windows from {min(values):.4g} to {max(values):.4g} {unit}")
    return SVG.format(f"{label}: {'; '.join(descriptions)}", bottom + 20, join_parts(parts))


def _axis(values: Sequence[float]) -> tuple[Scale, list[float]]:
    low, high = min(values), max(values)
    if low <= high / 2:
        scale, ticks = linear_axis(values, 2, 97)
    else:
        distance = round_step((high - low) or high or 1.0, 3)
        first, last = math.floor(low / distance), max(math.ceil(high / distance), math.floor(low / distance) + 1)
        scale, ticks = Scale(first * distance, last * distance, 2, 97), [n * distance for n in range(first, last + 1)]
    return scale, ticks


def _row(row: Strip, top: float, scale: Scale, factor: float, unit: str) -> list[Markup]:
    parts = [Markup('<text x="0" y="{}">{}</text>').format(top + 12, row.name)]
    # Every n-th window in the order of size, so that the drawn marks have the spread of all windows.
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


def comparison_charts(record: Comparison) -> list[Chart]:
    """Return the charts of a comparison: the judged metric first, then the order of the table."""
    of_metrics = []
    for metric in sorted(record.metrics, key=lambda metric: metric.name != record.verdict.metric):
        rows = []
        for side, condition, look in ((metric.a, record.a, "bar-a"), (metric.b, record.b, "bar-b")):
            rows += _strip(clean_name(condition.name, 60), side.values, look, (side.mean, side.ci95))
        if len(rows) == 2:
            label = labels.metric_words(metric.name)
            of_metrics.append((label, metric.kind == "estimated", draw_strips(rows, metric.unit, label)))
    return of_metrics[:_MOST_CHARTS]


def draw_run_spread(run: Run) -> Markup:
    """Return the spread of the windows: the metrics of a load, else C0, wake-ups and watts of each phase."""
    return draw_spread(_load_charts(run) if isinstance(run, LoadRun) else _phase_charts(run))


def _load_charts(run: LoadRun) -> list[Chart]:
    of_metrics: list[Chart] = []
    for metric in run.metrics:
        ends, label = metric.estimate, labels.metric_words(metric.name)
        rows = _strip(clean_name(run.condition.name, 60), metric.values, "bar-a", (ends.mean, (ends.low, ends.high)))
        if rows:
            of_metrics.append((label, metric.kind == "estimated", draw_strips(rows, metric.unit, label)))
    return of_metrics[:_MOST_CHARTS]


def _phase_charts(run: Run) -> list[Chart]:
    of_metrics: list[Chart] = []
    meters, looks = phases.find_run_meters(run.phases), _phase_looks(run)
    estimated = run.energy_source is not None and not run.energy_source.metered
    for name, unit in (("c0_percent", "%"), ("wakeups_hz", "1/s"), ("watts", "W")):
        rows = []
        for phase in run.phases:
            values = phases.host_watts(phase, meters) if name == "watts" else phases.window_values(phase.windows, name)
            rows += _strip(_title(run, phase), values, looks[phase.name])
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


def _strip(
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


# The phases of a run: the share of each idle state, and C0 of the windows over time.

STATES_CAPTION = "Share of the time of all CPUs, running and in each idle state (as requested by the kernel)."
_NAMED_BAR = Markup('<p class="bar-name">{}{}</p>\n{}')


def _title(run: Run, phase: Phase) -> str:
    return clean_name(phase_title(run, phase), 60)


def _phase_looks(run: Run) -> dict[str, str]:
    """Return the style of each phase's bars: grey for baselines, alternating colours for the others."""
    looks: dict[str, str] = {}
    for phase in run.phases:
        others = len([look for look in looks.values() if look != "bar-idle"])
        look = "bar-idle" if phase.name.startswith("baseline") else ("bar-a", "bar-b")[others % 2]
        looks.setdefault(phase.name, look)
    return looks


def draw_state_bars(bars: Iterable[tuple[Markup, str, Sequence[svg.BarShare]]]) -> Markup:
    """Return one bar per name, each with its key and its shares."""
    drawn = (_NAMED_BAR.format(key, name, svg.draw_state_bar(shares, name)) for key, name, shares in bars)
    return Markup("\n").join(drawn)


def draw_phase_states(run: Run) -> Markup:
    """Return the share of C0 and of each idle state in each phase."""
    looks = looks_of([state for phase in run.phases for state in phase.states])
    shown = [phase for index in shown_phases(run) if (phase := run.phases[index]).states]
    known = [phase for phase in shown if phase.c0_percent is not None]
    return draw_state_bars((Markup(), _title(run, phase), _state_shares(phase, looks)) for phase in known)


def _state_shares(phase: Phase, looks: dict[str, str]) -> list[svg.BarShare]:
    polled = sum(state.polling_percent or 0.0 for state in phase.states if state.polling)
    shares = [svg.BarShare("C0", max(0.0, (phase.c0_percent or 0.0) - polled), "c0")]
    shares += [
        svg.BarShare(f"{state.name} (polling)", state.polling_percent or 0.0, "poll")
        for state in phase.states
        if state.polling and state.polling_percent
    ]
    return shares + [
        svg.BarShare(clean_name(state.name, 40), state.residency_percent, looks[state.name])
        for state in phase.states
        if not state.polling and state.residency_percent
    ]


def draw_windows(run: Run) -> Markup:
    """Return C0 of each window over time; an empty text for one window."""
    looks = _phase_looks(run)
    windows = [
        (window, looks[phase.name], f"{_title(run, phase)}, window {number}", "")
        for phase in run.phases
        for number, window in enumerate(phase.windows, 1)
    ]
    return svg.draw_course(c0_bars(windows), "% C0") if len(windows) > 1 else Markup()


def window_legend(run: Run) -> Markup:
    """Return the caption of the windows over time, with the colour of each phase."""
    key, looks = Markup(' <span class="swatch {}"></span>{}'), _phase_looks(run)
    named = [phase for phase in run.phases if phase.name != "baseline-after"]
    keys = Markup().join(key.format(looks[phase.name], _title(run, phase)) for phase in named)
    return Markup("Time in C0 in each window.{}").format(keys)


# The windows of a record in the order of time, as bars.


def c0_bars(named: Iterable[tuple[Window, str, str, str]]) -> list[Bar]:
    """Return a bar for each (window, class, title, label) whose start is known, as high as its C0."""
    times = [(start, *bar) for bar in named if (start := _seconds(bar[0])) is not None]
    first = min((start for start, *_ in times), default=0.0)
    bars: list[Bar] = []
    for start, window, look, title, label in sorted(times, key=lambda bar: bar[0]):
        # Alternating windows began together and were measured for half of the time each: side by side they have the
        # same length.
        begin = max(start - first, bars[-1].end_s) if bars else start - first
        tooltip = f"{title}: C0 {text.number(window.c0_percent, 2, ' %')}"
        bars.append(Bar(begin, begin + (window.window_s or 0.0), window.c0_percent, look, tooltip, label))
    return bars


def _seconds(window: Window) -> float | None:
    try:
        return datetime.fromisoformat(window.started_at).timestamp()
    except ValueError:
        return None


# Differences with their intervals on one axis, a row per metric.

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
        Scale(1 / end, end, 2, 98, logarithmic=True), tuple((ratio, _times(ratio)) for ratio in times), ratios=True
    )


def _times(ratio: float) -> str:
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


# Flame graphs: boxes at percentages of the width, readable without a script and on paper. The script adds zoom, search
# and the arrow keys.

_UNNAMED = re.compile(r"\+0x[0-9a-f]+$")
_LIBRARY = re.compile(r"(^|/)(lib|ld-)[^/]*|\.so(\.|$)")
_FRAME = Markup(
    '<div role="treeitem" class="f {look}" aria-level="{level}" tabindex="-1" data-x="{x}" data-w="{w}" '
    'style="--x:{x};--w:{w};--d:{depth}" data-info="{info}">{label}</div>'
)
_FRAME_LABEL_LIMIT = 100


class FlameView(msgspec.Struct, frozen=True):
    """The boxes of a flame graph and their height in rows, for the template."""

    title: str
    boxes: Markup
    rows: int
    unit: str
    hidden_count: int
    difference: bool


def class_of_frame(label: str, depth: int, modules: Mapping[str, str]) -> str:
    """Return the class of a frame: root, thread, unnamed, kernel, library or own."""
    module = modules.get(label, "")
    if depth == 0:
        return "root"
    if depth == 1 and label not in modules:
        return "thread"
    if module in ("kernel", "[kernel]", "vmlinux") or label.endswith("_[k]"):
        return "kernel"
    if _UNNAMED.search(label):
        return "unnamed"
    return "library" if _LIBRARY.search(module) or module == "[vdso]" else "own"


def _change(frame: FlameFrame) -> str:
    """Return a class from d-3 (only A has the frame) to d3 (only B has it)."""
    before = frame.a or 0.0
    share = (frame.value - before) / max(frame.value, before) if max(frame.value, before) else 0.0
    return f"d{round(3 * share)}" if abs(share) >= 0.05 else "d0"


def _weight(value: float) -> str:
    return text.number(value, 0 if value >= 100 or value == int(value) else 2)


def _info(frame: FlameFrame, total: float, unit: str, module: str | None) -> str:
    """Return the text that the script shows after the name of a box."""
    where = f" ({clean_name(module, 60)})" if module else ""
    if frame.a is not None:
        change = frame.value - frame.a
        return f"{where}: A {_weight(frame.a)}, B {_weight(frame.value)} {unit}, B − A {text.signed(change, 2)}"
    share = 100 * frame.value / total if total else 0.0
    return f"{where}: {_weight(frame.value)} {unit}, {share:.1f} % of all"


def draw_flame(graph: Flame, title: str, modules: Mapping[str, str] | None = None) -> FlameView | None:
    """Return the boxes of a graph; `None` if it has no weight."""
    if len(graph.frames) < 2:
        return None
    known = modules or {}
    total = graph.frames[0].value
    boxes = []
    for frame in graph.frames:
        look = _change(frame) if graph.difference and frame.depth else class_of_frame(frame.label, frame.depth, known)
        sign = "" if not graph.difference or look in ("d0", "root") else "− " if look.startswith("d-") else "+ "
        boxes.append(
            _FRAME.format(
                look=look,
                level=frame.depth + 1,
                x=f"{frame.start:.6g}",
                w=f"{frame.width:.6g}",
                depth=frame.depth,
                info=_info(frame, total, graph.unit, known.get(frame.label)),
                label=sign + clean_name(frame.label, _FRAME_LABEL_LIMIT),
            )
        )
    return FlameView(title, Markup("\n").join(boxes), graph.depth, graph.unit, graph.hidden_count, graph.difference)


def draw_flames(views: Sequence[FlameView], name: str) -> Markup:
    """Return flame graphs of which one is shown at a time; an empty text without any."""
    return draw_macro("flame_choice", views, name) if views else Markup()
