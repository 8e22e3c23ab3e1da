"""The page of a comparison."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from markupsafe import Markup

from powerprof import text
from powerprof.experiment.records import Block, Comparison, Metric
from powerprof.records import Window
from powerprof.report import labels
from powerprof.report.compare import turns_of
from powerprof.report.flamegraph import flame, flame_difference
from powerprof.report.html import svg
from powerprof.report.html.extras import Extras, extras_of_two
from powerprof.report.html.figures import Figures, clean
from powerprof.report.html.flames import FlameView, flame_view
from powerprof.report.html.intervals import Interval, IntervalAxis, interval_axis, interval_row, interval_ticks
from powerprof.report.html.page import page

_FRAMES = 1500  # in each of three graphs: the page has to stay below 6 MiB whatever the names are
_VERDICTS = {"b_lower": "lower", "b_higher": "higher", "inconclusive": "inconclusive"}


@dataclass(frozen=True)
class MetricRow:
    """A line of the table of metrics."""

    label: str
    unit: str
    estimated: bool
    a: Markup
    b: Markup
    difference: Markup
    interval: Markup
    percent: Markup
    drawing: Markup
    verdict: str
    detectable: Markup


def _interval(metric: Metric) -> Interval | None:
    percent, ends = metric.difference.percent, metric.difference.ci95
    if percent is None or ends is None or not metric.a.mean:
        return None
    low, high = (100 * end / abs(metric.a.mean) for end in ends)
    # Work done is counted, not estimated, and may differ by thousands: effects would shrink to dots beside it.
    return Interval(percent, low, high, metric.verdict != "inconclusive", aside=metric.unit == "rows")


def _row(figures: Figures, index: int, metric: Metric, axis: IntervalAxis) -> MetricRow:
    place = f"/metrics/{index}"
    shown = labels.shown(metric.unit, (metric.a.mean, metric.b.mean))
    unit, factor, digits = shown.unit, shown.factor, shown.decimals
    label = labels.metric(metric.name)
    drawn = _interval(metric)
    sides = [
        figures.fig(f"{place}/{arm}/mean", digits, scale=factor)
        + figures.interval(f"{place}/{arm}/ci95/0", f"{place}/{arm}/ci95/1", digits, scale=factor)
        for arm in ("a", "b")
    ]
    ends = metric.difference.ci95 or (0.0, 0.0)
    change = max(abs(metric.difference.b_minus_a or 0.0), *(abs(end) for end in ends)) * factor
    fine = max(digits, labels.digits(change, 2))
    return MetricRow(
        label,
        unit,
        metric.kind == "estimated",
        sides[0],
        sides[1],
        figures.fig(f"{place}/difference/b_minus_a", fine, scale=factor, sign=True),
        figures.interval(f"{place}/difference/ci95/0", f"{place}/difference/ci95/1", fine, scale=factor, sign=True),
        figures.fig(f"{place}/difference/percent", 1 if abs(drawn.percent) < 1000 else 0, "%", sign=True)
        if drawn
        else Markup(),
        interval_row(axis, drawn, f"{label}: {drawn.percent:+.1f} % [{drawn.low:+.1f}, {drawn.high:+.1f}]")
        if drawn
        else Markup(),
        _VERDICTS[metric.verdict],
        figures.fig(
            f"{place}/minimum_detectable_percent", 1 if (metric.minimum_detectable_percent or 0) < 100 else 0, "%"
        ),
    )


def _seconds(window: Window) -> float | None:
    try:
        return datetime.fromisoformat(window.started_at).timestamp()
    except ValueError:
        return None


def _bars(record: Comparison) -> list[svg.Bar]:
    named = [(window, "bar-idle", "idle baseline", "") for window in record.baseline]
    for block in record.blocks:
        look = f"bar-{block.arm}" + (" dropped" if block.dropped or block.disturbed else "")
        what = record.a.name if block.arm == "a" else record.b.name
        left_out = "warm-up" if block.dropped else "disturbed" if block.disturbed else ""
        more = f", {left_out}, in no figure" if left_out else ""
        again = f", taken {block.attempts_count} times" if block.attempts_count > 1 else ""
        named.append((block.window, look, f"{clean(what, 60)}, pair {block.pair}{more}{again}", block.arm.upper()))
    named += [(window, "bar-idle", "idle baseline, after", "") for window in record.baseline_after]
    times = [(start, *one) for one in named if (start := _seconds(one[0])) is not None]
    first = min((start for start, *_ in times), default=0.0)
    bars: list[svg.Bar] = []
    for start, window, look, title, label in sorted(times, key=lambda one: one[0]):
        # Two that took turns began together and were measured half of the time each: side by side that is as long.
        begin = max(start - first, bars[-1].end_s) if bars else start - first
        end = begin + (window.window_s or 0.0)
        said = f"{title}: C0 {text.number(window.c0_percent, 2, ' %')}"
        bars.append(svg.Bar(begin, end, window.c0_percent, look, said, label))
    return bars


@dataclass(frozen=True)
class StateRow:
    """A state in the table under the bars: its place among the metrics."""

    name: str
    look: str
    place: str


def _states(record: Comparison) -> tuple[list[StateRow], list[tuple[str, Markup]]]:
    found = [(index, one) for index, one in enumerate(record.metrics) if one.name.startswith("residency_percent:")]
    running = next((index for index, one in enumerate(record.metrics) if one.name == "c0_percent"), None)
    if running is None or not found:
        return [], []
    looks = {one.name.partition(":")[2]: f"s{min(number, 5)}" for number, (_, one) in enumerate(found)}
    rows = [StateRow("C0 (running)", "c0", f"/metrics/{running}")]
    rows += [
        StateRow(name, looks[name], f"/metrics/{index}")
        for index, one in found
        for name in [one.name.partition(":")[2]]
    ]
    bars = []
    for arm in ("a", "b"):
        shares = []
        for row in rows:
            metric = record.metrics[int(row.place.rsplit("/", 1)[1])]
            shares.append(svg.Share(clean(row.name, 40), (metric.a if arm == "a" else metric.b).mean or 0.0, row.look))
        condition = record.a if arm == "a" else record.b
        bars.append((condition.name, svg.state_bar(shares, clean(condition.name, 60))))
    return rows, bars


def _context(record: Comparison) -> str:
    used = [block for block in record.blocks if not block.dropped and not block.disturbed]
    parts = [
        f"{record.blocks_count} blocks, {''.join(arm.upper() for arm in record.order[:8])}"
        + ("…" if len(record.order) > 8 else "")
    ]
    if record.design == "rate" and record.offered_hz is not None:
        parts.append(f"{text.number(record.offered_hz, 1).removesuffix('.0')} queries/s in both")
    if record.design == "work" and record.queries_per_block is not None:
        parts.append(f"{record.queries_per_block:,} queries a block")
    if length := _mean_window(used):
        parts.append(f"{text.number(length, 1).removesuffix('.0')} s each{turns_of(record)}")
    if any(metric.kind == "estimated" for metric in record.metrics):
        parts.append("estimated joules")
    if record.control is not None and record.control.half_width_percent is not None:
        parts.append(f"A/A ±{text.number(record.control.half_width_percent, 1)} %")
    return " · ".join(parts)


def _mean_window(blocks: Sequence[Block]) -> float | None:
    lengths = [block.window.window_s for block in blocks if block.window.window_s is not None]
    return statistics.fmean(lengths) if lengths else None


def flames(record: Comparison, extras: Extras) -> list[FlameView]:
    """A, B and their difference, as far as there are stacks: given ones, or of the comparison's own traced windows."""
    if not extras.stacks and not extras.stacks_b and record.traced:
        traced = {window.arm: window.attribution for window in record.traced}
        extras = extras_of_two(traced.get("a"), traced.get("b"))
    names = clean(record.a.name, 60), clean(record.b.name, 60)
    views = [
        flame_view(flame(stacks, unit=extras.unit, root=name, limit=_FRAMES), name, extras.modules)
        for stacks, name in ((extras.stacks, names[0]), (extras.stacks_b, names[1]))
    ]
    if extras.stacks and extras.stacks_b:
        root = f"{names[1]} − {names[0]}"
        graph = flame_difference(extras.stacks, extras.stacks_b, unit=extras.unit, root=root, limit=_FRAMES)
        views.append(flame_view(graph, f"Difference, {names[1]} − {names[0]}", extras.modules))
    return [view for view in views if view is not None]


def render(record: Comparison, extras: Extras) -> str:
    """The page."""
    figures = Figures(record)
    drawn = [one for metric in record.metrics if (one := _interval(metric)) is not None]
    axis = interval_axis(drawn)
    primary = next(
        (one for one in record.metrics if one.name == record.verdict.metric),
        record.metrics[0] if record.metrics else None,
    )
    rows, bars = _states(record)
    names = (clean(record.a.name, 60), clean(record.b.name, 60))
    return page(
        "comparison.html.j2",
        record,
        figures,
        title=f"{names[0]} against {names[1]}",
        context=_context(record),
        metrics=[_row(figures, index, metric, axis) for index, metric in enumerate(record.metrics)],
        ticks=interval_ticks(axis) if drawn else Markup(),
        names=names,
        primary=primary,
        primary_label=labels.metric(primary.name) if primary else "",
        pairs=svg.pairs(primary.a.values, primary.b.values, primary.unit, names) if primary else Markup(),
        state_rows=rows,
        state_bars=bars,
        course=svg.course(_bars(record), "% C0"),
        flames=flames(record, extras),
        columns=[list(dict.fromkeys(name for row in plan.rows for name in row)) for plan in record.plans],
    )
