# SPDX-License-Identifier: Apache-2.0
"""Tables for a terminal: aligned columns, and less of them where it is narrow."""

from __future__ import annotations

from collections.abc import Sequence

from powerprof import text
from powerprof.report.tables import labels
from powerprof.report.tables.table import Cell, Column, Figure, JudgedCell, Table, Words

_NAME_LIMIT = 16  # CPUIDLE_NAME_LEN, include/linux/cpuidle.h
_HEAD_LIMIT = 12


def metrics(table: Table, width: int) -> list[str]:
    """Metrics with three significant digits each, and their intervals where there is room."""
    shown = table.of("terminal")
    lines: list[str] = []
    for ends, gap in ((True, 2), (True, 1), (False, 2), (False, 1)):
        rows = [["", *(_heading(column, ends) for column in shown.columns[1:])]]
        rows += [
            [row.short, *(_significant(row.cells.get(column.key), column, ends) for column in shown.columns[1:])]
            for row in shown.rows
        ]
        lines = text.columns(rows, gap=gap)
        if max(map(len, lines)) <= width:
            break
    return [text.cut(line, width) for line in lines]


def _heading(column: Column, ends: bool) -> str:
    heading = column.short or text.cut(column.name, _HEAD_LIMIT) or column.heading
    return f"{heading} ({column.interval})" if column.interval and ends else heading


def _significant(cell: Cell | None, column: Column, ends: bool) -> str:
    if not isinstance(cell, Figure):
        return cell.text if isinstance(cell, JudgedCell) else ""
    span = f" [{', '.join(map(_three, cell.ends))}]" if column.interval and ends and cell.ends else ""
    return _three(cell) + span


def _three(figure: Figure) -> str:
    shown = labels.significant(figure.value)
    return f"+{shown}" if figure.sign and figure.value is not None and not shown.startswith("−") else shown


def phases(table: Table, width: int, more: Sequence[Sequence[str]] = ()) -> list[str]:
    """Phases side by side with their units, and the change over them; `more` rows are added below."""
    shown = table.of("terminal")
    rows = [["", *(column.short or column.name for column in shown.columns[1:])]]
    for row in shown.rows:
        cells = [row.cells.get(column.key) for column in shown.columns[1:]]
        figures = [cell for cell in cells if isinstance(cell, Figure)]
        name = row.cells["name"]
        ours = isinstance(name, Words) and name.ours
        rows.append(
            [
                row.short if ours else text.cut(row.short, _NAME_LIMIT),
                *(figure.plus_minus if figure.sign else figure.whole for figure in figures),
            ]
        )
    rows += [list(line) for line in more]
    lines = text.columns(rows)
    return lines if max(map(len, lines)) <= width else text.columns(rows, gap=1)
