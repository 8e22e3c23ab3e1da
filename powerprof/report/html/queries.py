# SPDX-License-Identifier: Apache-2.0
"""The page of `powerprof queries`: statements with bars, sorted by any column, and that the parts are the whole."""

from __future__ import annotations

from dataclasses import replace

from markupsafe import Markup

from powerprof.queries.records import Queries, Statement
from powerprof.report.html.extras import Extras
from powerprof.report.html.figures import clean
from powerprof.report.html.flames import FlameView, flame_view
from powerprof.report.html.page import page
from powerprof.report.html.tables import Drawn, without_empty
from powerprof.report.stacks.flamegraph import flame
from powerprof.report.tables.notes import all_of
from powerprof.report.tables.phases import split_table
from powerprof.report.tables.statements import WAITS, queries_table
from powerprof.report.tables.table import Figure, Places, TableRow, Words
from powerprof.report.terminal.queries import balance, context, headline, plan_text

MAX_ROWS = 500
_WAITING = 100
_WAIT_KEYS = tuple(f"wait_{name}" for name in WAITS)
# Beside these a table of 1,280 px has no room for who asks.
_SECOND_KEYS = ("faults", "examined", "sent")
_FLAMES, _FRAMES = 10, 800
_BAR = Markup('<span class="share"><span style="--w:{:.4g}%"></span></span>')


def render(record: Queries, extras: Extras) -> str:
    """The page."""
    places = Places(record)
    whole = queries_table(record, places)
    count = len(record.statements)
    rows = [*(_as_sql(row) for row in whole.rows[: min(count, MAX_ROWS)]), *whole.rows[count:]]
    first = [column for column in whole.of("html").columns if column.key not in _SECOND_KEYS]
    shown = without_empty(replace(whole, rows=rows, columns=first).of("html"))
    waiting = [row for row, statement in zip(rows, record.statements, strict=False) if _has_second(statement)]
    keys = ("text", "p50", "p99", "c0", *_WAIT_KEYS, *_SECOND_KEYS)
    waits = without_empty(replace(whole, rows=waiting[:_WAITING], label="waits").of("html", keys))
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
        waits=waits,
        left_count=max(count - MAX_ROWS, 0),
        plans=[
            (clean(statement.text, 400), plan_text(statement.plan)) for statement in record.statements if statement.plan
        ],
        flames=_flames(record),
        energy=split_table(split, places, "/energy_split") if split else None,
    )


def _has_second(statement: Statement) -> bool:
    return statement.waits_ms is not None or statement.rows_examined_per_call is not None


def _as_sql(row: TableRow) -> TableRow:
    cell = row.cells.get("text")
    return replace(row, cells={**row.cells, "text": replace(cell, code=True)}) if isinstance(cell, Words) else row


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
