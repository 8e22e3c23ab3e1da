# SPDX-License-Identifier: Apache-2.0
"""The page of what `queries --watch` saw: a timeline of the server, and one of each statement."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup

from powerprof import text
from powerprof.queries.history import QueriesHistory
from powerprof.report.html.extras import Extras
from powerprof.report.html.figures import clean
from powerprof.report.html.page import page
from powerprof.report.html.svg import Bar, course
from powerprof.report.tables.table import Column, Places, Table, TableRow, Words
from powerprof.report.terminal.querieshistory import context, headline
from powerprof.report.wording.notes import texts

_TIMELINES, _BARS = 10, 240


def render(record: QueriesHistory, extras: Extras) -> str:
    """The page."""
    places, sentence = Places(record), headline(record)
    statements = [
        (f"{one.id} {clean(one.text, 160)}", _timeline(record, one.course_percent, one.id))
        for one in record.statements[:_TIMELINES]
    ]
    return page(
        "querieshistory.html.j2",
        record,
        places,
        title=clean(sentence),
        answer=sentence,
        context=context(record),
        whole=_timeline(record, [step.cpu_percent for step in record.steps], "the server"),
        timelines=statements,
        rows=_table(record, places),
        notes=texts(record.notes),
    )


def _timeline(record: QueriesHistory, values: Sequence[float], name: str) -> Markup:
    """A bar a step, or for several that follow each other, so that a page of hours can be read."""
    each = -(-len(record.steps) // _BARS)
    bars = []
    for first in range(0, len(record.steps), each):
        steps, some = record.steps[first : first + each], values[first : first + each]
        window_s = sum(step.window_s for step in steps)
        value = sum(part * step.window_s for part, step in zip(some, steps, strict=True)) / window_s
        title = f"{name}, {steps[0].at_s:.0f} to {steps[-1].until_s:.0f} s: {text.number(value, 1)} % of one CPU"
        bars.append(Bar(steps[0].at_s, steps[-1].until_s, value, "c0", title))
    return course(bars, "% of one CPU")


def _table(record: QueriesHistory, places: Places) -> Table:
    columns = [
        Column("text", "statement", left=True),
        Column("id", "id", left=True),
        Column("schema", "schema", left=True),
        Column("cpu", "% of a CPU"),
        Column("c0", "CPU s"),
        Column("calls", "calls"),
        Column("joules", "J"),
    ]
    rows = [
        TableRow(
            {
                "text": Words(one.text, code=True),
                "id": Words(one.id),
                "schema": Words(one.schema_name or ""),
                "cpu": places.figure(f"/statements/{number}/cpu_percent", 1),
                "c0": places.figure(f"/statements/{number}/c0_s", 3),
                "calls": places.figure(f"/statements/{number}/calls_count", 0),
                "joules": places.figure(f"/statements/{number}/joules", 2),
            }
        )
        for number, one in enumerate(record.statements)
    ]
    return Table(columns, rows, "statements")
