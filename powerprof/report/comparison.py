# SPDX-License-Identifier: Apache-2.0
"""Reports of `powerprof compare`: the answer, the metrics side by side, plans, threats and the measuring cost."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec
from markupsafe import Markup
from msgspec.structs import replace

from powerprof.experiment.bench_data import plan_text
from powerprof.experiment.claims import claim_of, find_answer_metrics, metric_named, percent_base, with_claim
from powerprof.experiment.metrics import rest_percent
from powerprof.experiment.records import Answer, Block, Comparison, ControlRecord, Metric
from powerprof.experiment.threats import find_doubts
from powerprof.model import text
from powerprof.report import labels, table
from powerprof.report.answers import (
    explain_chance,
    explain_metrics,
    outcome_of,
    word_difference,
    word_side,
    word_threats,
    words,
)
from powerprof.report.document import Extras, shown_parts
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
from powerprof.report.html.page import clean_name, render_page, table_html
from powerprof.report.labels import answer_and_context
from powerprof.report.metrics import DISK_SERVICE, comparison_table, functions_table, states_table, system_table
from powerprof.report.render.terminal import draw_parts
from powerprof.report.run import executions_of, list_servers
from powerprof.report.stacks import build_flame, build_flame_difference, modules_of, stacks_of
from powerprof.report.table import (
    MARKDOWN_ROWS,
    DrawnColumn,
    Figure,
    Line,
    Places,
    Table,
    Words,
    draw_table,
    escape,
    exact_cells,
    note_lines,
    without_empty,
)
from powerprof.system.next_steps import command_line


def word_comparison(record: Comparison) -> Comparison:
    """Return the record with its answer, control and threats in words.

    Sentences about figures are written again, so that a run of an older version has the words of its table; sentences
    of threats and the control stay.
    """
    a, b = record.a.name, record.b.name
    control, verdict = record.control, record.verdict
    if control is not None and not control.text:
        control = msgspec.structs.replace(control, text=control_text(control))
    threats = word_threats(record.threats, {"a": a, "b": b})
    metrics, system = ([with_claim(metric) for metric in each] for each in (record.metrics, record.system))
    doubts = verdict.doubts
    if not verdict.text:
        doubted = find_doubts(threats, control, metrics, verdict.metric)
        doubts = [threat.text for threat in word_threats(doubted, {})]
    verdict = msgspec.structs.replace(word_answer(verdict, metrics, a, b), doubts=doubts)
    return msgspec.structs.replace(
        record, verdict=verdict, threats=threats, control=control, metrics=metrics, system=system
    )


def control_text(control: ControlRecord) -> str:
    """Return the result of the A/A control."""
    width, difference = control.half_width_percent, control.difference_percent
    if width is None:
        return "the A/A control has too few pairs to judge"
    if control.sound or difference is None:
        return f"A/A ±{width:.2g} %"
    shown = f"{difference:+.2g}".replace("-", "−")
    return f"the A/A control differs by {shown} %: another factor changes, so no verdict is reliable"


def word_answer(answer: Answer, metrics: Sequence[Metric], a: str, b: str) -> Answer:
    """Return the answer with its sentences."""
    asked = answer.asked or answer.metric
    parts = find_answer_metrics(metrics, asked)
    if parts.chosen is None:
        text = f"No answer: {words(asked)} was not measured." if asked else "No answer: no metric was measured."
        return msgspec.structs.replace(answer, text=text)
    family = len(metrics)
    speed = word_side(parts.speed, b, family) if parts.speed else None
    if speed and parts.speed and parts.speed.name == "latency_p50_ms":
        p95 = metric_named(metrics, "latency_p95_ms")
        speed += f"; p95 latency: {outcome_of(p95, family).text}" if p95 else ""
    return msgspec.structs.replace(
        answer,
        text=word_difference(parts.chosen, a, b, family),
        ground=word_difference(parts.ground, a, b, family) if parts.ground else None,
        speed=speed,
        power=word_side(parts.power, b, family) if parts.power else None,
    )


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
        return text.wrap(f"No function of the server changed significantly ({each}).", width)
    headings = {"a": "A self", "b": "B self", "difference": "B − A, 95 %", "a_total": "A all", "b_total": "B all"}
    printed = text.wrap(f"Functions of the server that changed significantly, % of one CPU: {each}", width)
    printed += table.function_lines(shown, headings, width)
    return [*printed, *([f"{shown.left_count} more: --json"] if shown.left_count > 0 else [])]


def turns_of(comparison: Comparison) -> str:
    """Return ` in turns of 0.05 s` for windows that alternate in slices; empty otherwise."""
    turn_s = comparison.options.get("turn_s")
    return f" alternating every {turn_s:.2g} s" if isinstance(turn_s, int | float) else ""


def speed_and_power(comparison: Comparison) -> str:
    """Return the verdicts on speed and power as one sentence; empty without a verdict."""
    sentence = "; ".join(filter(None, (comparison.verdict.speed, comparison.verdict.power)))
    if sentence.startswith(("speed (", "power (", "the difference ")):  # Condition names keep their case.
        sentence = sentence[:1].upper() + sentence[1:]
    return f"{sentence}." if sentence else ""


# The rows of the short report, after those of its sentences.
_SHORT_ROWS = 6
_FIRST = (
    *("c0_ms_per_query_server", "cpu_s_per_execution", "latency_p50_ms", "latency_p95_ms", "time_s_per_execution"),
    *("joules_per_query", "joules_per_execution", "wakeups_per_query", "queries_hz", "c0_ms_per_query", "c0_percent"),
)


def _short_rows(comparison: Comparison) -> list[int]:
    """Return the places of the metrics in the short report, in the order of the table and the judged one first."""
    metrics, judged = comparison.metrics, comparison.verdict.metric
    parts = find_answer_metrics(metrics, comparison.verdict.asked or judged)
    named = [metric.name for metric in (parts.chosen, parts.ground, parts.speed, parts.power) if metric is not None]
    places = {metric.name: place for place, metric in enumerate(metrics)}
    wanted = [name for name in dict.fromkeys([*named, *_FIRST, *places]) if name in places]
    return sorted(
        (places[name] for name in wanted[:_SHORT_ROWS]), key=lambda place: (metrics[place].name != judged, place)
    )


def _deciding_pairs(comparison: Comparison) -> str:
    """Return the number of pairs that would decide the answer if the difference is as measured; empty if unknown."""
    count = comparison.verdict.deciding_pairs_count
    if count is None:
        return ""
    sides = (comparison.a, comparison.b)
    names = [f"{side.workload}:{side.name}" for side in sides if side.workload != "command"]
    command = command_line("compare {} --pairs {}", names, count) if names else f"--pairs {count}"
    return f"If the difference is as measured, about {count} pairs decide: {command}"


def _metric_lines(comparison: Comparison, shown: Table, metrics: Sequence[Metric], width: int) -> list[str]:
    """Return a table of metrics, and the explanation of `may be chance` if a row has it."""
    printed = table.metric_lines(shown, width)
    hints = (claim_of(metric).hint is not None for metric in metrics)
    chance = explain_chance(hints, len(comparison.metrics))
    return [*printed, *text.wrap(chance, width)] if chance else printed


def render_terminal(comparison: Comparison, width: int = text.DEFAULT_WIDTH, *, everything: bool = False) -> list[str]:
    """Return the report, at most `width` columns: the answer and six rows, or everything."""
    verdict, places = comparison.verdict, Places(comparison)
    printed = [*text.wrap(verdict.text, width), *text.wrap(_context_line(comparison), width)]
    for sentence in (verdict.ground, speed_and_power(comparison), _deciding_pairs(comparison)):
        printed += text.wrap(sentence, width) if sentence else []
    if verdict.doubts:
        shown = verdict.doubts if everything else verdict.doubts[:1]
        more = f" ({len(verdict.doubts) - 1} more: --all)" if len(verdict.doubts) > len(shown) else ""
        printed += text.wrap(f"Caution: {'; '.join(shown)}{more}.", width)
    if comparison.interrupted:
        printed += text.wrap("Ended early: partial results.", width)
    if comparison.differences:
        printed += _difference_lines(comparison.differences, width, everything=everything)
    whole = comparison_table(comparison, places)
    rows = range(len(whole.rows)) if everything else _short_rows(comparison)
    metrics = [comparison.metrics[place] for place in rows]
    printed += [
        "",
        *_metric_lines(comparison, replace(whole, rows=[whole.rows[place] for place in rows]), metrics, width),
    ]
    plans = text.wrap("Plans: " + " · ".join(plans), width) if (plans := _plan_texts(comparison)) else []
    if everything:
        return [*printed, "", *_detail_lines(comparison, places, plans, width)]
    left = len(comparison.metrics) - len(rows) + len(comparison.system)
    printed += [*plans, *_function_lines(comparison, width)]
    return [*printed, f"{text.plural(left, 'more metric')}: --all" if left else "Details: --all"]


def _difference_lines(differences: Sequence[str], width: int, *, everything: bool) -> list[str]:
    """Return the other differences of two saved runs; the short report has the first one."""
    if everything:
        return ["", "Other differences", *(line for each in differences for line in text.wrap(each, width, "  "))]
    more = f"; {len(differences) - 1} more: --all" if len(differences) > 1 else ""
    return text.wrap(f"Other differences: {differences[0]}{more}.", width)


def _detail_lines(comparison: Comparison, places: Places, plans: Sequence[str], width: int) -> list[str]:
    """Return the part of the report below its table that only --all prints."""
    printed: list[str] = []
    system = system_table(comparison, places)
    if system.of("terminal").rows:
        printed.append("System metrics with a significant change, and the disk of the server's files")
        has_word = any(claim_of(metric).hint for metric in comparison.system if metric.name.startswith(DISK_SERVICE))
        chance = text.wrap(system.caption, width) if has_word and system.caption else []
        printed += [*table.metric_lines(system, width), *chance, ""]
    if energy := _energy_text(comparison):
        printed += text.wrap(f"Energy: {energy}.", width)
    if comparison.control is not None:
        printed += text.wrap(f"Control: {comparison.control.text}.", width)
    if shares := _c0_by_process(comparison):
        printed += text.wrap("C0, % of all CPUs: " + " · ".join(shares), width)
    printed += plans
    printed += _function_lines(comparison, width)
    draw_parts(shown_parts(list_servers(comparison), "terminal"), width, printed)
    threats = [threat.text for threat in comparison.threats]
    if threats:
        printed += text.wrap("Threats: " + "; ".join(threats) + ".", width)
    printed += labels.wrap_notes(comparison, width)
    if comparison.tool is not None and comparison.tool.cpu_percent is not None:
        printed.append(f"powerprof itself: {comparison.tool.cpu_percent:.2f} % of one CPU.")
    return printed


def _energy_text(comparison: Comparison) -> str:
    """Return the kind and the source of the joules; empty without any."""
    energy = next((metric for metric in comparison.metrics if metric.name.startswith("joules_per_")), None)
    if energy is None:
        return ""
    doubt = ", intervals with the model's uncertainty" if energy.difference.sampling_ci95 else ""
    return f"{energy.kind} joules ({energy.source}{doubt})"


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
    server = comparison.server
    if server is not None and server.version:
        parts.append(f"{server.version}{', private' if server.private else ''}")
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
    base = percent_base(metric)
    if percent is None or ends is None or base is None:
        return None
    low, high = (100 * end / base for end in ends)
    # Rows are counted exactly and may differ by thousands. Outside the axis they cannot hide the other effects.
    is_decided = claim_of(metric).verdict != "inconclusive"
    return DrawnInterval(percent, low, high, is_decided, aside=metric.unit == "rows")


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
            if isinstance(name, Words) and isinstance(share, Figure) and share.value is not None:
                shares.append(svg.BarShare(clean_name(name.text, 40), share.value, row.look))
        bars.append((condition.name, svg.draw_state_bar(shares, clean_name(condition.name, 60))))
    return bars


def flames(record: Comparison) -> list[FlameView]:
    """Return the flame graphs of A, B and their difference, from the traced windows."""
    rows = {window.arm: window.attribution.wakeups for window in record.traced or []}
    modules = modules_of([row for of_arm in rows.values() for row in of_arm])
    a, b = (stacks_of(rows.get(arm, []), "rate_hz") for arm in ("a", "b"))
    names = clean_name(record.a.name, 60), clean_name(record.b.name, 60)
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
        "interval: filled if the difference is significant, open if not, an arrow if it continues beyond the axis. "
        f"{explain_metrics(record.metrics)}"
    ).strip()
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
        flames=flames(record),
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
    sides = [escape(sentence), ""] if (sentence := speed_and_power(record)) else []
    chance = ["", escape(sentence)] if (sentence := explain_metrics(record.metrics)) else []
    written = ["", *doubts, *ground, *sides, context]
    written += [*draw_table(comparison_table(record, places), _MARKDOWN_COLUMNS), *chance]
    if record.system:
        system = system_table(record, places)
        written += draw_table(system, _MARKDOWN_COLUMNS)
        written += ["", escape(system.caption)] if system.caption else []
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
        *("minimum_detectable_percent", "hint"),
        *(f"{arm}_{number}" for arm in "ab" for number in range(1, pairs + 1)),
    ]
    places = Places(record)
    rows = [*comparison_table(record, places).rows, *system_table(record, places).rows]
    for row, metric in zip(rows, [*record.metrics, *record.system], strict=True):
        yield [
            *(row.key, row.exact_unit, row.kind, record.a.name, record.b.name),
            *exact_cells(row, "a", "b", "difference"),
            next(exact_cells(row, "percent")),
            *(metric.verdict, metric.minimum_detectable_percent, claim_of(metric).hint),
            *(value for side in (metric.a, metric.b) for value in [*side.values, *[None] * (pairs - len(side.values))]),
        ]
