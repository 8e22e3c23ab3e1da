# SPDX-License-Identifier: Apache-2.0
"""The page of a study: each finding then and now, and the steps with their runs."""

from __future__ import annotations

from powerprof.experiment.study_record import StudyRun
from powerprof.report.html.extras import Extras
from powerprof.report.html.figures import clean
from powerprof.report.html.page import page
from powerprof.report.tables.study import context, findings_table, headline, steps_table
from powerprof.report.tables.table import Places


def render(record: StudyRun, extras: Extras) -> str:
    """The page."""
    places, answer = Places(record), headline(record)
    return page(
        "study.html.j2",
        record,
        places,
        derived=extras.derived,
        title=clean(answer),
        answer=answer,
        context=context(record),
        findings=findings_table(record, places),
        steps=steps_table(record, places),
    )
