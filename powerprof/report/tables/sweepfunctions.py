# SPDX-License-Identifier: Apache-2.0
"""The table of functions whose shares differ where two sweeps diverge."""

from __future__ import annotations

from powerprof.experiment.sweepcomparison import SweepComparison
from powerprof.report.tables.table import Cell, Column, Places, Table, TableRow, Words


def parting_functions_table(record: SweepComparison, places: Places, limit: int = 20) -> Table:
    """A row a function whose share differs where the sweeps diverge; where none does, those that differ most."""
    sure = [number for number, one in enumerate(record.functions) if one.verdict != "inconclusive"]
    rows = []
    for number in (sure or range(min(5, len(record.functions))))[:limit]:
        one, at = record.functions[number], f"/functions/{number}"
        cells: dict[str, Cell] = {
            "name": Words(one.function, "kernel" if one.kernel else one.module),
            "a": places.figure(f"{at}/a_percent", 2),
            "b": places.figure(f"{at}/b_percent", 2),
            "difference": places.figure(f"{at}/b_minus_a_percent", 2, ends=f"{at}/ci95", sign=True),
            "elsewhere": places.figure(f"{at}/elsewhere_percent", 2, sign=True),
            "verdict": Words(one.verdict.removeprefix("b_"), ours=True),
        }
        rows.append(TableRow(cells, key=one.function, short=one.function, exact_unit="%"))
    return Table(
        [
            Column("name", "function", left=True),
            Column("a", "A", record.a.name),
            Column("b", "B", record.b.name),
            Column("difference", "where they differ", interval="95 %"),
            Column("elsewhere", "elsewhere"),
            Column("verdict", "verdict", left=True),
        ],
        rows,
        "functions, % of the server's samples",
        left_count=len(sure) - len(rows) if sure else 0,
    )
