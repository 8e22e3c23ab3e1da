# SPDX-License-Identifier: Apache-2.0
"""Reports of `powerprof compare`: the answer, the metrics side by side, plans, threats and the measuring cost."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import msgspec
from markupsafe import Markup

from powerprof.experiment.bench_data import plan_text
from powerprof.experiment.metrics import rest_percent
from powerprof.experiment.records import Answer, Block, Comparison, ControlRecord, Metric
from powerprof.experiment.threats import find_doubts
from powerprof.experiment.verdict import SPEED, find_answer_metrics
from powerprof.model import text
from powerprof.report import labels, table
from powerprof.report.answers import NO_BOUND_PERCENT, PHRASES, MetricPhrase, may_be_chance, word_threats, words
from powerprof.report.html import charts, svg
from powerprof.report.html.charts import (
    DrawnInterval,
    FlameView,
    c0_bars,
    draw_flame,
    interval_axis,
    interval_row,
    interval_ticks,
)
from powerprof.report.html.page import (
    DrawnColumn,
    Extras,
    clean_name,
    extras_of_two,
    render_page,
    table_html,
    without_empty,
)
from powerprof.report.labels import answer_and_context
from powerprof.report.metrics import comparison_table, functions_table, states_table, system_table
from powerprof.report.run import executions_of, server_lines
from powerprof.report.stacks import build_flame, build_flame_difference
from powerprof.report.table import Figure, JudgedCell, Places, Table, Words
from powerprof.report.text_forms import MARKDOWN_ROWS, Line, draw_table, escape, exact_cells, note_lines
from powerprof.statistics.verdicts import PRIMARY_LEVEL

_PERCENT_UNIT = " %"


def word_comparison(record: Comparison) -> Comparison:
    """Return the record with its answer, control and threats in words; existing sentences stay."""
    a, b = record.a.name, record.b.name
    control, verdict = record.control, record.verdict
    if control is not None and not control.text:
        control = msgspec.structs.replace(control, text=control_text(control))
    threats = word_threats(record.threats, {"a": a, "b": b})
    if not verdict.text:
        doubted = find_doubts(threats, control, record.metrics, verdict.metric)
        doubts = [threat.text for threat in word_threats(doubted, {})]
        verdict = msgspec.structs.replace(word_answer(verdict, record.metrics, a, b), doubts=doubts)
    return msgspec.structs.replace(record, verdict=verdict, threats=threats, control=control)


def control_text(control: ControlRecord) -> str:
    """Return the result of the A/A control."""
    width, difference = control.half_width_percent, control.difference_percent
    if width is None:
        return "the A/A control has too few pairs to judge"
    if control.sound or difference is None:
        return f"A/A ±{width:.2g} %"
    return f"the A/A control differs by {difference:+.2g} %: another factor changes, so no verdict is reliable"


def word_answer(answer: Answer, metrics: Sequence[Metric], a: str, b: str) -> Answer:
    """Return the answer with its sentences."""
    asked = answer.asked or answer.metric
    parts = find_answer_metrics(metrics, asked)
    if parts.chosen is None:
        text = f"No answer: {words(asked)} was not measured." if asked else "No answer: no metric was measured."
        return msgspec.structs.replace(answer, text=text)
    family = len(metrics) - 1
    return msgspec.structs.replace(
        answer,
        text=_sentence(parts.chosen, a, b),
        ground=_sentence(parts.ground, a, b, family) if parts.ground else None,
        speed=_verdict_text(parts.speed, a, b) if parts.speed else None,
        power=_verdict_text(parts.power, a, b) if parts.power else None,
    )


def _sentence(metric: Metric, a: str, b: str, family: int = 0) -> str:
    """Return the difference in a metric. `family` is the number of other metrics that were judged with it."""
    what = words(metric.name)
    difference, interval = metric.difference.b_minus_a, metric.difference.ci95
    if difference is None or interval is None:
        return f"Too few pairs to judge whether {a} and {b} differ in {what}."
    scale, unit, figure = _shown_scale(metric, difference, interval[0])
    difference, (low, high) = scale * difference, (scale * end for end in interval)
    level = f"95 %{', estimated' if metric.kind == 'estimated' else ''}"
    if metric.verdict == "inconclusive":
        reach = f"{_signed(figure(low))} to {_signed(figure(high))}, {level}"
        if may_be_chance(metric):
            shown = f"{_signed(figure(difference))}{unit} ({reach})"
            if family > 1:
                corrected = f"Inconclusive after correcting for {family} comparisons"
                return f"{corrected} whether {a} and {b} differ in {what}: {shown}."
            needed = f"A verdict needs {100 * PRIMARY_LEVEL:g} %: measure more pairs."
            return f"Inconclusive whether {a} and {b} differ in {what}: {shown}. {needed}"
        return f"No measurable difference between {a} and {b} in {what}: {_less_than(metric)} ({reach})."
    least, most = sorted((abs(low), abs(high)))
    within = f"{figure(least)} – {figure(most)}{unit}, {level}"
    more = "more" if difference > 0 else "less"
    if unit != _PERCENT_UNIT:
        return (
            f"{what[:1].upper()}{what[1:]}: {figure(abs(difference))}{unit} {more} with {b} than with {a} ({within})."
        )
    phrase = PHRASES.get(metric.name) or MetricPhrase(
        what, f"has {{}} times the {what} of", f"has {{}} % {{}} {what} than"
    )
    ratio = metric.ratio
    if ratio is not None and ratio.ci95 is not None and (ratio.b_over_a >= 1.5 or ratio.b_over_a <= 2 / 3):
        first, second, flip = (b, a, False) if ratio.b_over_a > 1 else (a, b, True)
        value = 1 / ratio.b_over_a if flip else ratio.b_over_a
        times = sorted(1 / end if flip else end for end in ratio.ci95)
        return (
            f"{first} {phrase.times.format(_three(value))} {second} ({_three(times[0])} – {_three(times[1])}, {level})."
        )
    if difference < 0 and most > 100:
        # With few unpaired windows A's mean does not bound the difference, but no use is negative.
        within = f"at least {figure(least)} %, {level}"
    return f"{b} {phrase.percent.format(figure(abs(difference)), more)} {a} ({within})."


def _less_than(metric: Metric) -> str | None:
    """Return the bound of a difference in either direction, such as `less than 9.5 %`; None without an interval."""
    difference, ends = metric.difference.b_minus_a, metric.difference.ci95
    if difference is None or ends is None:
        return None
    most = max(abs(end) for end in ends)
    if not most:
        return "all windows measured the same value"  # The meter's step is unknown: the difference may be hidden.
    scale, unit, figure = _shown_scale(metric, difference, ends[0])
    # In its own unit a bound beyond the figure is useful, because the figure may be 0.
    widest = NO_BOUND_PERCENT if unit == _PERCENT_UNIT else 10 * NO_BOUND_PERCENT
    if metric.a.mean and 100 * most / abs(metric.a.mean) > widest:
        return "the interval is too wide for a bound"
    return f"less than {figure(scale * most)}{unit}"


def _shown_scale(metric: Metric, apart: float, low: float) -> tuple[float, str, Callable[[float], str]]:
    """Return the factor, the unit and the format of a shown difference.

    The unit is percent of A. It is the metric's own unit if A may be 0, for example net of idle, or if the windows
    allow a negative figure.
    """
    mean, interval = metric.a.mean, metric.a.ci95
    nought = metric.name.endswith("_net") and interval is not None and interval[0] <= 0
    if not mean or nought or (low if metric.verdict == "inconclusive" else apart) < -abs(mean):
        return 1.0, {"1": "", "1/s": "/s"}.get(metric.unit, f" {metric.unit}"), _three
    return 100 / abs(mean), _PERCENT_UNIT, lambda value: f"{value:,.1f}"


def _signed(figure: str) -> str:
    return f"−{figure[1:]}" if figure.startswith("-") else f"+{figure}"


def _three(value: float) -> str:
    return f"{value:.3g}" if value < 1000 else f"{value:,.0f}"


_BASIS_NAMES = {
    "time_to_solution_s": "time to solution",
    "latency_p95_ms": "p95 latency",
    "time_s_per_execution": "time of an execution",
    "watts": "watts",
    "c0_percent": "time in C0",
}


def _verdict_text(metric: Metric, a: str, b: str) -> str:
    lower, higher, subject = (
        ("faster", "slower", "speed") if metric.name in SPEED else ("lower in power", "higher in power", "power")
    )
    basis = f"{_BASIS_NAMES[metric.name]}{', estimated' if metric.kind == 'estimated' else ''}"
    if metric.verdict != "inconclusive":
        return f"{b} is {lower if metric.verdict == 'b_lower' else higher} ({basis})"
    if may_be_chance(metric):
        return f"inconclusive whether {a} and {b} differ in {subject} ({basis})"
    bound = _less_than(metric)
    if bound is None:
        return f"too few pairs to judge whether {a} and {b} differ in {subject} ({basis})"
    return f"no measurable difference in {subject} between {a} and {b}: {bound} ({basis}, 95 %)"


# The terminal report.

_MAX_FUNCTIONS = 20


def _counted_blocks(comparison: Comparison) -> list[Block]:
    """Return the blocks that the figures include."""
    return [block for block in comparison.blocks if block.is_counted]


def _function_lines(comparison: Comparison, width: int) -> list[str]:
    """Return the functions of the servers that changed significantly, the largest change first."""
    sampled = comparison.on_cpu
    if sampled is None:
        return []
    each = f"{sampled.windows_count} windows of {sampled.window_s or 0:.1f} s each, {sampled.samples_count:,} samples"
    shown = functions_table(comparison, Places(comparison), _MAX_FUNCTIONS)
    if not shown.rows:
        return ["", *text.wrap(f"No function of the server changed significantly ({each}).", width)]
    headings = {"a": "A self", "b": "B self", "difference": "B − A, 95 %", "a_total": "A all", "b_total": "B all"}
    printed = ["", *text.wrap(f"Functions of the server that changed significantly, % of one CPU: {each}", width)]
    printed += table.function_lines(shown, headings, width)
    return [*printed, *([f"{shown.left_count} more: --json"] if shown.left_count > 0 else []), ""]


def turns_of(comparison: Comparison) -> str:
    """Return ` in turns of 0.05 s` for windows that alternate in slices; empty otherwise."""
    turn_s = comparison.options.get("turn_s")
    return f" alternating every {turn_s:.2g} s" if isinstance(turn_s, int | float) else ""


def speed_and_power(comparison: Comparison) -> str:
    """Return the verdicts on speed and power as one sentence; empty without a verdict."""
    sentence = "; ".join(filter(None, (comparison.verdict.speed, comparison.verdict.power)))
    if sentence.startswith(("no ", "inconclusive ")):  # Condition names keep their case.
        sentence = sentence[:1].upper() + sentence[1:]
    return f"{sentence}." if sentence else ""


def render_terminal(comparison: Comparison, width: int = text.DEFAULT_WIDTH) -> list[str]:
    """Return the report, at most `width` columns."""
    printed = text.wrap(comparison.verdict.text, width)
    printed += text.wrap(_context_line(comparison), width)
    if comparison.verdict.doubts:
        printed += text.wrap(f"Caution: {'; '.join(comparison.verdict.doubts)}.", width)
    if comparison.interrupted:
        printed += text.wrap("Ended early: partial results.", width)
    if comparison.differences:
        printed += ["", "Other differences"]
        for difference in comparison.differences:
            printed += text.wrap(difference, width, "  ")
    printed.append("")
    metrics = table.metric_lines(comparison_table(comparison, Places(comparison)), width)
    printed += [*metrics, ""]
    if any("[" in line for line in metrics) and any(map(may_be_chance, comparison.metrics)):
        printed += text.wrap("Verdicts below the first row are corrected for multiple comparisons.", width)
    system = system_table(comparison, Places(comparison))
    if system.of("terminal").rows:
        printed.append("System metrics with a significant change, and the disk of the server's files")
        printed += [*table.metric_lines(system, width), ""]
    if comparison.verdict.ground:
        printed += text.wrap(comparison.verdict.ground, width)
    if sentence := speed_and_power(comparison):
        printed += text.wrap(sentence, width)
    if shares := _c0_by_process(comparison):
        printed += text.wrap("C0, % of all CPUs: " + " · ".join(shares), width)
    if plans := _plan_texts(comparison):
        printed += text.wrap("Plans: " + " · ".join(plans), width)
    printed += _function_lines(comparison, width)
    printed += server_lines(comparison, width)
    threats = [threat.text for threat in comparison.threats]
    if threats:
        printed += text.wrap("Threats: " + "; ".join(threats) + ".", width)
    printed += labels.wrap_notes(comparison, width)
    cost = comparison.tool.get("cpu_percent")
    if isinstance(cost, float):
        printed.append(f"powerprof itself: {cost:.2f} % of one CPU.")
    return printed


def _context_line(comparison: Comparison) -> str:
    windows = [block.window.window_s for block in _counted_blocks(comparison) if block.window.window_s]
    pairs = comparison.blocks_count // 2
    parts = [f"{pairs} pairs, {''.join(comparison.order[:4]).upper()}…"] if pairs else []
    executions = executions_of(_counted_blocks(comparison))
    if executions:
        parts.append(executions)
    elif comparison.design == "work" and comparison.queries_per_block:
        parts.append(f"{comparison.queries_per_block:,} queries in both")
    elif comparison.offered_hz:
        parts.append(f"{comparison.offered_hz:,.0f} queries/s in both")
    if windows:
        parts.append(f"{sum(windows) / len(windows):.1f} s each{turns_of(comparison)}")
    energy = next((metric for metric in comparison.metrics if metric.name.startswith("joules_per_")), None)
    if energy is not None:
        doubt = ", intervals with the model's uncertainty" if energy.difference.sampling_ci95 else ""
        parts.append(f"{energy.kind} joules ({energy.source}{doubt})")
    if comparison.control is not None:
        parts.append(comparison.control.text)
    version = comparison.server.get("version")
    if version:
        parts.append(f"{version}{', private' if comparison.server.get('private') else ''}")
    return " · ".join(parts)


def _c0_by_process(comparison: Comparison) -> list[str]:
    """Return the C0 of each condition by process, in percent of all CPUs.

    The client's cost is separate from the server's.
    """
    printed = []
    for arm, name in (("a", comparison.a.name), ("b", comparison.b.name)):
        windows = [block.window for block in _counted_blocks(comparison) if block.arm == arm]
        if not windows:
            continue
        groups = {process.name for window in windows for process in window.processes}
        parts = []
        for group in ("server", "client", "command", "powerprof"):
            if group in groups:
                percents = [p.percent or 0.0 for window in windows for p in window.processes if p.name == group]
                parts.append(f"{group} {sum(percents) / len(windows):.2f}")
        other_percents = [value for window in windows if (value := rest_percent(window)) is not None]
        if other_percents:
            parts.append(f"rest {sum(other_percents) / len(other_percents):.2f}")
        if parts:
            printed.append(f"{name}: {', '.join(parts)}")
    return printed


def _plan_texts(comparison: Comparison) -> list[str]:
    names_of_plan: dict[str, list[str]] = {}
    for plan in comparison.plans:
        name = comparison.a.name if plan.arm == "a" else comparison.b.name
        if name not in names_of_plan:
            names_of_plan[name] = [plan_text(row) for row in plan.rows]
    return [f"{name}: {', then '.join(steps)}" for name, steps in names_of_plan.items()]


# The HTML page.

_MAX_PAGE_FUNCTIONS = 40
_FRAMES = 1500  # in each of three graphs, so that the page stays below 6 MiB for any length of names


def _drawn_interval(metric: Metric) -> DrawnInterval | None:
    percent, ends = metric.difference.percent, metric.difference.ci95
    if percent is None or ends is None or not metric.a.mean:
        return None
    low, high = (100 * end / abs(metric.a.mean) for end in ends)
    # Rows are counted exactly and may differ by thousands. Outside the axis they cannot hide the other effects.
    return DrawnInterval(percent, low, high, metric.verdict != "inconclusive", aside=metric.unit == "rows")


# These metrics are shown directly; the others are one click away.
_FIRST_METRICS = ("joules_per_", "watts", "latency_", "time_to_solution", "time_s_per")


def _metric_tables(record: Comparison, whole: Table) -> tuple[Markup, Markup, int]:
    """Return the table of judged metric, energy and latency, the table of the other metrics, and their number."""
    drawn = _draw_differences(record)
    if drawn is None:
        whole = without_empty(whole)
    judged = record.verdict.metric
    first = [
        number
        for number, metric in enumerate(record.metrics)
        if metric.name == judged or metric.name.startswith(_FIRST_METRICS) or not number
    ]
    first.sort(key=lambda number: record.metrics[number].name != judged)
    others = [number for number in range(len(record.metrics)) if number not in first]

    def part(numbers: list[int], primary: bool, caption: str) -> Markup:
        cells = None if drawn is None else replace(drawn, cells=[drawn.cells[n] for n in numbers], primary=primary)
        return table_html(replace(whole, rows=[whole.rows[n] for n in numbers], caption=caption), "metrics", cells)

    return part(first, True, whole.caption), part(others, False, "") if others else Markup(), len(others)


def _draw_differences(record: Comparison) -> DrawnColumn | None:
    """Return each difference with its interval relative to A, on one axis; None without any interval."""
    intervals = [_drawn_interval(metric) for metric in record.metrics]
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
        # On narrow screens the table head is hidden, so each row has its own axis.
        row = (
            interval_row(axis, interval, f"{labels.metric_words(metric.name)}: {difference}") if interval else Markup()
        )
        cells.append(row + Markup('<div class="ticks" aria-hidden="true">{}</div>').format(ticks) if interval else row)
    return DrawnColumn("verdict", ticks, cells)


def _block_bars(record: Comparison) -> list[svg.Bar]:
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


def _state_bars(record: Comparison, states: Table) -> list[tuple[str, Markup]]:
    bars = []
    for arm, condition in (("a", record.a), ("b", record.b)):
        shares = []
        for row in states.rows:
            name, share = row.cells["name"], row.cells[arm]
            if isinstance(name, Words) and isinstance(share, Figure):
                shares.append(svg.BarShare(clean_name(name.text, 40), share.value or 0.0, row.look))
        bars.append((condition.name, svg.draw_state_bar(shares, clean_name(condition.name, 60))))
    return bars


def flames(record: Comparison, extras: Extras) -> list[FlameView]:
    """Return the flame graphs of A, B and their difference, if stacks are available.

    The stacks come from `extras`, or else from the comparison's traced windows.
    """
    if not extras.stacks and not extras.stacks_b and record.traced:
        traced = {window.arm: window.attribution for window in record.traced}
        extras = extras_of_two(traced.get("a"), traced.get("b"))
    names = clean_name(record.a.name, 60), clean_name(record.b.name, 60)
    views = [
        draw_flame(build_flame(stacks, unit=extras.unit, root=name, limit=_FRAMES), name, extras.modules)
        for stacks, name in ((extras.stacks, names[0]), (extras.stacks_b, names[1]))
    ]
    if extras.stacks and extras.stacks_b:
        root = f"{names[1]} − {names[0]}"
        graph = build_flame_difference(extras.stacks, extras.stacks_b, unit=extras.unit, root=root, limit=_FRAMES)
        views.append(draw_flame(graph, f"Difference, {names[1]} − {names[0]}", extras.modules))
    return [view for view in views if view is not None]


def render_html(record: Comparison, extras: Extras) -> str:
    """Return the HTML page."""
    places = Places(record)
    primary = next(
        (metric for metric in record.metrics if metric.name == record.verdict.metric),
        record.metrics[0] if record.metrics else None,
    )
    states = states_table(record, places)
    names = (clean_name(record.a.name, 60), clean_name(record.b.name, 60))
    over = "over pairs of neighbouring blocks" if record.blocks_count else "of two runs at different times"
    caption = (
        f"The difference is {names[1]} − {names[0]} {over}. The chart shows B relative to A with its 95 % "
        "interval; filled where the interval excludes no difference, an arrow where it continues beyond the axis."
    )
    return render_page(
        "comparison.html.j2",
        record,
        places,
        derived=extras.derived,
        title=f"{names[0]} against {names[1]}",
        context=answer_and_context(render_terminal, record)[1],
        metrics=_metric_tables(record, replace(comparison_table(record, places), caption=caption)),
        system=system_table(record, places) if record.system else None,
        names=names,
        notes=labels.notes_with_source(record),
        primary_label=labels.metric_words(primary.name) if primary else "",
        pairs=svg.draw_pairs(primary.a.values, primary.b.values, primary.unit, names) if primary else Markup(),
        strips=charts.comparison_charts(record),
        states=states,
        apart=speed_and_power(record),
        state_bars=_state_bars(record, states) if states.rows else [],
        course=svg.draw_course(_block_bars(record), "% C0"),
        flames=flames(record, extras),
        functions=functions_table(record, places, _MAX_PAGE_FUNCTIONS),
        columns=[list(dict.fromkeys(name for row in plan.rows for name in row)) for plan in record.plans],
    )


# Markdown and CSV.

_MARKDOWN_COLUMNS = ("name", "a", "b", "difference", "percent", "verdict")


def render_markdown(record: Comparison, context: str) -> list[str]:
    """Return the metrics side by side, and the threats."""
    doubts = [f"> Caution: {escape('; '.join(record.verdict.doubts))}.", ""] if record.verdict.doubts else []
    ground = [escape(record.verdict.ground), ""] if record.verdict.ground else []
    places = Places(record)
    written = ["", *doubts, *ground, context, *draw_table(comparison_table(record, places), _MARKDOWN_COLUMNS)]
    if record.system:
        written += draw_table(system_table(record, places), _MARKDOWN_COLUMNS)
    functions = functions_table(record, places, MARKDOWN_ROWS)
    if functions.rows:
        written += ["", "Functions that grew or shrank, in percent of one CPU:", *draw_table(functions)]
    if record.threats:
        written += ["", "Threats: " + escape("; ".join(threat.text for threat in record.threats)) + "."]
    return written + note_lines([*record.differences, *labels.notes_with_source(record)])


def render_csv(record: Comparison) -> Iterator[Line]:
    """Yield one line per metric, with the values of each pair."""
    pairs = max((len(side.values) for metric in record.metrics for side in (metric.a, metric.b)), default=0)
    yield [
        *("metric", "unit", "kind", "a", "b", "a_mean", "a_low", "a_high", "b_mean", "b_low", "b_high"),
        *("b_minus_a", "low", "high", "percent", "verdict"),
        "minimum_detectable_percent",
        *(f"{arm}_{number}" for arm in "ab" for number in range(1, pairs + 1)),
    ]
    places = Places(record)
    rows = [*comparison_table(record, places).rows, *system_table(record, places).rows]
    for row, metric in zip(rows, [*record.metrics, *record.system], strict=True):
        judged = row.cells["verdict"]
        yield [
            *(row.key, row.exact_unit, row.kind, record.a.name, record.b.name),
            *exact_cells(row, "a", "b", "difference"),
            next(exact_cells(row, "percent")),
            *((judged.verdict, judged.detectable.value) if isinstance(judged, JudgedCell) else ()),
            *(value for side in (metric.a, metric.b) for value in [*side.values, *[None] * (pairs - len(side.values))]),
        ]
