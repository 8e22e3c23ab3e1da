# SPDX-License-Identifier: Apache-2.0
"""The table of what woke the CPUs: a row a thread, whatever interrupts ended its sleeps."""

from __future__ import annotations

from collections.abc import Sequence

from powerprof import text
from powerprof.records import Cause
from powerprof.report.tables.table import HTML, Cell, Column, Places, Table, TableRow, Words, figures, words


def _who(cause: Cause) -> tuple[str | int | None, ...]:
    """What the rows of one thread have in common; without a thread every interrupt is a cause of its own."""
    if cause.thread:
        return cause.process, cause.pid, cause.thread
    return cause.process, cause.pid, None, cause.mechanism, cause.name


def same_sleepers(causes: Sequence[Cause]) -> list[list[Cause]]:
    """Causes of one thread together, whatever interrupt ended its sleep; those of most idle exits first."""
    groups: dict[tuple[str | int | None, ...], list[Cause]] = {}
    for cause in causes:
        groups.setdefault(_who(cause), []).append(cause)
    return sorted(groups.values(), key=lambda group: -sum(cause.wakeups_hz for cause in group))


def causes_table(causes: Sequence[Cause], places: Places, at: str, limit: int, label: str = "causes") -> Table:
    """A row a thread, or a cause without one: how often, why and who."""
    columns = [*figures(rate="/s", percent="%"), Column("c0", "C0 ms", forms=HTML), *words("why", "who", "every")]
    place_of = {id(cause): f"{at}/{index}" for index, cause in enumerate(causes)}
    groups = same_sleepers(causes)
    rows = []
    for group in groups[:limit]:
        cause = group[0]
        place = place_of[id(cause)]
        process = cause.process or "unknown"
        mechanisms = dict.fromkeys(one.mechanism.replace("_", "-") for one in group)
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
            cells["rate"] = Words(text.number(sum(one.wakeups_hz for one in group), 1))
            cells["percent"] = Words(text.number(sum(one.percent for one in group), 1))
            c0 = [one.c0_ms for one in group if one.c0_ms is not None]
            if len(c0) == len(group):
                cells["c0"] = Words(text.number(sum(c0), 2))
        if cause.period_ms is not None and cause.wakeups_hz >= 0.9 * sum(one.wakeups_hz for one in group):
            cells["every"] = places.figure(f"{place}/period_ms", words=text.period(cause.period_ms))
        rows.append(TableRow(cells))
    return Table(columns, rows, label, left_count=max(0, len(groups) - limit))
