# SPDX-License-Identifier: Apache-2.0
"""`powerprof study` for a terminal: the answer, each finding then and now, and the steps with their runs."""

from __future__ import annotations

from collections.abc import Mapping

from powerprof import text
from powerprof.experiment.study_record import StudyRun
from powerprof.report.tables.study import context, findings_table, headline, steps_table, today
from powerprof.report.tables.table import Places
from powerprof.report.wording.notes import texts


def listing(plans: Mapping[str, str], width: int = text.DEFAULT_WIDTH) -> list[str]:
    """Each study with its title and how long it takes."""
    printed = [f"{len(plans)} studies. powerprof study NAME measures one; --quick is a trial."]
    for name, plan in plans.items():
        printed += ["", name, *text.wrap(plan, width, "  ")]
    return printed


def lines(record: StudyRun, width: int = text.DEFAULT_WIDTH) -> list[str]:
    """The report, at most `width` columns."""
    printed = [*text.wrap(headline(record), width), *text.wrap(context(record), width)]
    if record.interrupted:
        missing = [row.label for row in record.rows if row.outcome == "not measured"]
        printed += text.wrap(f"Ended early: this is what was measured until then; {len(missing)} not measured.", width)
    places = Places(record)
    for row in findings_table(record, places).rows:
        printed += ["", *text.wrap(f"{row.words('outcome').text}: {row.words('name').text}", width)]
        printed += text.wrap(f"then   {row.words('then').text}", width, "  ")
        printed += text.wrap(f"today  {today(row)}", width, "  ")
    printed.append("")
    for row in steps_table(record, places).rows:
        run, problem = row.words("run").text, row.words("problem").text
        printed += text.wrap(f"{run or 'not saved'}: {row.words('step').text}", width)
        printed += text.wrap(problem, width, "  ") if problem else []
    for note in texts(record.notes):
        printed += text.wrap(f"Note: {note}.", width)
    return printed
