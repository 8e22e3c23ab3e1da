# SPDX-License-Identifier: Apache-2.0
"""CSV for spreadsheets, one table per record. Text that a spreadsheet would run as a formula is disarmed.

Process and function names come from outside. A text cell that begins with = + - @ or a control character gets a leading
apostrophe (OWASP, CSV Injection). Figures are exact and stay unchanged.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Sequence

import msgspec

from powerprof.report.table import Figure, Table, TableRow
from powerprof.system.files import escape_formulas

Cell = str | float | int | None
Line = Sequence[Cell]


def format_csv(lines: Iterable[Line]) -> str:
    """Return the lines as RFC 4180 text. Short lines are padded to the head; unknown cells are empty."""
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


def exact_cells(row: TableRow, *keys: str) -> Iterator[Cell]:
    """Yield the figures of a row, each with the ends of its interval."""
    for key in keys:
        shown = row.cells.get(key)
        yield from shown.exact if isinstance(shown, Figure) else (None, None, None)


def column_lines(table: Table, key: str) -> Iterator[Line]:
    """Yield one line per row of a column: name, unit, kind, value, low, high."""
    for row in table.of("csv").rows:
        if isinstance(row.cells.get(key), Figure):
            yield [row.key, row.exact_unit, row.kind, *exact_cells(row, key)]


def field_lines(rows: Iterable[msgspec.Struct], names: Sequence[str]) -> Iterator[Line]:
    """Yield the field names, then one line per row with these fields of the record."""
    yield names
    for row in rows:
        yield [getattr(row, name) for name in names]
