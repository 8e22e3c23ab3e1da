# SPDX-License-Identifier: Apache-2.0
"""The page of `powerprof queries`: statements with bars, sorted by any column, and that the parts are the whole."""

from __future__ import annotations

from dataclasses import replace

from markupsafe import Markup

from powerprof.queries.records import Queries
from powerprof.report.html.extras import Extras
from powerprof.report.html.figures import clean
from powerprof.report.html.flames import FlameView, flame_view
from powerprof.report.html.page import page
from powerprof.report.html.tables import Drawn
from powerprof.report.stacks.flamegraph import flame
from powerprof.report.tables.notes import all_of
from powerprof.report.tables.phases import split_table
from powerprof.report.tables.table import Column, Figure, Places, TableRow, Words
from powerprof.report.terminal.queries import balance, context, headline, plan_text, queries_table

MAX_ROWS = 500
_FLAMES, _FRAMES = 10, 800
# What the server may not have told of any statement: such a column is none.
_ASKED = ("examined", "sent", "schema")
_BAR = Markup('<span class="share"><span style="--w:{:.4g}%"></span></span>')


def render(record: Queries, extras: Extras) -> str:
    """The page."""
    places = Places(record)
    whole = queries_table(record, places)
    count = len(record.statements)
    rows = [*whole.rows[: min(count, MAX_ROWS)], *whole.rows[count:]]
    columns = [
        column for column in whole.columns if column.key not in _ASKED or any(_is_known(row, column) for row in rows)
    ]
    shown = replace(whole, rows=rows, columns=columns).of("html")
    bars = Drawn("calls", Markup("share"), [_bar(row) for row in shown.rows])
    split = record.energy_split
    return page(
        "queries.html.j2",
        record,
        places,
        title=clean(headline(record)),
        answer=headline(record),
        context=context(record),
        balance=balance(record),
        notes=all_of(record),
        rows=shown,
        bars=bars,
        left_count=max(count - MAX_ROWS, 0),
        plans=[
            (clean(statement.text, 400), plan_text(statement.plan)) for statement in record.statements if statement.plan
        ],
        flames=_flames(record),
        energy=split_table(split, places, "/energy_split") if split else None,
    )


def _is_known(row: TableRow, column: Column) -> bool:
    cell = row.cells.get(column.key)
    return cell.value is not None if isinstance(cell, Figure) else isinstance(cell, Words) and bool(cell.text)


def _flames(record: Queries) -> list[FlameView]:
    """Of the statements with most samples; closed ones are not laid out until they are opened."""
    known = [statement for statement in record.statements if statement.stacks]
    known.sort(key=lambda statement: -sum(stack.count for stack in statement.stacks))
    views = []
    for statement in known[:_FLAMES]:
        stacks = [(tuple(stack.frames), float(stack.count)) for stack in statement.stacks]
        graph = flame(stacks, unit="samples of C0", root="statement", limit=_FRAMES)
        views.append(flame_view(graph, clean(statement.text, 200), record.modules))
    return [view for view in views if view]


def _bar(row: TableRow) -> Markup:
    cell = row.cells.get("percent")
    value = cell.value if isinstance(cell, Figure) else None
    return _BAR.format(min(max(float(value or 0.0), 0.0), 100.0))
