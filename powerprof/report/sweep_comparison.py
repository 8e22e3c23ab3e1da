# SPDX-License-Identifier: Apache-2.0
"""Reports of two compared sweeps: where they diverge, and the correlated metrics and functions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from markupsafe import Markup
from msgspec.structs import replace

from powerprof.experiment.records import Metric
from powerprof.experiment.sweep_comparison import SweepComparison, SweepSide, Value, claim_of_point, judged_metrics
from powerprof.model import text
from powerprof.report import labels, layouts
from powerprof.report.answers import MAY_BE_CHANCE, interval_text, join_outcomes, noun_of, of_each, word_undecided
from powerprof.report.comparison_words import word_threats
from powerprof.report.document import (
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
    View,
)
from powerprof.report.html.charts import draw_legend, draw_metrics, place_charts
from powerprof.report.metrics import JUDGED_HEADS, judged_cell, judged_cells, parted_table, points_table
from powerprof.report.table import ALL, HTML, Cell, Column, Figure, JudgedCell, Line, Places, Table, TableRow, Words


def word_sweep_comparison(record: SweepComparison) -> SweepComparison:
    """Return the record with its answer and its threats in words."""
    threats = word_threats(record.threats, {})
    return replace(record, text=_sweeps_answer(record), threats=threats)


def _sweeps_answer(record: SweepComparison) -> str:
    """Return where B diverges from A, with the largest difference."""
    points = judged_metrics(record)
    a, b, parameter = record.a.name, record.b.name, record.parameter
    if not points:
        return "No answer: the sweeps have no metric in common."
    what, verb = noun_of(record.metric), labels.define_metric(record.metric).verb
    parts = []
    for way in ("higher", "lower"):
        moved = [point for point in points if point.parted and (_change(point.metric) > 0) == (way == "higher")]
        if not moved:
            continue
        most = max(moved, key=lambda point: abs(_change(point.metric)))
        where = _place_text([point.value for point in moved], [point.value for point in points], parameter)
        at = f" at {most.value}" if len(moved) > 1 else ""
        parts.append(f"{where}, {what} {verb} {way} with {b} than with {a}: {_percent_change(most.metric)}{at}")
    if not parts:
        where = f"in {what} at any of {len(points)} values of {parameter}"
        claims = [claim_of_point(point, point.metric) for point in points]
        places = [f"{parameter} {point.value}" for point in points]
        outcome = join_outcomes(claims, [point.metric.a.mean for point in points], places, of_each(what))
        about, asked = f"between {a} and {b} {where}", f"{a} and {b} differ {where}"
        return f"{word_undecided(outcome, 'difference', about, asked)}."
    sentence = "; ".join(parts)
    return f"{sentence[:1].upper()}{sentence[1:]}."


def _place_text(points: Sequence[Value], every: Sequence[Value], parameter: str) -> str:
    """Return `at every value of clients`, `from clients 16 on` or `at clients 4 and 64`."""
    if len(points) == len(every) > 1:
        return f"at every value of {parameter}"
    if len(points) > 1 and list(points) == list(every[-len(points) :]):
        return f"from {parameter} {points[0]} on"
    *most, last = [str(value) for value in points]
    return f"at {parameter} {', '.join(most)} and {last}" if most else f"at {parameter} {last}"


def _change(metric: Metric) -> float:
    return metric.difference.b_minus_a or 0.0


def _percent_change(metric: Metric) -> str:
    """Return a difference such as `+43.1 % (95 % interval: +38.2 % to +48.0 %)`."""
    percent, interval, base = metric.difference.percent, metric.difference.ci95, metric.a.mean
    if percent is None or not base:
        return "from 0" if base == 0 else f"{text.UNKNOWN} %"
    ends = "" if interval is None else " " + interval_text(f"{_signed(100 * end / abs(base))} %" for end in interval)
    return f"{_signed(percent)} %{ends}"


def _signed(percent: float) -> str:
    return f"{percent:+,.1f}".replace("-", "−")


def parting_functions_table(record: SweepComparison, places: Places, limit: int = 20) -> Table:
    """Return one row per function with a significantly different share; without any, the largest differences."""
    significant = [number for number, function in enumerate(record.functions) if function.verdict != "inconclusive"]
    family, rows = len(record.functions), []
    for number in (significant or range(min(5, len(record.functions))))[:limit]:
        function, at = record.functions[number], f"/functions/{number}"
        cells: dict[str, Cell] = {
            "name": Words(function.function, "kernel" if function.kernel else function.module),
            "a": places.figure(f"{at}/a_percent", 2, "%"),
            "b": places.figure(f"{at}/b_percent", 2, "%"),
            "difference": places.figure(f"{at}/b_minus_a_percent", 2, "%", ends=f"{at}/ci95", sign=True),
            "elsewhere": places.figure(f"{at}/elsewhere_percent", 2, "%", sign=True),
            "verdict": judged_cell(function.verdict, function.ci95, family, "functions"),
        }
        rows.append(TableRow(cells, key=function.function, short=function.function, exact_unit="%"))
    return Table(
        [
            Column("name", "function", left=True),
            Column("a", "A", record.a.name),
            Column("b", "B", record.b.name),
            Column("difference", "diverging values", interval="95 %"),
            Column("elsewhere", "elsewhere"),
            Column("verdict", "verdict", left=True),
        ],
        rows,
        "functions, % of the server's samples",
        left_count=len(significant) - len(rows) if significant else 0,
    )


_MAX_ROWS = 12


def function_lines(shown: Table, width: int) -> list[str]:
    """Return the functions for a terminal, with the interval of the difference."""
    headings = {"a": "A", "b": "B", "difference": "B − A, 95 %", "elsewhere": "elsewhere"}
    lines = layouts.function_lines(replace(shown, rows=shown.rows[:_MAX_ROWS]), headings, width)
    left = max(0, len(shown.rows) - _MAX_ROWS) + shown.left_count
    return [*lines, *([f"{left} more: --json"] if left else [])]


def correlated_lines(shown: Table, width: int) -> list[str]:
    """Return one line per metric. Other forms show the whole intervals."""
    sides = [text.shorten(column.name, 14) for column in shown.columns if column.key in ("a", "b")]
    rows = [["correlated metrics", *sides, "change", "elsewhere"]]
    for row in shown.rows[:_MAX_ROWS]:
        cells = [row.cells[key] for key in ("a", "b", "difference", "elsewhere")]
        known = [
            cell.whole if isinstance(cell, Figure) and (cell.value is not None or not cell.unit) else ""
            for cell in cells
        ]
        rows.append([text.shorten(row.short, 30), *known])
    left = len(shown.rows) - _MAX_ROWS
    return [*text.fit_columns(rows, width), *([f"and {left} more: -o FILE.csv"] if left > 0 else [])]


def _side_text(side: SweepSide) -> str:
    parts = [
        f"{side.condition.workload}:{side.condition.name}",
        side.server and side.server.version,
        side.host.get("kernel"),
    ]
    return f"{side.name}: " + ", ".join(str(part) for part in parts if part)


def document(record: SweepComparison, view: View) -> Document:
    """Return the report of two sweeps: where they diverge, and the metrics and functions that go along with it."""
    return Document(
        record=record,
        answer=record.text,
        context=" · ".join(_side_text(side) for side in (record.a, record.b)),
        lead=[Sentence(f"{threat.text}.", "Caution", "warning") for threat in record.threats if threat.serious],
        parts=partial(_list_parts, record),
        rows=partial(_list_rows, record),
        setup=[
            (f"{name}{what}", f"/{name.lower()}/{place}")
            for name in "AB"
            for what, place in (("", "host"), (": server", "server"), (": options", "options"))
        ],
        derived=view.extras.derived,
    )


def _list_parts(record: SweepComparison) -> Iterator[Part]:
    places = Places(record)
    yield Section("Other differences", [Items([Item(each) for each in record.differences])], "differences", ALL)
    yield Section(f"Over {record.parameter}", [Drawing(partial(_draw_charts, record), look="")], "charts", forms=HTML)
    points = points_table(record, places)
    heading = f"{labels.metric_words(record.metric)} over {record.parameter}"
    judged: list[Part] = [Shown(points, layouts.metric_lines), Sentence(points.caption, forms=TERMINAL)]
    yield Section(heading[:1].upper() + heading[1:], judged, name="metrics", headed=ALL)
    yield Section("Correlated metrics", _list_correlated(record, places), name="parted", headed=NOT_TERMINAL)
    yield Section("Functions", _list_functions(record, places), name="functions", headed=NOT_TERMINAL)
    threats = [threat.text for threat in record.threats if not threat.serious]
    yield Section("", [Sentence(f"{'; '.join(threats)}.", "Threats")] if threats else [])


def _list_correlated(record: SweepComparison, places: Places) -> list[Part]:
    """Return the metrics of the system; a terminal shows the significant ones, or those that may be chance."""
    parted = parted_table(record, places)
    if not parted.rows:
        return []
    significant = [metric.verdict != "inconclusive" for metric in record.parted_with]
    hints = [_word_of(row) == MAY_BE_CHANCE for row in parted.rows]
    chosen = significant if any(significant) else hints
    rows = [
        replace(row, forms=ALL if is_chosen else NOT_TERMINAL)
        for row, is_chosen in zip(parted.rows, chosen, strict=True)
    ]
    sentences = [] if any(significant) else ["No system metric differs significantly at these values."]
    if hints.count(True) and not any(significant):
        sentences.append(f"{hints.count(True)} of {len(rows)} differences may be chance.")
    explained = Sentence(
        "Differences are in percent of the mean of both, over the values at which the sweeps diverge; elsewhere: over "
        "the other values.",
        look="muted",
        forms=ALL if any(chosen) else NOT_TERMINAL,
    )
    return [
        *map(Sentence, sentences),
        Shown(replace(parted, rows=rows), correlated_lines, what="metrics", is_further=True),
        explained,
    ]


def _word_of(row: TableRow) -> str:
    judged = row.cells["verdict"]
    return judged.word if isinstance(judged, JudgedCell) else ""


def _list_functions(record: SweepComparison, places: Places) -> list[Part]:
    """Return the functions with a larger or smaller share of the server's samples where the sweeps diverge."""
    if not record.functions:
        return []
    title = "Functions with a significantly different share of the server's samples at these values, %:"
    if all(one.verdict == "inconclusive" for one in record.functions):
        title = (
            "No function has a significantly different share of the server's samples at these values. The largest, %:"
        )
    shown = Shown(parting_functions_table(record, places), function_lines, what="functions", is_further=True)
    return [Sentence(title), shown]


_CHART_METRICS = ("queries_hz", "latency_p95_ms", "c0_percent", "c0_ms_per_query_server", "joules_per_query")
_MAX_CHARTS = 10


def _draw_charts(record: SweepComparison) -> Markup:
    """Draw both sweeps over the values of the parameter."""
    significant = [metric.name for metric in record.parted_with if metric.verdict != "inconclusive"]
    charts = draw_metrics(
        list(dict.fromkeys((record.metric, *_CHART_METRICS, *significant)))[:_MAX_CHARTS],
        [(str(point.value), point.metrics) for point in record.points],
        lambda metric: [(side.mean, *(side.ci95 or (None, None))) for side in (metric.a, metric.b)],
    )
    return draw_legend(record.a.name, record.b.name) + place_charts(charts) if charts else Markup()


def _list_rows(record: SweepComparison) -> Iterator[Line]:
    """Yield one line per metric of each value that both sweeps measured."""
    yield [record.parameter, "parted", "metric", "unit", "kind", "a", "b", *JUDGED_HEADS]
    for point in record.points:
        for metric in point.metrics:
            identity = (str(point.value), str(point.parted), metric.name, metric.unit, metric.kind)
            yield [*identity, record.a.name, record.b.name, *judged_cells(metric)]
