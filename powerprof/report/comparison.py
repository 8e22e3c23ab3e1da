# SPDX-License-Identifier: Apache-2.0
"""Reports of `powerprof compare`: the answer, the metrics side by side, plans, threats and the measuring cost."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from markupsafe import Markup
from msgspec.structs import replace

from powerprof.experiment.claims import claim_of, find_answer_metrics, percent_base
from powerprof.experiment.records import Comparison
from powerprof.model import text
from powerprof.report import labels
from powerprof.report.answers import explain_metrics, outcome_of, shows_times
from powerprof.report.comparison_setup import describe_windows, list_design, list_plan_texts, list_plans
from powerprof.report.comparison_words import count_deciding_pairs, speed_and_power
from powerprof.report.document import (
    NOT_HTML,
    NOT_TERMINAL,
    TERMINAL,
    Document,
    Item,
    Items,
    Part,
    Section,
    Sentence,
    Shown,
    Tile,
    View,
)
from powerprof.report.html.comparison import (
    draw_blocks,
    draw_differences,
    draw_functions,
    draw_pairs,
    draw_windows,
    list_states,
    name_conditions,
)
from powerprof.report.html.text import figure_html
from powerprof.report.layouts import function_lines, metric_lines
from powerprof.report.metrics import DISK_SERVICE, comparison_table, functions_table, system_table
from powerprof.report.phase_parts import cost_of
from powerprof.report.run import COST, kind_words
from powerprof.report.table import ALL, HTML, Form, Line, Places, Table, exact_cells, split_rows
from powerprof.report.topology import list_servers, list_traced, traced_lines


def document(record: Comparison, view: View) -> Document:
    """Return the report of a comparison; on a terminal six rows, or everything."""
    left = len(record.metrics) - len(_short_rows(record)) + len(record.system)
    return Document(
        views=("everything",),
        record=record,
        answer=record.verdict.text,
        context=describe_windows(record),
        title=" against ".join(name_conditions(record)),
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


def _list_lead(record: Comparison, view: View) -> list[Sentence]:
    """Return the sentences below the answer; the short report has the first doubt and the first difference."""
    verdict, differences = record.verdict, record.differences
    lead = [Sentence(each, look="lead") for each in (verdict.ground or "", speed_and_power(record))]
    lead.append(Sentence(count_deciding_pairs(record), look="muted"))
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
    yield Section("Pair by pair", [draw_pairs(record)], "pairs")
    yield Section("Spread of the windows", [draw_windows(record)], "spread")
    yield Section("CPU idle states", list_states(record, places), "states", NOT_TERMINAL, forms=NOT_TERMINAL)
    yield Section("Over time", [draw_blocks(record)], "course")
    yield Section("Functions that woke the CPUs", [draw_functions(record)], "flames")
    yield _system_of(record, places, details)
    measured = [Sentence(f"{words}.", label, forms=details) for label, words in list_design(record) if words]
    plans = Sentence(" · ".join(list_plan_texts(record)), "Plans", forms=NOT_HTML)
    functions = _list_functions(record, places)
    # The short report has no empty line between these.
    nearby = [] if view.everything else [replace(part, forms=TERMINAL) for part in functions]
    yield Section("Measurement", [*measured, plans, *nearby], "measured")
    yield Section("Functions that changed", functions, "functions", NOT_TERMINAL, forms=details)
    yield Section("Query plans", list_plans(record), "plans", forms=HTML)
    for section in list_servers(record):
        yield replace(section, forms=details)
    yield Section(
        "Other differences", [Items([Item(each) for each in record.differences])], "differences", ALL, forms=details
    )
    threats = Items([Item(f"{threat.text}.") for threat in record.threats])
    yield Section("Threats to validity", [threats], "doubt", ALL, forms=details)
    yield replace(cost_of(record.tool), forms=details - HTML)


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
    judged = record.verdict.metric
    leading = [
        number
        for number, metric in enumerate(record.metrics)
        if metric.name == judged or metric.name.startswith(_FIRST_METRICS) or not number
    ]
    leading.sort(key=lambda number: record.metrics[number].name != judged)
    order = leading + [number for number in range(len(whole.rows)) if number not in leading]
    drawn = partial(draw_differences, [record.metrics[number] for number in order])
    over = "over pairs of neighbouring blocks" if record.blocks_count else "of two runs at different times"
    chart = (
        "The chart shows B relative to A with its 95 % interval: filled if the difference is significant, open if not, "
        "an arrow if it continues beyond the axis."
    )
    names = name_conditions(record)
    return [
        Shown(replace(whole, rows=[whole.rows[place] for place in shown]), metric_lines, forms=TERMINAL),
        Sentence(explain_metrics([record.metrics[place] for place in shown], len(record.metrics)), forms=TERMINAL),
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
        Shown(table, _function_lines, what="functions", is_further=True),
    ]


def _function_lines(table: Table, width: int) -> list[str]:
    headings = {"a": "A self", "b": "B self", "difference": "B − A, 95 %", "a_total": "A all", "b_total": "B all"}
    first, rest = split_rows(table, _TERMINAL_FUNCTIONS)
    left = len(rest.rows) + table.left_count
    return [*function_lines(first, headings, width), *([f"{left} more: --json"] if left else [])]


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
        if claim.is_typical:
            value = Markup("× {}").format(figure_html(places.figure(f"{at}/typical/b_over_a", None)))
        elif shows_times(metric, claim) and metric.ratio is not None and metric.ratio.b_over_a > 1:
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
    """Yield one line per metric with the values of each pair, then the wake-ups of the traced windows."""
    pairs = max((len(side.values) for metric in record.metrics for side in (metric.a, metric.b)), default=0)
    yield [
        *("metric", "unit", "kind", "a", "b", "a_mean", "a_low", "a_high", "b_mean", "b_low", "b_high"),
        *("b_minus_a", "low", "high", "percent", "verdict"),
        *("minimum_detectable_percent", "hint", "typical_ratio", "typical_low", "typical_high"),
        *(f"{arm}_{number}" for arm in "ab" for number in range(1, pairs + 1)),
    ]
    places = Places(record)
    rows = [*comparison_table(record, places).rows, *system_table(record, places).rows]
    for row, metric in zip(rows, [*record.metrics, *record.system], strict=True):
        typical = metric.typical
        yield [
            *(row.key, row.exact_unit, row.kind, record.a.name, record.b.name),
            *exact_cells(row, "a", "b", "difference"),
            next(exact_cells(row, "percent")),
            *(metric.verdict, metric.minimum_detectable_percent, claim_of(metric).hint),
            *((None,) * 3 if typical is None else (typical.b_over_a, *(typical.ci95 or (None, None)))),
            *(value for side in (metric.a, metric.b) for value in [*side.values, *[None] * (pairs - len(side.values))]),
        ]
    for name, window in list_traced(record):
        yield from traced_lines(name, window)
