# SPDX-License-Identifier: Apache-2.0
"""Draw the main table of a document as CSV. The last column of its first row says why a record is partial."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from powerprof.report.document import Document, Part, Section, Shown
from powerprof.report.table import Column, Figure, Line, Table
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
    return format_csv([[*head, WARNING], *body, *lines])


def _list_figures(document: Document) -> Iterator[Line]:
    """Yield the head and the rows of the first table, each figure exact and with its interval."""
    table = next(_list_tables(document.parts()), Table([], [])).of("csv")
    yield [name for column in table.columns for name in _name_cells(column)]
    for row in table.rows:
        line: list[str | float | int | None] = []
        for column in table.columns:
            cell = row.cells.get(column.key)
            exact = cell.exact if isinstance(cell, Figure) else (row.words(column.key).text or None, None, None)
            line += exact if column.interval else exact[:1]
        yield line


def _name_cells(column: Column) -> tuple[str, ...]:
    return (column.key, f"{column.key}_low", f"{column.key}_high") if column.interval else (column.key,)


def _list_tables(parts: Iterable[Part]) -> Iterator[Table]:
    for part in parts:
        if isinstance(part, Shown):
            yield part.table
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
