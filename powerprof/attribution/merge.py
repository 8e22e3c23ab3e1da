# SPDX-License-Identifier: Apache-2.0
"""Merge the rows of an attribution that report the same: equal threads, and stacks that differ in JIT addresses.

Every sum stays as it is. Diagnosis and cure use the separate rows.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Sequence

from msgspec.structs import replace

from powerprof.model.attribution import Attribution, StackFrame, Thread, Waker, Wakeup, Waking, is_generated
from powerprof.model.records import EnergyPart, EnergySplit, sum_known

# Threads with one name that work differently, such as page cleaners, are few. Connections are many.
_MOST_SEPARATE = 8
# Periods that differ by less are one period.
_SAME_PERIOD = 1.1

Place = tuple[Hashable, ...]


def merge_equal_rows(record: Attribution) -> Attribution:
    """Return the record with one row for many threads of one name, process and cause, and for each path by names.

    The row of several threads has the thread number 0 and their count.
    """
    groups = _group(record.wakeups, [(row.mechanism, *_place(row)) for row in record.wakeups])
    wakings = _group(record.wakings_without_exit, [_place(row) for row in record.wakings_without_exit])
    merged = [_merge_wakeups([record.wakeups[number] for number in group]) for group in groups]
    order = sorted(range(len(groups)), key=lambda place: -merged[place].count)
    return replace(
        record,
        wakeups=[merged[place] for place in order],
        wakings_without_exit=sorted(
            (_merge_wakings([record.wakings_without_exit[number] for number in group]) for group in wakings),
            key=lambda row: -row.wakings_count,
        ),
        energy_split=_merge_split(record.energy_split, [groups[place] for place in order], len(record.wakeups)),
    )


def _functions(stack: Sequence[StackFrame]) -> Hashable:
    """Return what makes a stack: its functions if a JIT compiler moves them (perf-PID.map), else its addresses."""
    if any(frame.module.startswith("perf-") and frame.module.endswith(".map") for frame in stack):
        return tuple(frame.label for frame in stack)
    return tuple((frame.label, "" if is_generated(frame.module) else frame.address) for frame in stack)


def _place(row: Wakeup | Waking) -> Place:
    waker, thread = row.waker, row.thread
    by = None if waker is None else (waker.comm, waker.server_name, _functions(waker.stack), waker.stack_complete)
    who = (thread.comm, thread.server_name, thread.process, thread.unit)
    return row.origin, row.detail, by, who, _functions(row.stack), row.stack_complete


def _group(rows: Sequence[Wakeup | Waking], places: Sequence[Place]) -> list[list[int]]:
    """Return the numbers of the rows that become one, in order of the first."""
    alike: dict[Place, list[int]] = defaultdict(list)
    for number, place in enumerate(places):
        alike[place].append(number)
    groups: list[list[int]] = []
    for numbers in alike.values():
        by_thread: dict[int, list[int]] = defaultdict(list)
        for number in numbers:
            by_thread[rows[number].thread.tid].append(number)
        groups += [numbers] if len(by_thread) > _MOST_SEPARATE else by_thread.values()
    return sorted(groups)


def _thread_of(rows: Sequence[Wakeup] | Sequence[Waking]) -> Thread:
    count, pids = len({row.thread.tid for row in rows}), {row.thread.pid for row in rows}
    if count == 1:
        return rows[0].thread
    return replace(rows[0].thread, tid=0, pid=pids.pop() if len(pids) == 1 else None, threads_count=count)


def _waker_of(rows: Sequence[Wakeup] | Sequence[Waking]) -> Waker | None:
    wakers = [row.waker for row in rows if row.waker is not None]
    if len({waker.tid for waker in wakers}) < 2:
        return rows[0].waker
    is_one = len({waker.pid for waker in wakers}) == 1
    return replace(wakers[0], tid=0, pid=wakers[0].pid if is_one else 0)


def _count(amounts: Iterable[int | None]) -> int | None:
    whole = sum_known(amounts)
    return None if whole is None else int(whole)


def _mean(rows: Sequence[Wakeup], amounts: Sequence[float | None]) -> float | None:
    whole = sum_known(None if amount is None else amount * row.count for row, amount in zip(rows, amounts, strict=True))
    return None if whole is None else whole / sum(row.count for row in rows)


def _merge_wakeups(rows: Sequence[Wakeup]) -> Wakeup:
    if len(rows) == 1:
        return rows[0]
    states: Counter[str] = Counter()
    for row in rows:
        states.update(row.states)
    periods = [row.period_ms for row in rows]
    known = [period for period in periods if period]
    is_same = len(known) == len(rows) and max(known) < _SAME_PERIOD * min(known)
    return replace(
        rows[0],
        count=sum(row.count for row in rows),
        rate_hz=math.fsum(row.rate_hz for row in rows),
        wakings_count=_count(row.wakings_count for row in rows),
        period_ms=_mean(rows, periods) if is_same else None,
        c0_ms=math.fsum(row.c0_ms for row in rows),
        own_ms=sum_known(row.own_ms for row in rows),
        thread=_thread_of(rows),
        waker=_waker_of(rows),
        idle_ms=_mean(rows, [row.idle_ms for row in rows]),
        states=dict(states.most_common()),
        joules=sum_known(row.joules for row in rows),
        # The ends of the intervals are added up: the slices that a row is rare in are often the same for all.
        rate_low_hz=sum_known(row.rate_low_hz for row in rows),
        rate_high_hz=sum_known(row.rate_high_hz for row in rows),
    )


def _merge_wakings(rows: Sequence[Waking]) -> Waking:
    if len(rows) == 1:
        return rows[0]
    return replace(
        rows[0],
        wakings_count=sum(row.wakings_count for row in rows),
        wakings_hz=math.fsum(row.wakings_hz for row in rows),
        own_ms=sum_known(row.own_ms for row in rows),
        thread=_thread_of(rows),
        waker=_waker_of(rows),
    )


def _merge_split(split: EnergySplit | None, groups: Sequence[Sequence[int]], count: int) -> EnergySplit | None:
    """Return the split of energy with the target's children, one per row, merged like the rows."""
    if split is None or not split.parts or len(split.parts[0].children) != count:
        return split
    target, *rest = split.parts
    children = [_merge_parts([target.children[number] for number in group]) for group in groups]
    return replace(split, parts=[replace(target, children=children), *rest])


def _merge_parts(parts: Sequence[EnergyPart]) -> EnergyPart:
    return replace(
        parts[0],
        joules=math.fsum(part.joules for part in parts),
        percent=sum_known(part.percent for part in parts),
        c0_s=math.fsum(part.c0_s for part in parts),
        wakeups_count=math.fsum(part.wakeups_count for part in parts),
    )
