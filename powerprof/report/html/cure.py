# SPDX-License-Identifier: Apache-2.0
"""The page of a cure: the answer, both arms side by side, each window, that it is put back, and how to keep it."""

from __future__ import annotations

from powerprof.cure.records import Cure
from powerprof.experiment.judge.answer import metric_named
from powerprof.report.html.extras import Extras
from powerprof.report.html.figures import clean
from powerprof.report.html.page import page
from powerprof.report.tables.metrics import cure_table, cure_windows_table
from powerprof.report.tables.table import Places
from powerprof.report.terminal.cure import context
from powerprof.report.wording.cures import answer, delayed, predicted_line
from powerprof.report.wording.notes import texts


def render(record: Cure, extras: Extras) -> str:
    """The page."""
    places, sentence = Places(record), record.verdict.text or answer(record)
    metric = metric_named(record.metrics, record.verdict.metric)
    helps = metric is not None and metric.verdict == "b_lower" and record.verdict.hurts is None
    return page(
        "cure.html.j2",
        record,
        places,
        title=clean(sentence),
        answer=sentence,
        context=context(record),
        predicted=predicted_line(record),
        metrics=cure_table(record, places),
        windows=cure_windows_table(record, places),
        helps=helps,
        delayed=delayed(record.remedy),
        notes=texts(record.notes),
    )
