# SPDX-License-Identifier: Apache-2.0
"""The page of a diagnosis: what to mend, what shows it and what ends it; then all wake-ups that it rests on."""

from __future__ import annotations

from powerprof.diagnosis.findings import Diagnosis
from powerprof.report.html.extras import Extras
from powerprof.report.html.figures import clean
from powerprof.report.html.page import page
from powerprof.report.html.tables import opened
from powerprof.report.tables.table import Places
from powerprof.report.terminal.diagnosis import answer, context, looked_lines, wakeups_table
from powerprof.report.wording.notes import texts

_OPEN_ROWS = 20
_MAX_ROWS = 200


def render(record: Diagnosis, extras: Extras) -> str:
    """The page."""
    places = Places(record)
    rows, more = opened(wakeups_table(record, places, _MAX_ROWS), _OPEN_ROWS)
    sentence = answer(record)
    return page(
        "diagnosis.html.j2",
        record,
        places,
        title=clean(sentence),
        answer=sentence,
        context=context(record),
        faults=[finding for finding in record.findings if finding.severity == "fault"],
        habits=[finding for finding in record.findings if finding.severity == "note"],
        looked=looked_lines(record),
        rows=rows,
        more=more,
        notes=list(dict.fromkeys([*record.evidence.notes, *texts(record.notes)])),
    )
