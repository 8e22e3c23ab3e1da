# SPDX-License-Identifier: Apache-2.0
"""CSV for spreadsheets, one table per record. Text that a spreadsheet would run as a formula is disarmed.

Process and function names come from outside. A text cell that begins with = + - @ or a control character gets a leading
apostrophe (OWASP, CSV Injection). Figures are exact and stay unchanged.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Iterator, Sequence

import msgspec

from powerprof.model import text
from powerprof.model.records import Conservation
from powerprof.report import metrics
from powerprof.report.table import Cell, Column, Figure, JudgedCell, Path, Table, TableRow
from powerprof.system.files import escape_formulas

CsvCell = str | float | int | None
Line = Sequence[CsvCell]


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


def exact_cells(row: TableRow, *keys: str) -> Iterator[CsvCell]:
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


# Markdown for pull requests: escaped text, code spans and tables.
#
# Names from outside are code spans. In these GitHub interprets no link, mention or HTML.

_MAX_NAME = 120
_MAX_FRAMES = 8
MARKDOWN_ROWS = 25
_SPECIAL = re.compile(r"([\\`*_{}\[\]<>#|~&!])")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]+")


def code_span(name: object, limit: int = _MAX_NAME) -> str:
    """Return a code span that the name cannot end. A `|` is escaped, because tables split at it even in a span."""
    clean = text.shorten(_CONTROL.sub(" ", str(name)), limit).strip() or " "
    fence = "`" * (1 + max((len(run) for run in re.findall("`+", clean)), default=0))
    pad = " " if clean.startswith("`") or clean.endswith("`") else ""
    # A backslash before the | would escape the escape.
    inner = clean.replace("\\|", "|").replace("|", "\\|")
    return f"{fence}{pad}{inner}{pad}{fence}"


def escape(sentence: str) -> str:
    """Return a sentence with Markdown characters escaped and with addresses and mentions broken."""
    one_line = text.shorten(_CONTROL.sub(" ", sentence), 1000)
    escaped = _SPECIAL.sub(r"\\\1", one_line)
    # GitHub has no escape for mentions and bare addresses, so a zero-width space breaks them.
    return escaped.replace("@", "@\u200b").replace("://", ":\u200b//").replace("www.", "www\u200b.")


def draw_table(shown: Table, keys: Sequence[str] = ()) -> list[str]:
    """Return the lines of a GitHub table with `keys` as columns, or all columns. An interval has a separate column."""
    own = shown.of("markdown", keys)
    heads, rule = [], []
    for column in own.columns:
        heads.append(f"{column.heading} {code_span(column.name, 60)}".strip() if column.name else column.heading)
        rule.append("---" if column.left else "---:")
        if column.interval:
            heads.append(column.interval)
            rule.append("---:")
    rows = [[part for column in own.columns for part in _draw_parts(row, column)] for row in own.rows]
    return ["", *(f"| {' | '.join(cells)} |" for cells in (heads, rule, *rows))]


def _draw_parts(row: TableRow, column: Column) -> Iterator[str]:
    cell = row.cells.get(column.key)
    # If the row names the unit, its cells omit it.
    shown = _draw_cell(cell, unit=bool(column.beside) or not row.unit)
    if column.key == "name":
        estimated = ", estimated" if row.kind == "estimated" else ""
        shown += (escape(f", {row.unit}") if row.unit else "") + estimated
    yield shown
    if column.interval:
        ends = cell.ends if isinstance(cell, Figure) else None
        yield f"{ends[0].text} to {ends[1].text}" if ends else ""


def _draw_cell(cell: Cell | None, *, unit: bool) -> str:
    if isinstance(cell, Figure):
        return cell.words.removeprefix("every ") or (cell.whole if unit else cell.text)
    if isinstance(cell, JudgedCell):
        return f"**{cell.text}**" if cell.is_decided else cell.text
    if isinstance(cell, Path):
        more = " ← …" if len(cell.frames) > _MAX_FRAMES else ""
        return code_span(" ← ".join(cell.frames[:_MAX_FRAMES]) + more if cell.frames else "no user stack", 400)
    if cell is None:
        return ""
    return (
        escape(cell.text) if cell.ours else code_span(f"{cell.text} {cell.more}".strip() if cell.strong else cell.text)
    )


def note_lines(notes: Iterable[str]) -> list[str]:
    """Return a list of notes, after an empty line; empty without notes."""
    written = [f"- {escape(note)}" for note in notes]
    return ["", *written] if written else []


def balance_lines(conservation: Conservation | None) -> list[str]:
    """Return the balance of idle exits after an empty line; empty if it is unknown."""
    return ["", escape(metrics.describe_balance(conservation))] if conservation is not None else []
