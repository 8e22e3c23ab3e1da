# SPDX-License-Identifier: Apache-2.0
"""Pure: one traced window and the counters at two edges → one interval, in which everything adds up."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec

from powerprof.live.intervals import UNTRACED, IntervalRow, Joules, LiveInterval, OwnCost, RowKey, balance_error
from powerprof.measure.clock import Snapshot
from powerprof.measure.residency import find_inconsistency
from powerprof.model.attribution import Attribution, Wakeup, Waking
from powerprof.model.records import Cause, EnergyReading

# The C library and the kernel's door: a thread sleeps in them whatever it does.
_PLUMBING = ("libc.", "libc-", "ld-", "libpthread", "[vdso]")
# Deeper ones lose their outermost functions.
_FRAMES = 128
OWN = "powerprof"
# The counters and the trace are read milliseconds apart: a fiftieth of an interval is far more.
_READ_APART = 50


@dataclass(frozen=True)
class Span:
    """What the kernel counted from one edge to the next. `cpus` were there at both; `exits_count` is None without
    counters."""

    window_s: float
    cpus: int
    idle_s: Mapping[tuple[int, str], float]
    polling: frozenset[str]
    exits_count: int | None
    forced_count: int
    c0_s: float
    notes: tuple[str, ...]


def changed_note(cpus: Sequence[int]) -> str:
    """The note on CPUs that were not there all the time, or are not traced yet."""
    return f"CPU {', '.join(map(str, cpus))} came or went: left out of this interval"


def span_between(before: Snapshot, after: Snapshot) -> Span:
    """The counters of all CPUs in both snapshots. A CPU that came, went or was reset is left out, with a note."""
    idle_s: dict[tuple[int, str], float] = {}
    walls, notes, polling = [], [], set()
    exits, forced, has_counters, c0_s = 0, 0, True, 0.0
    changed = sorted(set(before.cpus) ^ set(after.cpus))
    if changed:
        notes.append(changed_note(changed))
    for cpu in sorted(set(before.cpus) & set(after.cpus)):
        old, new = before.cpus[cpu], after.cpus[cpu]
        reason = find_inconsistency(old, new)
        if reason or old.at_ns is None or new.at_ns is None:
            notes.append(f"CPU {cpu}: {reason or 'no time'}: left out of this interval")
            continue
        wall_s = (new.at_ns - old.at_ns) / 1e9
        walls.append(wall_s)
        has_counters = has_counters and bool(old.states)
        idle = 0.0
        for index, state in enumerate(old.states):
            seconds = (new.time_us[index] - old.time_us[index]) / 1e6
            idle_s[cpu, state.name] = seconds
            if state.polling:
                polling.add(state.name)
            else:
                idle += seconds
        exits += sum(new.usage) - sum(old.usage)
        forced += sum(new.forced)
        c0_s += max(0.0, wall_s - idle)
    return Span(
        window_s=sum(walls) / len(walls) if walls else 0.0,
        cpus=len(walls),
        idle_s=idle_s,
        polling=frozenset(polling),
        exits_count=exits if walls and has_counters else None,
        forced_count=forced,
        c0_s=c0_s,
        notes=tuple(notes),
    )


def function_of(wakeup: Wakeup | Waking) -> str:
    """The function to name: the innermost that is the program's own."""
    if not wakeup.stack:
        return "[no user stack]"
    frame = next((frame for frame in wakeup.stack if not frame.module.startswith(_PLUMBING)), wakeup.stack[0])
    # An address that is not one of a file is another one in the next process: no name for a series.
    if frame.function is None and (frame.function_start is None or frame.module.startswith("[")):
        return frame.module
    return frame.label


def rows_of(record: Attribution, processes: Mapping[int, str]) -> list[IntervalRow]:
    """Everybody that idle exits are blamed on: threads with their functions, and what has no user stack; and where
    threads were woken on busy CPUs only, with what they ran.

    `processes` are names by pid; a thread whose process is not in it is its own.
    """
    rows = [
        IntervalRow(
            key=RowKey(_process_of(wakeup, processes), wakeup.thread.label, function_of(wakeup)),
            exits_count=wakeup.count,
            c0_s=wakeup.c0_ms / 1e3,
            mechanism=wakeup.mechanism,
            stack=tuple(frame.label for frame in wakeup.stack[:_FRAMES]),
            period_ms=wakeup.period_ms,
            pid=wakeup.thread.pid,
            unit=wakeup.thread.unit,
        )
        for wakeup in record.wakeups
    ]
    rows += [_row_of_waking(waking, processes) for waking in record.wakings_without_exit if waking.own_ms]
    return rows + [_row_of_cause(cause) for cause in record.other_causes]


def _process_of(wakeup: Wakeup | Waking, processes: Mapping[int, str]) -> str:
    """The process's name; of one that was gone before it could be asked for it, the thread's."""
    name = processes.get(wakeup.thread.pid or 0)
    return wakeup.thread.comm if name is None or name.startswith("pid ") else name


def _row_of_waking(waking: Waking, processes: Mapping[int, str]) -> IntervalRow:
    return IntervalRow(
        key=RowKey(_process_of(waking, processes), waking.thread.label, function_of(waking)),
        exits_count=0,
        c0_s=(waking.own_ms or 0.0) / 1e3,
        mechanism=UNTRACED,
        stack=tuple(frame.label for frame in waking.stack[:_FRAMES]),
        pid=waking.thread.pid,
        unit=waking.thread.unit,
    )


def _row_of_cause(cause: Cause) -> IntervalRow:
    process = cause.process or "kernel"
    return IntervalRow(
        key=RowKey(process, cause.thread or process, cause.name or cause.mechanism.replace("_", "-")),
        exits_count=cause.count,
        c0_s=(cause.c0_ms or 0.0) / 1e3,
        mechanism=cause.mechanism,
        period_ms=cause.period_ms,
        pid=cause.pid,
    )


def within(rows: list[IntervalRow], c0_s: float) -> list[IntervalRow]:
    """Rows whose running time is no more than the interval's.

    A thread that ran from one interval into the next is counted when it leaves its CPU, with all that time: what lay in
    the earlier interval was counted there, as nobody's.
    """
    blamed_s = sum(row.c0_s for row in rows)
    if blamed_s <= c0_s:
        return rows
    return [msgspec.structs.replace(row, c0_s=row.c0_s * c0_s / blamed_s) for row in rows]


def mechanisms_of(
    rows: Sequence[IntervalRow], exits_count: int | None, ahead_count: int = 0
) -> tuple[dict[str, int], int]:
    """Idle exits by mechanism, `untraced` among them, and their sum: what the kernel counted, where it counts.

    `ahead_count` of these were in the interval before: the trace is read after the counters and had seen them already.
    """
    counted: Counter[str] = Counter()
    for row in rows:
        counted[row.mechanism] += row.exits_count
    traced = sum(counted.values())
    total = max(traced, (exits_count or 0) - ahead_count)
    counted[UNTRACED] = total - traced
    return dict(counted), total


def ahead_of(total: int, exits_count: int | None, ahead_count: int) -> int:
    """How many idle exits the intervals so far have counted that are not in the kernel's counters yet.

    To take the larger sum in each interval, and forget by how much, would let their sum run away from the kernel's.
    What is more than fits between two readings is none of these: entries that a driver rejected are never counted.
    """
    if exits_count is None:
        return 0
    return min(max(0, total + ahead_count - exits_count), total // _READ_APART)


def joules_of(energy: Sequence[EnergyReading], host: Sequence[tuple[str, str]], share: float) -> tuple[Joules, ...]:
    """Readings of a traced window, for the whole interval: `share` is how much longer that was.

    What lies between two windows is some hundredth of an interval, and drew what the rest of it did.
    """
    return tuple(
        Joules(
            source=reading.source,
            domain=reading.domain,
            kind=reading.kind,
            joules=None if reading.joules is None else reading.joules * share,
            in_host=(reading.source, reading.domain) in host,
        )
        for reading in energy
    )


def interval_of(
    record: Attribution,
    span: Span,
    *,
    ended_at: str,
    processes: Mapping[int, str],
    host_domains: Sequence[tuple[str, str]],
    own_cpu_s: float,
    own_bpf_s: float | None = None,
    own_memory_bytes: int | None = None,
    suspended_s: float = 0.0,
    ahead_count: int = 0,
) -> LiveInterval:
    """The interval that a traced window closes; `span` reaches back to the edge that closed the one before.

    `ahead_count` is the one of the interval before.
    """
    rows = within(rows_of(record, processes), span.c0_s)
    mechanisms, total = mechanisms_of(rows, span.exits_count, ahead_count)
    own = sum(row.exits_count for row in rows if row.key.process == OWN)
    window_s = span.window_s or record.window_s
    traced = record.conservation
    return LiveInterval(
        ended_at=ended_at,
        window_s=window_s,
        cpus=span.cpus or record.cpus,
        idle_s=dict(span.idle_s),
        polling=span.polling,
        exits_count=total,
        ahead_count=ahead_of(total, span.exits_count, ahead_count),
        mechanisms=mechanisms,
        rows=tuple(rows),
        c0_s=span.c0_s,
        own=OwnCost(
            cpu_s=own_cpu_s, wakeups_count=own + span.forced_count, bpf_s=own_bpf_s, memory_bytes=own_memory_bytes
        ),
        energy=joules_of(record.energy, host_domains, window_s / record.window_s if record.window_s > 0 else 1.0),
        lost_count=traced.lost_count,
        lost_stacks_count=record.stacks.lost_count,
        unknown_count=traced.unknown_count,
        balance_error=balance_error(traced.idle_exits_count, traced.reference_count),
        stacks_complete_percent=record.stacks.exits_complete_percent,
        suspended_s=suspended_s,
        notes=(*span.notes, *record.notes, *(record.energy_source.notes() if record.energy_source else ())),
    )
