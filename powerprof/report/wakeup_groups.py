# SPDX-License-Identifier: Apache-2.0
"""Wake-ups summed by function, thread, device or unit."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from powerprof.attribution.units import UNKNOWN_UNIT
from powerprof.model import text
from powerprof.model.attribution import Attribution, UnitShare, UnitSplit, Wakeup, Waking
from powerprof.model.records import Cause
from powerprof.report.table import Table, TableRow, Words, figure_columns, word_columns
from powerprof.report.wakeups import (
    count_leading,
    function_of,
    mean_c0_ms,
    mean_own_ms,
    range_text,
    sum_ranges,
    thread_name,
)

BY = ("stack", "function", "thread", "device", "unit")


class LabelGroup(msgspec.Struct, frozen=True):
    """The sums of all rows with the same label."""

    label: str
    count: int
    rate_hz: float
    each_ms: float | None
    period_ms: float | None
    range_hz: tuple[float, float] | None = None


def _label_function(row: Wakeup | Waking) -> str:
    return function_of(row.stack) or (row.stack[0].label if row.stack else "[no user stack]")


_LABEL_OF: dict[str, Callable[[Wakeup | Waking], str]] = {
    "function": _label_function,
    "thread": lambda row: thread_name(row.thread),
    "device": lambda row: f"{row.mechanism if isinstance(row, Wakeup) else row.origin}  {row.detail or ''}".rstrip(),
    "unit": lambda row: row.thread.unit or UNKNOWN_UNIT,
}


def _group_non_units(record: Attribution) -> list[LabelGroup]:
    """Return the groups of a whole system outside all units: the kernel and powerprof.

    Together with the units they sum to the host.
    """
    groups: dict[str, list[Cause]] = {}
    for cause in record.other_causes if record.target.system else []:
        label = "the kernel itself" if cause.process == "kernel" else f"{cause.process or 'unknown'} itself"
        groups.setdefault(label, []).append(cause)
    counts = {label: sum(cause.count for cause in causes) for label, causes in groups.items()}
    return [
        LabelGroup(
            label,
            counts[label],
            sum(cause.wakeups_hz for cause in causes),
            sum(cause.c0_ms or 0.0 for cause in causes) / counts[label],
            None,
        )
        for label, causes in groups.items()
    ]


def group_by(record: Attribution, by: str) -> list[LabelGroup]:
    """Return the groups of the idle exits, the most frequent first."""
    groups: dict[str, list[Wakeup]] = {}
    for row in record.wakeups:
        groups.setdefault(_LABEL_OF[by](row), []).append(row)
    grouped = [
        LabelGroup(
            label,
            sum(row.count for row in rows),
            sum(row.rate_hz for row in rows),
            mean_c0_ms(rows),
            rows[0].period_ms if len(rows) == 1 else None,
            sum_ranges(rows),
        )
        for label, rows in groups.items()
    ]
    if by == "unit":
        grouped += _group_non_units(record)
    return sorted(grouped, key=lambda group: (-group.count, group.label))


def group_wakings_by(record: Attribution, by: str) -> list[LabelGroup]:
    """Return the groups of the wakings that ended no idle period."""
    groups: dict[str, list[Waking]] = {}
    for row in record.wakings_without_exit:
        groups.setdefault(_LABEL_OF[by](row), []).append(row)
    grouped = [
        LabelGroup(
            label, sum(row.wakings_count for row in rows), sum(row.wakings_hz for row in rows), mean_own_ms(rows), None
        )
        for label, rows in groups.items()
    ]
    return sorted(grouped, key=lambda group: (-group.count, group.label))


def groups_table(groups: Sequence[LabelGroup], by: str, top: int | None) -> Table:
    """Return one row per group; the last one sums the groups that are not shown."""
    limit = count_leading([group.count for group in groups], top)
    has_ranges = any(group.range_hz is not None for group in groups)
    lines = []
    for group in groups[:limit]:
        every = text.period(group.period_ms).removeprefix("every ")
        c0 = "" if group.each_ms is None else text.number(group.each_ms, 2, " ms")
        ends = [range_text(group.range_hz)] if has_ranges else []
        lines.append([text.number(group.rate_hz, 1), *ends, f"{group.count:,}", every, c0, group.label])
    if hidden := groups[limit:]:
        rate, count = text.number(sum(group.rate_hz for group in hidden), 1), sum(group.count for group in hidden)
        lines.append([rate, *([""] if has_ranges else []), f"{count:,}", "", "", f"{len(hidden)} more (--all)"])
    ranges = {"range": "95 %"} if has_ranges else {}
    columns = [*figure_columns(rate="/s", **ranges, count="count", every="every", c0="C0"), *word_columns(label=by)]
    keys = [column.key for column in columns]
    rows = [
        TableRow({key: Words(cell, ours=key != "label") for key, cell in zip(keys, line, strict=True)})
        for line in lines
    ]
    return Table(columns, rows, "groups")


_MOST_UNITS = 20


def units_table(split: UnitSplit, window_s: float, top: int | None) -> Table:
    """Return the running time and the joules of each unit, the rest of the host and the idle floor."""
    shown, hidden = split.units[: top or _MOST_UNITS], split.units[top or _MOST_UNITS :]
    lines = [_unit_line(share, window_s) for share in shown]
    if hidden:
        joules = [share.joules for share in hidden if share.joules is not None]
        rest = UnitShare(
            unit=f"{len(hidden)} more",
            exits_count=sum(share.exits_count for share in hidden),
            c0_s=sum(share.c0_s for share in hidden),
            joules=sum(joules) if joules else None,
        )
        lines.append(_unit_line(rest, window_s))
    lines.append(_unit_line(msgspec.structs.replace(split.other, unit=_REST), window_s))
    if split.idle_joules is not None:
        lines.append(["", "", "", text.number(split.idle_joules, 3, " J"), "idle floor"])
    columns = [*figure_columns(rate="/s", c0="C0", share="of a CPU", joules="energy"), *word_columns(label="unit")]
    keys = [column.key for column in columns]
    rows = [
        TableRow({key: Words(cell, ours=key != "label") for key, cell in zip(keys, line, strict=True)})
        for line in lines
    ]
    return Table(columns, rows, "units")


_REST = "the kernel, powerprof and the rest"


def _unit_line(share: UnitShare, window_s: float) -> list[str]:
    return [
        text.number(share.exits_count / window_s, 1) if window_s else "unknown",
        text.number(share.c0_s, 3, " s"),
        text.number(100.0 * share.c0_s / window_s, 1, " %") if window_s else "unknown",
        "unknown" if share.joules is None else text.number(share.joules, 3, " J"),
        share.unit,
    ]
