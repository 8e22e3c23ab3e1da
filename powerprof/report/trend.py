# SPDX-License-Identifier: Apache-2.0
"""Reports of the trend of a condition (`powerprof runs RUN --trend`): the answer, then one line per run."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import pairwise

from markupsafe import Markup
from msgspec.structs import replace

from powerprof.experiment.claims import describe_direction, metric_named
from powerprof.experiment.trend import Trend, TrendPoint, TrendStep
from powerprof.model import text
from powerprof.model.records import Kind
from powerprof.report.answers import (
    Outcome,
    explain_chance,
    join_outcomes,
    noun_of,
    of_each,
    word_claim,
    word_undecided,
)
from powerprof.report.document import NOT_TERMINAL, TERMINAL, Document, Drawing, Part, Section, Sentence, Shown, View
from powerprof.report.html.charts import draw_metrics, one_curve, place_charts
from powerprof.report.labels import metric_words
from powerprof.report.table import HTML, Column, Figure, JudgedCell, Line, Places, Table, TableRow, Words
from powerprof.statistics.verdicts import UNKNOWN_CLAIM, Claim, judge_claim


def word_trend(record: Trend) -> Trend:
    """Return the record with its answer in words."""
    return replace(record, text=_trend_answer(record))


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
    metric = noun_of(record.metric)
    if not steps:
        measured = [metric_named(before.metrics, record.metric) for before, _, _ in every]
        bases = [None if base is None else base.estimate.mean for base in measured]
        claims = [_claim_of_step(step) for _, _, step in every]
        outcome = join_outcomes(claims, bases, [after.run for _, after, _ in every], of_each(metric))
        where = f"in {metric} between neighbouring runs"
        said = word_undecided(outcome, "step", where, f"there is a step {where}")
        return f"{name}, {len(points)} runs: {said[:1].lower()}{said[1:]}."
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
    return UNKNOWN_CLAIM if step is None else judge_claim(step.verdict, step.difference.ci95)


def _step_outcome(trend: Trend, point: TrendPoint) -> Outcome:
    """Return the outcome of the step to a run; all steps are judged together."""
    return word_claim(trend.metric, _claim_of_step(point.step), len(trend.points) - 1, "steps")


def _explain_steps(trend: Trend) -> str:
    hints = (_claim_of_step(point.step).hint is not None for point in trend.points)
    return explain_chance(hints, len(trend.points) - 1, "steps")


def _run_name(point: TrendPoint) -> str:
    return point.run + (f" [{', '.join(point.labels)}]" if point.labels else "")


def document(trend: Trend, view: View) -> Document:
    """Return the report of a trend: one row per run, with the steps between them."""
    unit, kind = _unit_of(trend)
    parts = [metric_words(trend.metric), unit.removeprefix("1") and unit, "estimated" if kind == "estimated" else ""]
    return Document(
        record=trend,
        answer=trend.text,
        context=", ".join(filter(None, parts)),
        lead=[Sentence(_CORRECTED, forms=NOT_TERMINAL)],
        parts=partial(_list_parts, trend),
        rows=partial(_list_rows, trend),
        setup=(("Condition", "/condition"),),
        derived=view.extras.derived,
    )


def _unit_of(trend: Trend) -> tuple[str, Kind]:
    """Return the unit and the kind of the judged metric; estimated if it is in one run."""
    known = [one for point in trend.points if (one := metric_named(point.metrics, trend.metric))]
    kind: Kind = "estimated" if any(one.kind == "estimated" for one in known) else "measured"
    return (known[0].unit if known else ""), kind


_CORRECTED = "Steps are corrected for multiple comparisons: one in twenty histories without a change has a false step."


def _list_parts(trend: Trend) -> Iterator[Part]:
    runs = runs_table(trend, Places(trend))
    yield Section("Run by run", [Shown(runs, run_lines, what="runs"), Sentence(runs.caption, forms=TERMINAL)], "runs")
    changed = [point for point in trend.points if point.differences]
    for point in changed:
        yield Section("", [Sentence(f"{point.run}: {'; '.join(point.differences)}")], forms=TERMINAL)
    yield Section("Over time", [Drawing(partial(_draw_charts, trend), look="")], name="charts", forms=HTML)


def run_lines(table: Table, width: int) -> list[str]:
    """Return one line per run: its mean with the interval, the step to it, and its labels."""
    heading = next(column.heading for column in table.columns if column.key == "mean")
    rows = [["run", "day", heading, "95 %", "since previous run", "label"]]
    for row in table.rows:
        mean, step, run = row.cells["mean"], row.cells["step"], row.words("run")
        ends = ""
        if isinstance(mean, Figure) and mean.ends is not None:
            ends = f"[{', '.join(end.text for end in mean.ends)}]"
        verdict = row.words("verdict").text
        since = f"{step.whole}, {verdict}" if isinstance(step, Figure) and verdict else ""
        value = mean.whole if isinstance(mean, Figure) else ""
        rows.append([run.text, row.words("day").text[:10], value, ends, since, run.more])
    return text.fit_columns(rows, width, left=2)


def _list_rows(trend: Trend) -> Iterator[Line]:
    """Yield one line per metric of each run; the step is that of the judged metric."""
    yield [
        *("run", "started_at", "labels", "metric", "unit", "kind", "mean", "low", "high"),
        *("step_percent", "verdict", "differences"),
    ]
    for point in trend.points:
        for metric in point.metrics:
            step = point.step if metric.name == trend.metric else None
            yield [
                *(point.run, point.started_at, " ".join(point.labels), metric.name, metric.unit, metric.kind),
                *(metric.estimate.mean, metric.estimate.low, metric.estimate.high),
                *((None, None) if step is None else (step.difference.percent, step.verdict)),
                "; ".join(point.differences),
            ]


_MAX_CHARTS = 12


def _draw_charts(record: Trend) -> Markup:
    """Draw each metric over the runs."""
    names = list(dict.fromkeys([record.metric, *(metric.name for point in record.points for metric in point.metrics)]))
    points = [(point.labels[-1] if point.labels else point.started_at[5:10], point.metrics) for point in record.points]
    return place_charts(draw_metrics(names[:_MAX_CHARTS], points, one_curve))


def runs_table(record: Trend, places: Places) -> Table:
    """Return one row per run with the judged metric and its step."""
    rows, (unit, kind) = [], _unit_of(record)
    for number, point in enumerate(record.points):
        index = next((i for i, metric in enumerate(point.metrics) if metric.name == record.metric), None)
        at = f"/points/{number}/metrics/{index}/estimate" if index is not None else ""
        step = f"/points/{number}/step/difference" if point.step is not None else ""
        rows.append(
            TableRow(
                {
                    "run": Words(point.run, " ".join(point.labels), strong=True),
                    "day": Words(point.started_at[:16].replace("T", " "), ours=True),
                    "mean": places.figure(at and f"{at}/mean", None, unit, ends=at),
                    "step": places.figure(step and f"{step}/percent", 1, "%", sign=True),
                    "verdict": _judged_step(record, point),
                    "else": Words("; ".join(point.differences)),
                }
            )
        )
    columns = [
        Column("run", "run", left=True),
        Column("day", "measured", left=True),
        Column("mean", f"mean{', estimated' if kind == 'estimated' else ''}", interval="95 %"),
        Column("step", "since previous run"),
        Column("verdict", "verdict", left=True),
        Column("else", "other changes", left=True),
    ]
    return Table(columns, rows, "runs", _explain_steps(record))


def _judged_step(trend: Trend, point: TrendPoint) -> Words | JudgedCell:
    outcome = _step_outcome(trend, point)
    return Words("") if point.step is None else JudgedCell(outcome.word, outcome.count)
