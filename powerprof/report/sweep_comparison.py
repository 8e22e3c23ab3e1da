# SPDX-License-Identifier: Apache-2.0
"""Reports of two compared sweeps and of a trend: divergences, correlated metrics, and the steps between runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

import msgspec

from powerprof.experiment.claims import NO_BOUND_PERCENT, describe_direction, metric_named
from powerprof.experiment.records import Metric
from powerprof.experiment.sweep_comparison import (
    SweepComparison,
    SweepSide,
    Trend,
    TrendPoint,
    TrendStep,
    Value,
    claim_of_point,
    judged_metrics,
)
from powerprof.model import text
from powerprof.report import labels, table
from powerprof.report.answers import (
    MAY_BE_CHANCE,
    Outcome,
    bound_text,
    explain_chance,
    interval_text,
    verb_for,
    word_claim,
    word_threats,
    words,
)
from powerprof.report.document import Extras
from powerprof.report.html.charts import draw_metrics, one_curve
from powerprof.report.html.page import clean_name, render_page
from powerprof.report.labels import answer_and_context, format_significant, word_notes
from powerprof.report.metrics import judged_cell, parted_table, points_table
from powerprof.report.table import (
    Cell,
    Column,
    Figure,
    JudgedCell,
    Line,
    Places,
    Table,
    TableRow,
    Words,
    draw_table,
    escape,
    note_lines,
    without_empty,
)
from powerprof.statistics.verdicts import Claim, judge_claim


def word_sweep_comparison(record: SweepComparison) -> SweepComparison:
    """Return the record with its answer and its threats in words."""
    threats = word_threats(record.threats, {})
    return msgspec.structs.replace(record, text=_sweeps_answer(record), threats=threats)


def _sweeps_answer(record: SweepComparison) -> str:
    """Return where B diverges from A, with the largest difference."""
    points = judged_metrics(record)
    a, b, parameter = record.a.name, record.b.name, record.parameter
    if not points:
        return "No answer: the sweeps have no metric in common."
    what = "queries/s" if record.metric == "queries_hz" else words(record.metric)
    parts = []
    for way in ("higher", "lower"):
        moved = [point for point in points if point.parted and (_change(point.metric) > 0) == (way == "higher")]
        if not moved:
            continue
        most = max(moved, key=lambda point: abs(_change(point.metric)))
        where = _place_text([point.value for point in moved], [point.value for point in points], parameter)
        at = f" at {most.value}" if len(moved) > 1 else ""
        parts.append(
            f"{where}, {what} {verb_for(what)} {way} with {b} than with {a}: {_percent_change(most.metric)}{at}"
        )
    if not parts:
        where = f"between {a} and {b} in {what} at any of {len(points)} values of {parameter}"
        claims = [claim_of_point(point, point.metric) for point in points]
        places = [f"{parameter} {point.value}" for point in points]
        bound, reason = _largest_bound(claims, [point.metric.a.mean for point in points], places, what)
        if bound is None:
            return f"Inconclusive {where}: {reason}."
        return f"No measurable difference {where}: {bound}."
    text = "; ".join(parts)
    return f"{text[:1].upper()}{text[1:]}."


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


def _largest_bound(
    claims: Sequence[Claim], bases: Sequence[float | None], places: Sequence[str], what: str
) -> tuple[str | None, str]:
    """Return the largest bound of undecided claims about `what` in percent of their bases, or None and the reason."""
    unknown = sum(claim.unknown or not base for claim, base in zip(claims, bases, strict=True))
    hints = [place for place, claim in zip(places, claims, strict=True) if claim.hint is not None]
    bounds = [
        100 * claim.bound / abs(base)
        for claim, base in zip(claims, bases, strict=True)
        if claim.bound is not None and base
    ]
    if hints:
        return None, f"{MAY_BE_CHANCE} at {text.join_words(hints)} ({len(hints)} of {len(claims)})"
    if unknown:
        return None, f"the bound of a difference is unknown at {unknown} of {len(claims)}"
    if len(bounds) < len(claims) or max(bounds) > NO_BOUND_PERCENT:
        return None, "the intervals are too wide for a bound"
    return bound_text(max(bounds), f"{max(bounds):,.1f} % of {what} (95 % interval at each)"), ""


def _percent_change(metric: Metric) -> str:
    """Return a difference such as `+43.1 % (95 % interval: +38.2 % to +48.0 %)`."""
    percent, interval, base = metric.difference.percent, metric.difference.ci95, metric.a.mean
    if percent is None or not base:
        return "from 0" if base == 0 else f"{text.UNKNOWN} %"
    ends = "" if interval is None else " " + interval_text(f"{_signed(100 * end / abs(base))} %" for end in interval)
    return f"{_signed(percent)} %{ends}"


def _signed(percent: float) -> str:
    return f"{percent:+,.1f}".replace("-", "−")


# The table of functions with different shares where the sweeps diverge.


def parting_functions_table(record: SweepComparison, places: Places, limit: int = 20) -> Table:
    """Return one row per function with a significantly different share; without any, the largest differences."""
    significant = [number for number, function in enumerate(record.functions) if function.verdict != "inconclusive"]
    family, rows = len(record.functions), []
    for number in (significant or range(min(5, len(record.functions))))[:limit]:
        function, at = record.functions[number], f"/functions/{number}"
        cells: dict[str, Cell] = {
            "name": Words(function.function, "kernel" if function.kernel else function.module),
            "a": places.figure(f"{at}/a_percent", 2),
            "b": places.figure(f"{at}/b_percent", 2),
            "difference": places.figure(f"{at}/b_minus_a_percent", 2, ends=f"{at}/ci95", sign=True),
            "elsewhere": places.figure(f"{at}/elsewhere_percent", 2, sign=True),
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


def render_terminal(record: SweepComparison, width: int = text.DEFAULT_WIDTH) -> list[str]:
    """Return the report, at most `width` columns."""
    places = Places(record)
    printed = text.wrap(record.text, width)
    printed += text.wrap(" · ".join(_side_text(side) for side in (record.a, record.b)), width)
    doubts = [threat.text for threat in record.threats if threat.serious]
    if doubts:
        printed += text.wrap(f"Caution: {'; '.join(doubts)}.", width)
    if record.differences:
        printed += ["", "Other differences"]
        for difference in record.differences:
            printed += text.wrap(difference, width, "  ")
    points = points_table(record, places)
    title = f"{labels.metric_words(record.metric)} over {record.parameter}"
    printed += ["", *text.wrap(title[:1].upper() + title[1:], width)]
    printed += [*table.metric_lines(points, width), *(text.wrap(points.caption, width) if points.caption else [])]
    rows = list(zip(parted_table(record, places).rows, record.parted_with, strict=True))
    significant = [row for row, pair in rows if pair.verdict != "inconclusive"]
    hints = [row for row, _ in rows if _word_of(row) == MAY_BE_CHANCE]
    if significant:
        printed += ["", *_correlated_lines(record, significant[:_MAX_ROWS], width)]
        if len(significant) > _MAX_ROWS:
            printed.append(f"and {len(significant) - _MAX_ROWS} more: -o FILE.csv")
    elif rows:
        printed += ["", "No system metric differs significantly at these values."]
    if hints and not significant:
        heading = f"{len(hints)} of {len(rows)} differences may be chance:"
        printed += [*text.wrap(heading, width), *_correlated_lines(record, hints[:_MAX_ROWS], width)]
    printed += _function_lines(record, places, width)
    threats = [threat.text for threat in record.threats if not threat.serious]
    if threats:
        printed += ["", *text.wrap("Threats: " + "; ".join(threats) + ".", width)]
    for note in word_notes(record.notes):
        printed += text.wrap(f"Note: {note}", width)
    return printed


def _word_of(row: TableRow) -> str:
    judged = row.cells["verdict"]
    return judged.word if isinstance(judged, JudgedCell) else ""


def _function_lines(record: SweepComparison, places: Places, width: int) -> list[str]:
    """Return the functions with a larger or smaller share of the server's running time where the sweeps diverge."""
    if not record.functions:
        return []
    shown = parting_functions_table(record, places, _MAX_ROWS)
    has_significant = any(one.verdict != "inconclusive" for one in record.functions)
    title = "Functions with a significantly different share of the server's samples at these values, %:"
    if not has_significant:
        title = (
            "No function has a significantly different share of the server's samples at these values. The largest, %:"
        )
    headings = {"a": "A", "b": "B", "difference": "B − A, 95 %", "elsewhere": "elsewhere"}
    lines = table.function_lines(shown, headings, width)
    return ["", *text.wrap(title, width), *lines, *([f"{shown.left_count} more: --json"] if shown.left_count else [])]


def _side_text(side: SweepSide) -> str:
    parts = [
        f"{side.condition.workload}:{side.condition.name}",
        side.server and side.server.version,
        side.host.get("kernel"),
    ]
    return f"{side.name}: " + ", ".join(str(part) for part in parts if part)


def _correlated_lines(record: SweepComparison, figures: list[TableRow], width: int) -> list[str]:
    """Return one line per figure. Other forms show the whole intervals."""
    rows = [
        ["correlated metrics", text.shorten(record.a.name, 14), text.shorten(record.b.name, 14), "change", "elsewhere"]
    ]
    for row in figures:
        cells = []
        for key in ("a", "b", "difference", "elsewhere"):
            shown = row.cells[key]
            if not isinstance(shown, Figure):
                continue
            percent = key in ("difference", "elsewhere")
            cells.append("" if percent and shown.value is None else shown.whole if percent else shown.text)
        rows.append([text.shorten(row.short, 30), *cells])
    printed = text.fit_columns(rows, width)
    return [
        *printed,
        *text.wrap("change: in percent of the mean of both, over the values at which they diverge.", width),
    ]


# The HTML page: both sweeps over the values of the parameter, and the correlated metrics.

_CHART_METRICS = ("queries_hz", "latency_p95_ms", "c0_percent", "c0_ms_per_query_server", "joules_per_query")
_MAX_CHARTS = 10


def render_html(record: SweepComparison, extras: Extras) -> str:
    """Return the HTML page."""
    places = Places(record)
    answer, context = answer_and_context(render_terminal, record)
    significant_metrics = [metric.name for metric in record.parted_with if metric.verdict != "inconclusive"]
    return render_page(
        "sweepcomparison.html.j2",
        record,
        places,
        title=clean_name(answer),
        answer=answer,
        context=context,
        charts=draw_metrics(
            list(dict.fromkeys((record.metric, *_CHART_METRICS, *significant_metrics)))[:_MAX_CHARTS],
            [(str(point.value), point.metrics) for point in record.points],
            lambda metric: [(side.mean, *(side.ci95 or (None, None))) for side in (metric.a, metric.b)],
        ),
        points=without_empty(points_table(record, places)),
        parted=parted_table(record, places),
        functions=parting_functions_table(record, places),
    )


# Markdown and CSV.


def render_markdown(record: SweepComparison, context: str) -> list[str]:
    """Return the judged metric over the parameter, and the correlated metrics."""
    places = Places(record)
    points = points_table(record, places)
    written = ["", context, *draw_table(points), *(["", escape(points.caption)] if points.caption else [])]
    if record.parted_with:
        written += [
            "",
            "Values at which they diverge, and the other values:",
            *draw_table(parted_table(record, places)),
        ]
    if record.functions:
        functions = draw_table(parting_functions_table(record, places))
        written += ["", "Functions, in percent of the server's samples, at the diverging values:", *functions]
    if record.threats:
        written += ["", "Threats: " + escape("; ".join(threat.text for threat in record.threats)) + "."]
    return written + note_lines([*record.differences, *word_notes(record.notes)])


def render_csv(record: SweepComparison) -> Iterator[Line]:
    """Yield one line per metric of each value that both sweeps measured."""
    yield [
        *(record.parameter, "parted", "metric", "unit", "kind", "a", "b", "a_mean", "a_low", "a_high"),
        *("b_mean", "b_low", "b_high", "b_minus_a", "low", "high", "percent", "verdict", "hint"),
    ]
    for point in record.points:
        for metric in point.metrics:
            yield [
                *(str(point.value), str(point.parted), metric.name, metric.unit, metric.kind),
                *(record.a.name, record.b.name),
                *(metric.a.mean, *(metric.a.ci95 or (None, None))),
                *(metric.b.mean, *(metric.b.ci95 or (None, None))),
                *(metric.difference.b_minus_a, *(metric.difference.ci95 or (None, None))),
                *(metric.difference.percent, metric.verdict, metric.hint),
            ]


# The trend of a condition (`powerprof runs RUN --trend`): the answer, then one line per run.


def word_trend(record: Trend) -> Trend:
    """Return the record with its answer in words."""
    return msgspec.structs.replace(record, text=_trend_answer(record))


def _trend_answer(record: Trend) -> str:
    """Return the largest significant step between neighbouring runs, or the bound of the steps."""
    condition, points = record.condition, record.points
    same = condition.workload in ("command", condition.name)
    name = condition.name if same else f"{condition.workload}:{condition.name}"
    if len(points) == 1:
        return f"Only one run of {name}: no comparison is possible."
    every = [(before, after, after.step) for before, after in pairwise(points)]
    steps = [
        (before, after, step)
        for before, after, step in every
        if step is not None and step.verdict != "inconclusive" and step.difference.percent is not None
    ]
    metric = words(record.metric)
    if not steps:
        measured = [metric_named(before.metrics, record.metric) for before, _, _ in every]
        bases = [None if base is None else base.estimate.mean for base in measured]
        claims = [_claim_of_step(step) for _, _, step in every]
        bound, reason = _largest_bound(claims, bases, [after.run for _, after, _ in every], metric)
        where = f"in {metric} between neighbouring runs"
        if bound is None:
            return f"{name}, {len(points)} runs: inconclusive whether there is a step {where}: {reason}."
        return f"{name}, {len(points)} runs: no measurable step {where}: {bound}."
    before, after, step = max(steps, key=lambda step: abs(step[2].difference.percent or 0.0))
    percent = step.difference.percent or 0.0
    direction_text = "rose" if percent > 0 else "fell"
    left = len(steps) - 1
    others = f"; {text.plural(left, 'more step')} {'is' if left == 1 else 'are'} significant" if left else ""
    return (
        f"{name}, {len(points)} runs: {metric} {direction_text} by {abs(percent):,.1f} % "
        f"({describe_direction(record.metric, step.verdict)}) from {_run_name(before)} to {_run_name(after)}{others}."
    )


def _claim_of_step(step: TrendStep | None) -> Claim:
    return Claim(unknown=True) if step is None else judge_claim(step.verdict, step.difference.ci95)


def _step_outcome(trend: Trend, point: TrendPoint) -> Outcome:
    """Return the outcome of the step to a run; all steps are judged together."""
    return word_claim(trend.metric, _claim_of_step(point.step), len(trend.points) - 1, "steps")


def _explain_steps(trend: Trend) -> str:
    hints = (_claim_of_step(point.step).hint is not None for point in trend.points)
    return explain_chance(hints, len(trend.points) - 1, "steps")


def _run_name(point: TrendPoint) -> str:
    return point.run + (f" [{', '.join(point.labels)}]" if point.labels else "")


def render_trend_terminal(trend: Trend, width: int = text.DEFAULT_WIDTH) -> list[str]:
    """Return the report of a trend, at most `width` columns."""
    printed = text.wrap(trend.text, width)
    first = next((one for point in trend.points if (one := metric_named(point.metrics, trend.metric))), None)
    unit = f", {first.unit}" if first is not None and first.unit not in ("1", "") else ""
    kind = ", estimated" if first is not None and first.kind == "estimated" else ""
    printed += [*text.wrap(f"{words(trend.metric)}{unit}{kind}", width), ""]
    rows = [["run", "day", "mean", "95 %", "since previous run", "label"]]
    for point in trend.points:
        metric = metric_named(point.metrics, trend.metric)
        mean, ends = text.UNKNOWN, ""
        if metric is not None:
            mean = format_significant(metric.estimate.mean)
            if metric.estimate.low is not None and metric.estimate.high is not None:
                ends = f"[{format_significant(metric.estimate.low)}, {format_significant(metric.estimate.high)}]"
        rows.append([point.run, point.started_at[:10], mean, ends, _step_text(trend, point), " ".join(point.labels)])
    printed += text.fit_columns(rows, width, left=2)
    if chance := _explain_steps(trend):
        printed += text.wrap(chance, width)
    for point in trend.points:
        if point.differences:
            printed += ["", *text.wrap(f"{point.run}: {'; '.join(point.differences)}", width)]
    return [*printed, *(line for note in word_notes(trend.notes) for line in text.wrap(f"Note: {note}", width))]


def _step_text(trend: Trend, point: TrendPoint) -> str:
    if point.step is None:
        return ""
    percent = point.step.difference.percent
    return f"{text.signed(percent, 1)} %, {_step_outcome(trend, point).word}"


# The HTML page of a trend: each metric over the runs.

_MAX_TREND_CHARTS = 12


def render_trend_html(record: Trend, extras: Extras) -> str:
    """Return the HTML page of a trend."""
    places = Places(record)
    names = list(dict.fromkeys([record.metric, *(metric.name for point in record.points for metric in point.metrics)]))
    points = [(point.labels[-1] if point.labels else point.started_at[5:10], point.metrics) for point in record.points]
    return render_page(
        "trend.html.j2",
        record,
        places,
        derived=extras.derived,
        title=clean_name(record.text),
        charts=draw_metrics(names[:_MAX_TREND_CHARTS], points, one_curve),
        runs=_runs_table(record, places),
        metric_label=labels.metric_words(record.metric),
    )


def _runs_table(record: Trend, places: Places) -> Table:
    """Return one row per run with the judged metric and its step."""
    rows = []
    for number, point in enumerate(record.points):
        index = next((i for i, metric in enumerate(point.metrics) if metric.name == record.metric), None)
        at = f"/points/{number}/metrics/{index}/estimate" if index is not None else ""
        step = f"/points/{number}/step/difference" if point.step is not None else ""
        rows.append(
            TableRow(
                {
                    "run": Words(point.run, " ".join(point.labels)),
                    "day": Words(point.started_at[:16].replace("T", " ")),
                    "mean": places.figure(at and f"{at}/mean", None, ends=at),
                    "step": places.figure(step and f"{step}/percent", 1, "%", sign=True),
                    "verdict": _judged_step(record, point),
                    "else": Words("; ".join(point.differences)),
                }
            )
        )
    columns = [
        Column("run", "run", left=True),
        Column("day", "measured", left=True),
        Column("mean", "mean", interval="95 %"),
        Column("step", "since previous run"),
        Column("verdict", "verdict", left=True),
        Column("else", "other changes", left=True),
    ]
    return Table(columns, rows, "runs", _explain_steps(record))


def _judged_step(trend: Trend, point: TrendPoint) -> Words | JudgedCell:
    outcome = _step_outcome(trend, point)
    return Words("") if point.step is None else JudgedCell(outcome.word, outcome.count)
