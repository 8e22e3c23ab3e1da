# SPDX-License-Identifier: Apache-2.0
"""Draw the tables of a document as CSV, the main one first.

The last column of the first row says why a record is partial.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from powerprof.report.document import Document, Part, Section, Shown, shown_parts
from powerprof.report.table import Column, Figure, Line, Path, Table, TableRow
from powerprof.system.foreign_text import escape_formulas

WARNING = "warning"
"""The heading of the last column."""


def render_csv(document: Document) -> str:
    """Return the lines of a document as RFC 4180 text, head first. After an empty line there is a head again."""
    lines = iter(document.rows() if document.rows is not None else _list_figures(document))
    head = next(lines, ())
    warning = " ".join(filter(None, [document.opening, *document.warnings]))
    first = next(lines, () if warning else None)
    body: list[Line] = [] if first is None else [[*first, *[None] * (len(head) - len(first)), warning or None]]
    further = [shown.table for shown in _list_tables(shown_parts(document.parts(), "terminal")) if shown.is_further]
    return format_csv(
        [[*head, WARNING], *body, *lines, *(line for table in further for line in ([], *_rows_of(table)))]
    )


def _list_figures(document: Document) -> Iterator[Line]:
    """Yield the head and the rows of the first table."""
    first = next(_list_tables(document.parts()), None)
    yield from _rows_of(Table([], []) if first is None else first.table)


def _rows_of(whole: Table) -> Iterator[Line]:
    """Yield the head and the rows of a table, each figure exact and with its interval."""
    table = whole.of("csv")
    units = [row.exact_unit or row.unit for row in table.rows]
    yield [*(name for column in table.columns for name in _name_cells(column, table.rows)), *(["unit"] * any(units))]
    for row, unit in zip(table.rows, units, strict=True):
        line: list[str | float | int | None] = []
        for column in table.columns:
            cell = row.cells.get(column.key)
            words = " < ".join(cell.frames) if isinstance(cell, Path) else row.words(column.key).text
            exact = cell.exact if isinstance(cell, Figure) else (words or None, None, None)
            line += exact if column.interval else exact[:1]
        yield [*line, *([unit] * any(units))]


def _name_cells(column: Column, rows: Sequence[TableRow]) -> tuple[str, ...]:
    """Return the name of a column, and those of its interval. A field of the record has its unit in its name."""
    cells = [row.cells.get(column.key) for row in rows]
    places = [cell.at.removesuffix("/mean") for cell in cells if isinstance(cell, Figure)]
    fields = {place.rpartition("/")[2] for place in places}
    name = (fields.pop() if len(fields) == 1 else "") or column.key
    return (name, f"{name}_low", f"{name}_high") if column.interval else (name,)


def _list_tables(parts: Iterable[Part]) -> Iterator[Shown]:
    for part in parts:
        if isinstance(part, Shown):
            yield part
        elif isinstance(part, Section):
            yield from _list_tables(part.parts)


def format_csv(lines: Iterable[Line]) -> str:
    """Return the lines as RFC 4180 text. Short lines are padded to the head; unknown cells are empty."""
    import csv
    import io

    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\r\n")
    columns = 0
    for line in lines:
        columns = columns or len(line)
        cells = [*line, *[None] * (columns - len(line))]
        writer.writerow(
            [escape_formulas(cell) if isinstance(cell, str) else "" if cell is None else cell for cell in cells]
        )
    return out.getvalue()
