# SPDX-License-Identifier: Apache-2.0
"""Layouts of tables on a terminal: aligned columns, and fewer of them on a narrow one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from powerprof.model import text
from powerprof.report import labels
from powerprof.report.table import Cell, Column, Figure, JudgedCell, Path, Table, TableRow, Words

_NAME_LIMIT = 16  # CPUIDLE_NAME_LEN, include/linux/cpuidle.h
_HEAD_LIMIT = 12


def metric_lines(table: Table, width: int) -> list[str]:
    """Return the lines of metrics with three significant digits and intervals.

    A narrow terminal has no remarks. If the intervals do not fit either, a table with verdicts has two lines per
    metric, and others have several blocks of columns.
    """
    shown = table.of("terminal")
    is_judged = any(isinstance(cell, JudgedCell) for row in shown.rows for cell in row.cells.values())
    for count in (True, False):
        rows = [["", *map(_heading, shown.columns[1:])]]
        rows += [[row.short, *(_significant(row, column, count) for column in shown.columns[1:])] for row in shown.rows]
        for gap in (2, 1):
            lines = text.columns(rows, gap=gap)
            if max(map(len, lines)) <= width:
                return lines
    return _stack_rows(rows, width) if is_judged else text.fit_columns(rows, width)


# With more wide rows, all rows have two lines.
_MOST_WIDE_ROWS = 0.3


def _stack_rows(rows: Sequence[Sequence[str]], width: int) -> list[str]:
    """Return rows of which those that are too wide, or all, have two lines: name and verdict, then the figures."""
    by_width = sorted(range(1, len(rows)), key=lambda number: -sum(map(len, rows[number])))
    for count in range(1, int(_MOST_WIDE_ROWS * len(rows)) + 1):
        wide = set(by_width[:count])
        lines = text.columns([row for number, row in enumerate(rows) if number not in wide], gap=1)
        if max(map(len, lines)) <= width:
            rest = iter(lines)
            return [
                line
                for number, row in enumerate(rows)
                for line in (_stack_row(row, width) if number in wide else [next(rest)])
            ]
    return [line for row in rows for line in _stack_row(row, width)]


def _stack_row(row: Sequence[str], width: int) -> list[str]:
    name, a, b, *cells, verdict = row
    figures = text.wrap(" · ".join([f"{a} → {b}", *filter(None, cells)]), width, "  ")
    return [text.shorten(f"{name}: {verdict}", width), *figures] if name else figures


def _heading(column: Column) -> str:
    heading = column.short or text.shorten(column.name, _HEAD_LIMIT) or column.heading
    return f"{heading} ({column.interval})" if column.interval else heading


def _significant(row: TableRow, column: Column, count: bool) -> str:
    cell = row.cells.get(column.key)
    if isinstance(cell, JudgedCell):
        return cell.text if count else cell.word
    if not isinstance(cell, Figure):
        return cell.text if isinstance(cell, Words) else ""
    if not row.unit and cell.unit:
        return cell.whole + (f" [{', '.join(end.text for end in cell.ends)}]" if column.interval and cell.ends else "")
    if not column.interval or cell.ends is None or cell.value is None:
        return _signed(labels.format_significant(cell.value), cell)
    shown = labels.format_together(end.value or 0.0 for end in (cell, *cell.ends))
    mean, low, high = (_signed(each, cell) for each in shown)
    return f"{mean} [{low}, {high}]"


def _signed(shown: str, figure: Figure) -> str:
    return f"+{shown}" if figure.sign and figure.value is not None and not shown.startswith("−") else shown


def phase_lines(table: Table, width: int, more: Sequence[Sequence[str]] = ()) -> list[str]:
    """Return the lines of phases side by side with their units and the change between them.

    `more` rows are added at the end.
    """
    shown = table.of("terminal")
    rows = [["", *(column.short or column.name for column in shown.columns[1:])]]
    for row in shown.rows:
        cells = [row.cells.get(column.key) for column in shown.columns[1:]]
        figures = [cell for cell in cells if isinstance(cell, Figure)]
        name = row.cells["name"]
        ours = isinstance(name, Words) and name.ours
        rows.append(
            [
                row.short if ours else text.shorten(row.short, _NAME_LIMIT),
                *(figure.plus_minus if figure.sign else figure.whole for figure in figures),
            ]
        )
    rows += [list(line) for line in more]
    return text.fit_columns(rows, width)


def figure_lines(table: Table, width: int) -> list[str]:
    """Return one line per row: its short name and its figures with their units, below the headings."""
    rows = [["", *(column.short or column.heading for column in table.columns[1:])]]
    for row in table.rows:
        cells = [row.cells.get(column.key) for column in table.columns[1:]]
        shown = [cell.words or cell.whole if isinstance(cell, Figure) else "" for cell in cells]
        rows.append([row.short[:_NAME_LIMIT], *shown])
    return text.fit_columns(rows, width)


def align_rows(rows: Sequence[Sequence[str]], width: int, left: Sequence[int] = ()) -> list[str]:
    """Return the lines of rows of figures with a name as last cell; see `text.name_rows`."""
    return [line for entry in text.name_rows(rows, width, left=left)[0] for line in entry]


def column_rows(table: Table, width: int) -> list[str]:
    """Return the heading and one line per row; the last column is cut or wrapped last."""
    return align_rows(_text_rows(table), width, [at for at, column in enumerate(table.columns[:-1]) if column.left])


def block_rows(table: Table, width: int) -> list[str]:
    """Return the heading and one line per row; a table that is too wide has several blocks of columns."""
    left = next((at for at, column in enumerate(table.columns) if not column.left), len(table.columns))
    return text.fit_columns(_text_rows(table), width, left=left)


def _text_rows(table: Table) -> list[list[str]]:
    headings = [column.short or column.heading or column.name for column in table.columns]
    return [headings, *([row.words(column.key).text for column in table.columns] for row in table.rows)]


# Lines below a row of `named_rows`: a stack of an interpreter has a hundred frames.
_MOST_BELOW = 6
_BELOW_INDENT = 12


def named_rows(table: Table, width: int) -> list[str]:
    """Return one line per row: its figures, then its name, which is the last column of words.

    An interval has a column. Cells of columns `beside` the name are below it, at most six lines. The last line counts
    the rows that are not in the table.
    """
    plain = [column for column in table.columns if not column.beside]
    name = [column for column in plain if column.left][-1]
    figures = [column for column in plain if column is not name]
    rows = [[*(head for column in figures for head in _figure_heads(column)), name.heading]]
    for row in table.rows:
        rows.append([*(cell for column in figures for cell in _figure_cells(row, column)), _named(row, name)])
    left = [number for number, column in enumerate(figures) if column.left]
    entries, indent = text.name_rows(rows, width, left=left)
    lines, below = list(entries[0]), " " * min(_BELOW_INDENT, indent + 2)
    for row, entry in zip(table.rows, entries[1:], strict=True):
        more = " ".join(_below(row.cells.get(column.key)) for column in table.columns if column.beside).strip()
        lines += [*entry, *(text.wrap(more, width, below)[:_MOST_BELOW] if more else [])]
    return [*lines, *hidden_line(table.left_count, table.label)]


def _figure_heads(column: Column) -> Iterator[str]:
    yield column.heading
    if column.interval:
        yield column.interval


def _figure_cells(row: TableRow, column: Column) -> Iterator[str]:
    """Yield the figure of a column with its unit, and its interval if the column has intervals."""
    cell = row.cells.get(column.key)
    yield (cell.words or cell.whole) if isinstance(cell, Figure) else row.words(column.key).text
    if column.interval:
        ends = cell.ends if isinstance(cell, Figure) else None
        yield f"{ends[0].text} – {ends[1].text}" if ends else ""


def _named(row: TableRow, column: Column) -> str:
    name = row.words(column.key)
    return f"{name.text}  ({name.more})" if name.more else name.text


def _below(cell: Cell | None) -> str:
    if isinstance(cell, Path):
        return " ← ".join(cell.frames) or "(no stack)"
    return cell.text if cell is not None else ""


def fit_rows(table: Table, width: int) -> list[str]:
    """Return the heading and one line per row, its name first; a narrow terminal has several blocks of columns."""
    rows = [["", *(column.heading for column in table.columns[1:])]]
    rows += [[row.words(column.key).text for column in table.columns] for row in table.rows]
    return text.fit_columns(rows, width)


def hidden_line(count: int, what: str) -> list[str]:
    """Return the line about `count` rows that are not printed; empty without any."""
    return [f"{count} more {what} (--top N, or --json)"] if count > 0 else []


def function_lines(table: Table, headings: Mapping[str, str], width: int) -> list[str]:
    """Return one line per function: the figures of these columns, with intervals in brackets, then its name."""
    rows = [[*headings.values(), "function"]]
    for row in table.rows:
        figures = [cell for key in headings if isinstance(cell := row.cells[key], Figure)]
        ends = [f" [{cell.ends[0].text}, {cell.ends[1].text}]" if cell.ends else "" for cell in figures]
        name = row.words("name")
        cells = [f"{cell.text}{interval}" for cell, interval in zip(figures, ends, strict=True)]
        rows.append([*cells, f"{name.text} ({name.more})"])
    return align_rows(rows, width)
