# SPDX-License-Identifier: Apache-2.0
"""A study as Markdown and CSV: each finding then and now, with the run that its figures are in."""

from __future__ import annotations

from collections.abc import Iterator

from powerprof.experiment.study_record import StudyRun
from powerprof.report.forms.csvfile import Line
from powerprof.report.forms.markdown import code, plain
from powerprof.report.tables.study import findings_table, today
from powerprof.report.tables.table import Places
from powerprof.report.wording.notes import texts


def markdown(record: StudyRun, context: str) -> list[str]:
    """The table of findings, and the steps."""
    return ["", context, *then_and_now(record), *_steps(record)]


def then_and_now(record: StudyRun) -> list[str]:
    """The findings, published and today."""
    rows = ["", "| finding | then | today | verdict | run |", "|---|---|---|---|---|"]
    for row, finding in zip(findings_table(record, Places(record)).rows, record.rows, strict=True):
        runs = ", ".join(code(run, 40) for run in finding.runs)
        verdict = finding.outcome if finding.outcome == "no claim" else f"**{finding.outcome}**"
        cells = [plain(finding.label), plain(finding.then), plain(today(row)), verdict, runs]
        rows.append(f"| {' | '.join(cells)} |")
    return rows


def _steps(record: StudyRun) -> list[str]:
    written = ["", "| step | run | what to know |", "|---|---|---|"]
    for step in record.steps:
        known = "; ".join(filter(None, [step.problem, *step.doubts]))
        written.append(f"| {code(step.typed)} | {code(step.run, 40) if step.run else ''} | {plain(known)} |")
    notes = [f"- {plain(note)}" for note in texts(record.notes)]
    return [*written, *(["", *notes] if notes else [])]


def csv_lines(record: StudyRun) -> Iterator[Line]:
    """A line a finding."""
    yield [
        *("finding", "then", "metric", "unit", "kind", "a", "a_low", "a_high", "b", "b_low", "b_high"),
        *("difference", "low", "high", "ratio", "ratio_low", "ratio_high", "published", "verdict", "runs"),
    ]
    for row in record.rows:
        figures = [
            value
            for one in (row.a, row.b, row.difference, row.ratio)
            for value in ((one.mean, one.low, one.high) if one else (None, None, None))
        ]
        about = (row.label, row.then, row.metric, row.unit, row.kind)
        yield [*about, *figures, row.expected, row.outcome, " ".join(row.runs)]
