# SPDX-License-Identifier: Apache-2.0
"""The table of wake-up causes: one row per thread, whatever interrupt ended its sleep."""

from __future__ import annotations

from collections.abc import Sequence

from powerprof.model import text
from powerprof.model.records import Cause
from powerprof.report.table import HTML, Cell, Column, Places, Table, TableRow, Words, figure_columns, word_columns


def same_sleepers(causes: Sequence[Cause]) -> list[list[Cause]]:
    """Group causes by thread, whatever interrupt ended its sleep. The most frequent group is first."""
    groups: dict[object, list[Cause]] = {}
    for cause in causes:
        # Without a thread, every interrupt is a separate cause.
        interrupt = None if cause.thread else (cause.mechanism, cause.name)
        groups.setdefault((cause.process, cause.pid, cause.thread or None, interrupt), []).append(cause)
    return sorted(groups.values(), key=lambda group: -sum(cause.wakeups_hz for cause in group))


def causes_table(causes: Sequence[Cause], places: Places, at: str, limit: int, label: str = "causes") -> Table:
    """Return one row per thread, or per cause without a thread: rate, mechanism and process."""
    columns = [
        *figure_columns(rate="/s", percent="%"),
        Column("c0", "C0 ms", forms=HTML),
        *word_columns("why", "who", "every"),
    ]
    place_of = {id(cause): f"{at}/{index}" for index, cause in enumerate(causes)}
    groups = same_sleepers(causes)
    rows = []
    for group in groups[:limit]:
        cause = group[0]
        place = place_of[id(cause)]
        process = cause.process or "unknown"
        mechanisms = dict.fromkeys(row_cause.mechanism.replace("_", "-") for row_cause in group)
        cells: dict[str, Cell] = {
            "why": Words(", ".join(mechanisms), cause.name if cause.name and len(mechanisms) == 1 else ""),
            "who": Words(process, cause.thread if cause.thread and cause.thread != process else "", strong=True),
        }
        if len(group) == 1:
            cells["rate"] = places.figure(f"{place}/wakeups_hz", 1)
            cells["percent"] = places.figure(f"{place}/percent", 1)
            if cause.c0_ms is not None:
                cells["c0"] = places.figure(f"{place}/c0_ms", 2)
        else:
            cells["rate"] = Words(text.number(sum(row_cause.wakeups_hz for row_cause in group), 1))
            cells["percent"] = Words(text.number(sum(row_cause.percent for row_cause in group), 1))
            c0 = [row_cause.c0_ms for row_cause in group if row_cause.c0_ms is not None]
            if len(c0) == len(group):
                cells["c0"] = Words(text.number(sum(c0), 2))
        if cause.period_ms is not None and cause.wakeups_hz >= 0.9 * sum(row_cause.wakeups_hz for row_cause in group):
            cells["every"] = places.figure(f"{place}/period_ms", wording=text.period(cause.period_ms))
        rows.append(TableRow(cells))
    return Table(columns, rows, label, left_count=max(0, len(groups) - limit))
