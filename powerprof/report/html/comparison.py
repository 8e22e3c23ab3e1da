# SPDX-License-Identifier: Apache-2.0
"""The page of a comparison."""

from __future__ import annotations

from dataclasses import replace

from markupsafe import Markup

from powerprof.experiment.records import Comparison, Metric
from powerprof.report.documents.kinds import answer_and_context
from powerprof.report.html import strips, svg
from powerprof.report.html.extras import Extras, extras_of_two
from powerprof.report.html.figures import clean
from powerprof.report.html.flames import FlameView, flame_view
from powerprof.report.html.intervals import DrawnInterval, interval_axis, interval_row, interval_ticks
from powerprof.report.html.page import page
from powerprof.report.html.tables import Drawn, table, without_empty
from powerprof.report.html.windows import c0_bars
from powerprof.report.stacks.flamegraph import flame, flame_difference
from powerprof.report.tables import labels, notes
from powerprof.report.tables.metrics import comparison_table, functions_table, states_table, system_table
from powerprof.report.tables.table import Figure, Places, Table, Words
from powerprof.report.terminal.compare import speed_and_power

_FUNCTIONS = 40
_FRAMES = 1500  # in each of three graphs: the page has to stay below 6 MiB whatever the names are


def _interval(metric: Metric) -> DrawnInterval | None:
    percent, ends = metric.difference.percent, metric.difference.ci95
    if percent is None or ends is None or not metric.a.mean:
        return None
    low, high = (100 * end / abs(metric.a.mean) for end in ends)
    # Work done is counted, not estimated, and may differ by thousands: effects would shrink to dots beside it.
    return DrawnInterval(percent, low, high, metric.verdict != "inconclusive", aside=metric.unit == "rows")


# What a reader looks for behind the headline; everything else is one click away.
_FIRST = ("joules_per_", "watts", "latency_", "time_to_solution", "time_s_per")


def _metric_tables(record: Comparison, whole: Table) -> tuple[Markup, Markup, int]:
    """The headline's metric, energy and latency; then the others, and how many they are."""
    drawn = _drawn(record)
    if drawn is None:
        whole = without_empty(whole)
    judged = record.verdict.metric
    first = [
        number
        for number, metric in enumerate(record.metrics)
        if metric.name == judged or metric.name.startswith(_FIRST) or not number
    ]
    first.sort(key=lambda number: record.metrics[number].name != judged)
    rest = [number for number in range(len(record.metrics)) if number not in first]

    def part(numbers: list[int], primary: bool, caption: str) -> Markup:
        cells = None if drawn is None else replace(drawn, cells=[drawn.cells[n] for n in numbers], primary=primary)
        return table(replace(whole, rows=[whole.rows[n] for n in numbers], caption=caption), "metrics", cells)

    return part(first, True, whole.caption), part(rest, False, "") if rest else Markup(), len(rest)


def _drawn(record: Comparison) -> Drawn | None:
    """Each difference with its interval on one axis, relative to A; None where none has an interval."""
    intervals = [_interval(metric) for metric in record.metrics]
    known = [interval for interval in intervals if interval is not None]
    if not known:
        return None
    axis = interval_axis(known)
    ticks = interval_ticks(axis)
    cells = []
    for metric, interval in zip(record.metrics, intervals, strict=True):
        difference = (
            "" if interval is None else f"{interval.percent:+.1f} % [{interval.low:+.1f}, {interval.high:+.1f}]"
        )
        # Where there is no room for the head of a table, the axis stands in each row.
        row = interval_row(axis, interval, f"{labels.metric(metric.name)}: {difference}") if interval else Markup()
        cells.append(row + Markup('<div class="ticks" aria-hidden="true">{}</div>').format(ticks) if interval else row)
    return Drawn("verdict", ticks, cells)


def _bars(record: Comparison) -> list[svg.Bar]:
    named = [(window, "bar-idle", "idle baseline", "") for window in record.baseline]
    for block in record.blocks:
        look = f"bar-{block.arm}" + (" dropped" if block.dropped or block.disturbed else "")
        what = record.a.name if block.arm == "a" else record.b.name
        left_out = "warm-up" if block.dropped else "disturbed" if block.disturbed else ""
        more = f", {left_out}, not counted" if left_out else ""
        again = f", taken {block.attempts_count} times" if block.attempts_count > 1 else ""
        named.append((block.window, look, f"{clean(what, 60)}, pair {block.pair}{more}{again}", block.arm.upper()))
    named += [(window, "bar-idle", "idle baseline, after", "") for window in record.baseline_after]
    return c0_bars(named)


def _state_bars(record: Comparison, states: Table) -> list[tuple[str, Markup]]:
    bars = []
    for arm, condition in (("a", record.a), ("b", record.b)):
        shares = []
        for row in states.rows:
            name, share = row.cells["name"], row.cells[arm]
            if isinstance(name, Words) and isinstance(share, Figure):
                shares.append(svg.BarShare(clean(name.text, 40), share.value or 0.0, row.look))
        bars.append((condition.name, svg.state_bar(shares, clean(condition.name, 60))))
    return bars


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
    places = Places(record)
    primary = next(
        (metric for metric in record.metrics if metric.name == record.verdict.metric),
        record.metrics[0] if record.metrics else None,
    )
    states = states_table(record, places)
    names = (clean(record.a.name, 60), clean(record.b.name, 60))
    over = "over pairs of neighbouring blocks" if record.blocks_count else "of two runs at different times"
    caption = (
        f"The difference is {names[1]} − {names[0]} {over}. Drawn: B relative to A with its 95 % interval; filled "
        "where the interval excludes no difference, an arrow where it continues beyond the axis."
    )
    return page(
        "comparison.html.j2",
        record,
        places,
        derived=extras.derived,
        title=f"{names[0]} against {names[1]}",
        context=answer_and_context(record)[1],
        metrics=_metric_tables(record, replace(comparison_table(record, places), caption=caption)),
        system=system_table(record, places) if record.system else None,
        names=names,
        notes=notes.all_of(record),
        primary_label=labels.metric(primary.name) if primary else "",
        pairs=svg.pairs(primary.a.values, primary.b.values, primary.unit, names) if primary else Markup(),
        strips=strips.of_comparison(record),
        states=states,
        apart=speed_and_power(record),
        state_bars=_state_bars(record, states) if states.rows else [],
        course=svg.course(_bars(record), "% C0"),
        flames=flames(record, extras),
        functions=functions_table(record, places, _FUNCTIONS),
        columns=[list(dict.fromkeys(name for row in plan.rows for name in row)) for plan in record.plans],
    )
