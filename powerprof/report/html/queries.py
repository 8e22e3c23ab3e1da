# SPDX-License-Identifier: Apache-2.0
"""Statements on a page: all of them with bars, sortable by any column; their waits and flame graphs."""

from __future__ import annotations

from markupsafe import Markup
from msgspec.structs import replace

from powerprof.queries.records import Queries, Statement
from powerprof.report.flame import build_flame
from powerprof.report.html.flames import draw_flame, draw_flames
from powerprof.report.html.text import clean_name
from powerprof.report.statement_tables import WAITS, queries_table
from powerprof.report.table import DrawnColumn, Figure, Places, Table, TableRow, without_empty

MAX_ROWS = 500
_MAX_WAITING = 100
_WAIT_KEYS = tuple(f"wait_{name}" for name in WAITS)
# With these columns, a table of 1,280 px has no room for the accounts.
_DETAIL_KEYS = ("faults", "examined", "sent")
_MAX_FLAMES, _MAX_FRAMES = 10, 800
_BAR = Markup('<span class="share"><span style="--w:{:.4g}%"></span></span>')
EXPLAINED_WAITS = "Mean waits per call in ms. CPU time plus waits is the latency."


def page_table(whole: Table, count: int) -> Table:
    """Return the statements and the other rows with the known columns of a page; `count` is that of the statements."""
    rows = [*map(_as_code, whole.rows[: min(count, MAX_ROWS)]), *whole.rows[count:]]
    columns = [column for column in whole.of("html").columns if column.key not in _DETAIL_KEYS]
    return without_empty(replace(whole, rows=rows, columns=columns, left_count=max(0, count - MAX_ROWS)).of("html"))


def _as_code(row: TableRow) -> TableRow:
    return replace(row, cells={**row.cells, "text": replace(row.words("text"), code=True)})


def waits_table(record: Queries, places: Places) -> Table:
    """Return the statements with known waits or rows."""
    whole = queries_table(record, places)
    waiting = [
        _as_code(row)
        for row, statement in zip(whole.rows, record.statements, strict=False)
        if statement.waits_ms is not None or statement.rows_examined_per_call is not None
    ]
    keys = ("text", "p50", "p99", "c0", *_WAIT_KEYS, *_DETAIL_KEYS)
    return without_empty(replace(whole, rows=waiting[:_MAX_WAITING], label="waits").of("html", keys))


def list_sampled(record: Queries) -> list[Statement]:
    """Return the statements with most samples."""
    statements = [statement for statement in record.statements if statement.stacks]
    return sorted(statements, key=lambda one: -sum(stack.count for stack in one.stacks))[:_MAX_FLAMES]


def draw_statement(record: Queries, statement: Statement) -> Markup:
    """Return the flame graph of a statement."""
    stacks = [(tuple(stack.frames), float(stack.count)) for stack in statement.stacks]
    graph = build_flame(stacks, unit="samples of C0", root="statement", limit=_MAX_FRAMES)
    view = draw_flame(graph, clean_name(statement.text, 200), record.modules)
    return draw_flames([view] if view else [], "statement")


def draw_bars(shown: Table) -> DrawnColumn:
    """Return a bar per row, as long as its share of the CPU time."""
    return DrawnColumn("calls", Markup("share"), [_draw_bar(row) for row in shown.rows])


def _draw_bar(row: TableRow) -> Markup:
    cell = row.cells.get("percent")
    value = cell.value if isinstance(cell, Figure) else None
    return _BAR.format(min(max(float(value or 0.0), 0.0), 100.0))
