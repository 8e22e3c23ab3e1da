# SPDX-License-Identifier: Apache-2.0
"""Drawings of a comparison: pairs, differences, windows, idle states and flame graphs."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from markupsafe import Markup

from powerprof.experiment.claims import claim_of, percent_base
from powerprof.experiment.records import Comparison, Metric
from powerprof.model import text
from powerprof.report import labels
from powerprof.report.document import Drawing, Part, Shown
from powerprof.report.flame import build_flame, build_flame_difference
from powerprof.report.html import phases, spread, svg
from powerprof.report.html.flames import FlameView, draw_flame, draw_flames
from powerprof.report.html.intervals import DrawnInterval, interval_axis, interval_row, interval_ticks
from powerprof.report.html.phases import c0_bars
from powerprof.report.html.text import clean_name
from powerprof.report.metrics import states_table
from powerprof.report.stacks import modules_of, stacks_of
from powerprof.report.table import DrawnColumn, Figure, Places, Table


def name_conditions(record: Comparison) -> tuple[str, str]:
    """Return the names of A and B for a page."""
    return clean_name(record.a.name, 60), clean_name(record.b.name, 60)


_FRAMES = 1500  # in each of three graphs, so that the page stays below 6 MiB for any length of names
_COURSE = Markup(
    'Time in C0 in each block. <span class="key a"></span>A <span class="key b"></span>B '
    '<span class="swatch bar-idle"></span>idle baseline <span class="swatch dropped"></span>excluded (warm-up or '
    "disturbed)"
)
_PAIRS = Markup('{}, pairs in chronological order. <span class="key a"></span>A {} <span class="key b"></span>B {}')
_KEY = Markup('<span class="key {}"></span>')


def draw_pairs(record: Comparison) -> Drawing:
    """Draw A and B in each pair: the judged metric, or else the first one."""
    judged = next((metric for metric in record.metrics if metric.name == record.verdict.metric), None)
    metric = judged or next(iter(record.metrics), None)
    if metric is None:
        return Drawing(Markup)
    draw = partial(svg.draw_pairs, metric.a.values, metric.b.values, metric.unit, name_conditions(record))
    kind = ", estimated" if metric.kind == "estimated" else ""
    return Drawing(draw, _PAIRS.format(labels.metric_words(metric.name) + kind, *name_conditions(record)))


def draw_windows(record: Comparison) -> Drawing:
    """Draw the spread of the windows of both conditions."""
    return Drawing(lambda: spread.draw_spread(spread.chart_comparison(record)), look="")


def draw_blocks(record: Comparison) -> Drawing:
    """Draw the time in C0 of each block in chronological order."""
    return Drawing(lambda: svg.draw_course(_list_bars(record), "% C0"), _COURSE)


def draw_functions(record: Comparison) -> Drawing:
    """Draw the flame graphs of A, B and their difference."""
    return Drawing(lambda: draw_flames(_build_flames(record), "condition"), look="")


def _drawn_interval(metric: Metric) -> DrawnInterval | None:
    percent, ends = metric.difference.percent, metric.difference.ci95
    base = percent_base(metric)
    if percent is None or ends is None or base is None:
        return None
    low, high = (100 * end / base for end in ends)
    # Rows are counted exactly and may differ by thousands. Outside the axis they cannot hide the other effects.
    claim = claim_of(metric)
    is_decided = claim.verdict != "inconclusive" and not claim.is_typical
    return DrawnInterval(percent, low, high, is_decided, aside=metric.unit == "rows")


def _describe_interval(interval: DrawnInterval) -> str:
    digits = labels.follow_interval(interval.low, interval.high)
    percent, low, high = (
        text.signed(end, 1 if digits is None else digits) for end in (interval.percent, interval.low, interval.high)
    )
    return f"{percent} % [{low}, {high}]"


def draw_differences(metrics: Sequence[Metric]) -> DrawnColumn | None:
    """Return each difference with its interval relative to A, on one axis; None without any interval."""
    intervals = [_drawn_interval(metric) for metric in metrics]
    known = [interval for interval in intervals if interval is not None]
    if not known:
        return None
    axis = interval_axis(known)
    ticks = interval_ticks(axis)
    cells = []
    for metric, interval in zip(metrics, intervals, strict=True):
        difference = "" if interval is None else _describe_interval(interval)
        # On narrow screens the table head is hidden, so each row has its own axis.
        row = (
            interval_row(axis, interval, f"{labels.metric_words(metric.name)}: {difference}") if interval else Markup()
        )
        cells.append(row + Markup('<div class="ticks" aria-hidden="true">{}</div>').format(ticks) if interval else row)
    return DrawnColumn("verdict", ticks, cells)


def _list_bars(record: Comparison) -> list[svg.Bar]:
    named = [(window, "bar-idle", "idle baseline", "") for window in record.baseline]
    for block in record.blocks:
        look = f"bar-{block.arm}" + ("" if block.is_counted else " dropped")
        what = record.a.name if block.arm == "a" else record.b.name
        left_out = "warm-up" if block.dropped else "disturbed" if block.disturbed else ""
        more = f", {left_out}, not counted" if left_out else ""
        again = f", taken {block.attempts_count} times" if block.attempts_count > 1 else ""
        named.append((block.window, look, f"{clean_name(what, 60)}, pair {block.pair}{more}{again}", block.arm.upper()))
    named += [(window, "bar-idle", "idle baseline, after", "") for window in record.baseline_after]
    return c0_bars(named)


def list_states(record: Comparison, places: Places) -> list[Part]:
    """Return the shares of the idle states of both conditions, as bars and as a table."""
    states = states_table(record, places)
    bars = partial(phases.draw_state_bars, _state_bars(record, states) if states.rows else [])
    return [Drawing(bars, phases.STATES_CAPTION, "chart states"), Shown(states)]


def _state_bars(record: Comparison, states: Table) -> list[tuple[Markup, str, list[svg.BarShare]]]:
    bars = []
    for arm, name in zip(("a", "b"), name_conditions(record), strict=True):
        shares = []
        for row in states.rows:
            share = row.cells[arm]
            if isinstance(share, Figure) and share.value is not None:
                shares.append(svg.BarShare(clean_name(row.words("name").text, 40), share.value, row.look))
        bars.append((_KEY.format(arm), name, shares))
    return bars


def _build_flames(record: Comparison) -> list[FlameView]:
    """Return the flame graphs of A, B and their difference, from the traced windows."""
    rows = {window.arm: window.attribution.wakeups for window in record.traced or []}
    modules = modules_of([row for of_arm in rows.values() for row in of_arm])
    a, b = (stacks_of(rows.get(arm, []), "rate_hz") for arm in ("a", "b"))
    names = name_conditions(record)
    unit = "idle exits/s"
    views = [
        draw_flame(build_flame(stacks, unit=unit, root=name, limit=_FRAMES), name, modules)
        for stacks, name in ((a, names[0]), (b, names[1]))
    ]
    if a and b:
        root = f"{names[1]} − {names[0]}"
        graph = build_flame_difference(a, b, unit=unit, root=root, limit=_FRAMES)
        views.append(draw_flame(graph, f"Difference, {names[1]} − {names[0]}", modules))
    return [view for view in views if view is not None]
