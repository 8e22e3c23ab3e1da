# SPDX-License-Identifier: Apache-2.0
"""Reports of `powerprof compare`: the answer, the metrics side by side, plans, threats and the measuring cost."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

import msgspec
from markupsafe import Markup
from msgspec.structs import replace

from powerprof.experiment.bench_data import plan_text
from powerprof.experiment.claims import claim_of, find_answer_metrics, metric_named, percent_base, with_claim
from powerprof.experiment.metrics import rest_percent
from powerprof.experiment.records import Answer, Block, Comparison, ControlRecord, Metric
from powerprof.experiment.threats import find_doubts
from powerprof.model import text
from powerprof.report import labels
from powerprof.report.answers import (
    explain_chance,
    explain_metrics,
    outcome_of,
    shows_times,
    word_difference,
    word_side,
    word_threats,
    words,
)
from powerprof.report.document import (
    NOT_HTML,
    NOT_TERMINAL,
    TERMINAL,
    Document,
    Drawing,
    Item,
    Items,
    Part,
    Section,
    Sentence,
    Shown,
    Tile,
    View,
)
from powerprof.report.html import charts, svg
from powerprof.report.html.charts import (
    DrawnInterval,
    FlameView,
    c0_bars,
    draw_flame,
    draw_flames,
    interval_axis,
    interval_row,
    interval_ticks,
)
from powerprof.report.html.page import clean_name, figure_html
from powerprof.report.metrics import DISK_SERVICE, comparison_table, functions_table, states_table, system_table
from powerprof.report.phase_parts import cost_of
from powerprof.report.run import COST, executions_of, kind_words, list_servers
from powerprof.report.stacks import build_flame, build_flame_difference, modules_of, stacks_of
from powerprof.report.table import (
    ALL,
    HTML,
    Column,
    DrawnColumn,
    Figure,
    Form,
    Line,
    Places,
    Table,
    TableRow,
    Words,
    exact_cells,
    function_lines,
    metric_lines,
    split_rows,
)
from powerprof.system.next_steps import command_line


def word_comparison(record: Comparison) -> Comparison:
    """Return the record with its answer, control and threats in words.

    Sentences about figures are written again; sentences of threats and the control stay.
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
        reason = f"No answer: {words(asked)} was not measured." if asked else "No answer: no metric was measured."
        return msgspec.structs.replace(answer, text=reason)
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


# The document.


def document(record: Comparison, view: View) -> Document:
    """Return the report of a comparison; on a terminal six rows, or everything."""
    left = len(record.metrics) - len(_short_rows(record)) + len(record.system)
    return Document(
        views=("everything",),
        record=record,
        answer=record.verdict.text,
        context=_context_line(record),
        title=" against ".join(_names(record)),
        lead=_list_lead(record, view),
        parts=partial(_list_parts, record, view),
        rows=partial(_list_rows, record),
        tiles=partial(_list_tiles, record),
        setup=_SETUP,
        derived=view.extras.derived,
        is_brief=not view.everything,
        next_step="" if view.everything else f"{text.plural(left, 'more metric')}: --all" if left else "Details: --all",
    )


_SETUP = (
    *(("A", "/a"), ("B", "/b"), ("Options", "/options"), ("Host", "/host"), ("Server", "/server")),
    ("Cost of powerprof", "/tool"),
)


def _names(record: Comparison) -> tuple[str, str]:
    return clean_name(record.a.name, 60), clean_name(record.b.name, 60)


def _list_lead(record: Comparison, view: View) -> list[Sentence]:
    """Return the sentences below the answer; the short report has the first doubt and the first difference."""
    verdict, differences = record.verdict, record.differences
    lead = [Sentence(each, look="lead") for each in (verdict.ground or "", speed_and_power(record))]
    lead.append(Sentence(_deciding_pairs(record), look="muted"))
    whole = ALL if view.everything else NOT_TERMINAL
    lead += [Sentence(f"{doubt}.", "Caution", "warning", whole) for doubt in verdict.doubts]
    if not view.everything and verdict.doubts:
        more = f" ({len(verdict.doubts) - 1} more: --all)" if len(verdict.doubts) > 1 else ""
        lead.append(Sentence(f"{verdict.doubts[0]}{more}.", "Caution", forms=TERMINAL))
    if not view.everything and differences:
        more = f"; {len(differences) - 1} more: --all" if len(differences) > 1 else ""
        lead.append(Sentence(f"{differences[0]}{more}.", "Other differences", forms=TERMINAL))
    return lead


def _list_parts(record: Comparison, view: View) -> Iterator[Part]:
    """Yield the parts; the short report on a terminal has the metrics, the plans and the functions."""
    places, details = Places(record), ALL if view.everything else NOT_TERMINAL
    yield Section("Metrics", _list_metrics(record, places, view), "metrics")
    yield Section("Pair by pair", [_draw_pairs(record)], "pairs")
    yield Section("Spread of the windows", [draw_windows(record)], "spread")
    yield Section("CPU idle states", _list_states(record, places), "states", NOT_TERMINAL, forms=NOT_TERMINAL)
    yield Section("Over time", [draw_blocks(record)], "course")
    yield Section("Functions that woke the CPUs", [draw_functions(record)], "flames")
    yield _system_of(record, places, details)
    measured = [Sentence(f"{fact}.", label, forms=details) for label, fact in _measured(record) if fact]
    plans = Sentence(" · ".join(_plan_texts(record)), "Plans", forms=NOT_HTML)
    functions = _list_functions(record, places)
    # The short report has no empty line between these.
    nearby = [] if view.everything else [replace(part, forms=TERMINAL) for part in functions]
    yield Section("Measurement", [*measured, plans, *nearby], "measured")
    yield Section("Functions that changed", functions, "functions", NOT_TERMINAL, forms=details)
    yield Section("Query plans", _list_plans(record), "plans", forms=HTML)
    for section in list_servers(record):
        yield replace(section, forms=details)
    yield Section(
        "Other differences", [Items([Item(each) for each in record.differences])], "differences", ALL, forms=details
    )
    threats = Items([Item(f"{threat.text}.") for threat in record.threats])
    yield Section("Threats to validity", [threats], "doubt", ALL, forms=details)
    yield replace(cost_of(record.tool), forms=details - HTML)


# The metrics: six rows, or all.

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


# These metrics are shown directly; the others are one click away.
_FIRST_METRICS = ("joules_per_", "watts", "latency_", "time_to_solution", "time_s_per")


def _list_metrics(record: Comparison, places: Places, view: View) -> list[Part]:
    """Return the metrics in the order of the table for a terminal, else the most important ones first."""
    whole = comparison_table(record, places)
    shown = list(range(len(whole.rows))) if view.everything else _short_rows(record)
    hints = (claim_of(record.metrics[place]).hint is not None for place in shown)
    judged = record.verdict.metric
    leading = [
        number
        for number, metric in enumerate(record.metrics)
        if metric.name == judged or metric.name.startswith(_FIRST_METRICS) or not number
    ]
    leading.sort(key=lambda number: record.metrics[number].name != judged)
    order = leading + [number for number in range(len(whole.rows)) if number not in leading]
    drawn = partial(_draw_differences, [record.metrics[number] for number in order])
    over = "over pairs of neighbouring blocks" if record.blocks_count else "of two runs at different times"
    chart = (
        "The chart shows B relative to A with its 95 % interval: filled if the difference is significant, open if not, "
        "an arrow if it continues beyond the axis."
    )
    names = _names(record)
    return [
        Shown(replace(whole, rows=[whole.rows[place] for place in shown]), metric_lines, forms=TERMINAL),
        Sentence(explain_chance(hints, len(record.metrics)), forms=TERMINAL),
        Sentence(f"The difference is {names[1]} − {names[0]} {over}. {chart}", look="muted", forms=HTML),
        Shown(
            replace(whole, rows=[whole.rows[number] for number in order]),
            look="metrics",
            columns=_COLUMNS,
            open_rows=len(leading),
            what="metrics",
            drawn=drawn,
            forms=NOT_TERMINAL,
        ),
        Sentence(explain_metrics(record.metrics), look="muted", forms=NOT_TERMINAL),
    ]


_COLUMNS = ("name", "a", "b", "difference", "percent", "verdict")
"""The columns of Markdown, in their order."""


def _system_of(record: Comparison, places: Places, forms: frozenset[Form]) -> Section:
    """Return the metrics of the host; a terminal has the significant changes and the disk of the server's files."""
    system = system_table(record, places)
    has_word = any(claim_of(metric).hint for metric in record.system if metric.name.startswith(DISK_SERVICE))
    parts: list[Part] = [
        Shown(system, metric_lines, columns=_COLUMNS),
        Sentence(system.caption if has_word else "", forms=TERMINAL),
    ]
    if system.of("terminal").rows:
        what = "System metrics with a significant change, and the disk of the server's files"
        parts.insert(0, Sentence(what, forms=TERMINAL))
    return Section("System metrics", parts, "system", NOT_TERMINAL, forms=forms)


# The measurement: its design, the source of the joules, CPU time by process, plans.


def _measured(record: Comparison) -> list[tuple[str, str]]:
    """Return the design, the source of the joules, the control, and C0 by process, each with its label."""
    control = record.control.text if record.control is not None else ""
    if record.control is not None and record.control.half_width_percent is not None:
        control += f" ({text.plural(record.control.pairs_count, 'pair')})"
    design = ["equal rate" if record.design == "rate" else "equal work"]
    design += [text.plural(record.blocks_count, "block"), f"seed {record.seed}"]
    design.append(text.shorten("".join(record.order).upper(), _ORDER))
    return [
        ("Design", " · ".join(filter(None, design)) if record.blocks_count else ""),
        ("Energy", _energy_text(record)),
        ("Control", control),
        ("C0, % of all CPUs", " · ".join(_c0_by_process(record))),
    ]


_ORDER = 60


def _counted_blocks(comparison: Comparison) -> list[Block]:
    """Return the blocks that the figures include."""
    return [block for block in comparison.blocks if block.is_counted]


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


def _deciding_pairs(comparison: Comparison) -> str:
    """Return the number of pairs that would decide the answer if the difference is as measured; empty if unknown."""
    count = comparison.verdict.deciding_pairs_count
    if count is None:
        return ""
    sides = (comparison.a, comparison.b)
    names = [f"{side.workload}:{side.name}" for side in sides if side.workload != "command"]
    command = command_line("compare {} --pairs {}", names, count) if names else f"--pairs {count}"
    return f"If the difference is as measured, about {count} pairs decide: {command}"


def _energy_text(comparison: Comparison) -> str:
    """Return the kind and the source of the joules; empty without any."""
    energy = next((metric for metric in comparison.metrics if metric.name.startswith("joules_per_")), None)
    if energy is None:
        return ""
    doubt = "intervals with the model's uncertainty" if energy.difference.sampling_ci95 else ""
    known = ", ".join(filter(None, (energy.source, doubt)))
    return f"{energy.kind} joules{f' ({known})' if known else ''}"


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


def _list_plans(record: Comparison) -> list[Part]:
    """Return the statement of each plan and its steps, for a page."""
    parts: list[Part] = []
    for plan in record.plans:
        name = record.a.name if plan.arm == "a" else record.b.name
        asserted = " · as required by the workload" if plan.asserted else ""
        statement = Markup('<pre class="sql" tabindex="0">{}</pre>').format(clean_name(plan.statement, 4000))
        names = list(dict.fromkeys(name for row in plan.rows for name in row))
        columns = [Column(str(number), name=name, left=True) for number, name in enumerate(names)]
        rows = [
            TableRow({str(n): Words("–" if row.get(name) is None else str(row[name])) for n, name in enumerate(names)})
            for row in plan.rows
        ]
        shown = Shown(Table(columns, rows, f"plan of {plan.arm.upper()}"), names=False)
        parts.append(
            Section(f"{plan.arm.upper()} {name}{asserted}", [Drawing(partial(Markup, statement), look=""), shown])
        )
    return parts


# Functions of the servers that changed significantly, the largest change first.

_MAX_FUNCTIONS = 40
_TERMINAL_FUNCTIONS = 20


def _list_functions(record: Comparison, places: Places) -> list[Part]:
    sampled = record.on_cpu
    if sampled is None:
        return []
    each = f"{sampled.windows_count} windows of {sampled.window_s or 0:.1f} s each, {sampled.samples_count:,} samples"
    table = functions_table(record, places, _MAX_FUNCTIONS)
    if not table.rows:
        return [Sentence(f"No function of the server changed significantly ({each}).")]
    return [
        Sentence(f"Functions of the server that changed significantly, % of one CPU: {each}"),
        Shown(table, _function_lines, what="functions"),
    ]


def _function_lines(table: Table, width: int) -> list[str]:
    headings = {"a": "A self", "b": "B self", "difference": "B − A, 95 %", "a_total": "A all", "b_total": "B all"}
    first, rest = split_rows(table, _TERMINAL_FUNCTIONS)
    left = len(rest.rows) + table.left_count
    return [*function_lines(first, headings, width), *([f"{left} more: --json"] if left else [])]


# The drawings of a page.

_FRAMES = 1500  # in each of three graphs, so that the page stays below 6 MiB for any length of names
_COURSE = Markup(
    'Time in C0 in each block. <span class="key a"></span>A <span class="key b"></span>B '
    '<span class="swatch bar-idle"></span>idle baseline <span class="swatch dropped"></span>excluded (warm-up or '
    "disturbed)"
)
_PAIRS = Markup('{}, pairs in chronological order. <span class="key a"></span>A {} <span class="key b"></span>B {}')
_KEY = Markup('<span class="key {}"></span>')


def _draw_pairs(record: Comparison) -> Drawing:
    judged = next((metric for metric in record.metrics if metric.name == record.verdict.metric), None)
    metric = judged or next(iter(record.metrics), None)
    if metric is None:
        return Drawing(Markup)
    draw = partial(svg.draw_pairs, metric.a.values, metric.b.values, metric.unit, _names(record))
    return Drawing(draw, _PAIRS.format(labels.metric_words(metric.name), *_names(record)))


def draw_windows(record: Comparison) -> Drawing:
    """Draw the spread of the windows of both conditions."""
    return Drawing(lambda: charts.draw_spread(charts.comparison_charts(record)), look="")


def draw_blocks(record: Comparison) -> Drawing:
    """Draw the time in C0 of each block in chronological order."""
    return Drawing(lambda: svg.draw_course(_block_bars(record), "% C0"), _COURSE)


def draw_functions(record: Comparison) -> Drawing:
    """Draw the flame graphs of A, B and their difference."""
    return Drawing(lambda: draw_flames(_flames(record), "condition"), look="")


def _drawn_interval(metric: Metric) -> DrawnInterval | None:
    percent, ends = metric.difference.percent, metric.difference.ci95
    base = percent_base(metric)
    if percent is None or ends is None or base is None:
        return None
    low, high = (100 * end / base for end in ends)
    # Rows are counted exactly and may differ by thousands. Outside the axis they cannot hide the other effects.
    is_decided = claim_of(metric).verdict != "inconclusive"
    return DrawnInterval(percent, low, high, is_decided, aside=metric.unit == "rows")


def _draw_differences(metrics: Sequence[Metric]) -> DrawnColumn | None:
    """Return each difference with its interval relative to A, on one axis; None without any interval."""
    intervals = [_drawn_interval(metric) for metric in metrics]
    known = [interval for interval in intervals if interval is not None]
    if not known:
        return None
    axis = interval_axis(known)
    ticks = interval_ticks(axis)
    cells = []
    for metric, interval in zip(metrics, intervals, strict=True):
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


def _list_states(record: Comparison, places: Places) -> list[Part]:
    """Return the shares of the idle states of both conditions, as bars and as a table."""
    states = states_table(record, places)
    bars = partial(charts.draw_state_bars, _state_bars(record, states) if states.rows else [])
    return [Drawing(bars, charts.STATES_CAPTION, "chart states"), Shown(states)]


def _state_bars(record: Comparison, states: Table) -> list[tuple[Markup, str, list[svg.BarShare]]]:
    bars = []
    for arm, name in zip(("a", "b"), _names(record), strict=True):
        shares = []
        for row in states.rows:
            share = row.cells[arm]
            if isinstance(share, Figure) and share.value is not None:
                shares.append(svg.BarShare(clean_name(row.words("name").text, 40), share.value, row.look))
        bars.append((_KEY.format(arm), name, shares))
    return bars


def _flames(record: Comparison) -> list[FlameView]:
    """Return the flame graphs of A, B and their difference, from the traced windows."""
    rows = {window.arm: window.attribution.wakeups for window in record.traced or []}
    modules = modules_of([row for of_arm in rows.values() for row in of_arm])
    a, b = (stacks_of(rows.get(arm, []), "rate_hz") for arm in ("a", "b"))
    names = _names(record)
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


# The tiles of a page, and CSV.


def _list_tiles(record: Comparison) -> list[Tile]:
    """Return the differences of the judged metric, of cost and of speed, and the reasons for doubt."""
    tiles, places = [], Places(record)
    indexes = {metric.name: index for index, metric in enumerate(record.metrics)}
    speed = find_answer_metrics(record.metrics, record.verdict.metric).speed
    cost = next((name for name in COST if name in indexes), None)
    for name in dict.fromkeys([record.verdict.metric, cost, speed.name if speed else None]):
        if name not in indexes:
            continue
        metric, at = record.metrics[indexes[name]], f"/metrics/{indexes[name]}"
        claim, outcome = claim_of(metric), outcome_of(metric, len(record.metrics))
        if shows_times(metric, claim) and metric.ratio is not None and metric.ratio.b_over_a > 1:
            value = Markup("× {}").format(figure_html(places.figure(f"{at}/ratio/b_over_a", None)))
        elif percent_base(metric) is not None:
            value = figure_html(places.figure(f"{at}/difference/percent", 1, "%", sign=True))
        else:
            unit, factor = labels.choose_prefix(metric.unit, abs(metric.difference.b_minus_a or 0.0))
            unit = {"1": "", "1/s": "/s"}.get(unit, unit)
            value = figure_html(places.figure(f"{at}/difference/b_minus_a", None, unit, scale=factor, sign=True))
        heading = f"{labels.metric_words(metric.name)}{kind_words(metric)}"
        look = outcome.word if claim.verdict != "inconclusive" else "inconclusive"
        tiles.append(Tile(heading, value, f"B compared with A: {outcome.text}", look))
    pairs = record.blocks_count // 2
    doubts = len(record.verdict.doubts)
    note = f"{doubts} reason{'s' if doubts > 1 else ''} to doubt it, below" if doubts else "no serious threat found"
    count = Markup("{} pairs").format(pairs) if pairs else Markup("not in pairs")
    return [*tiles, Tile("Confidence, 95 % interval", count, note, "worse" if doubts else "")]


def _list_rows(record: Comparison) -> Iterator[Line]:
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
