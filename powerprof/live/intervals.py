# SPDX-License-Identifier: Apache-2.0
"""One interval of a monitor, and the small records that it is made of.

Intervals follow each other without a gap: what ended between two traced windows is in the later one, as `untraced`.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from powerprof.measure.clock import Snapshot
from powerprof.measure.residency import find_inconsistency
from powerprof.model.attribution import Attribution, Wakeup, Waking
from powerprof.model.records import Cause, EnergyReading, Kind, Notes

# Idle exits that the kernel counted and nobody traced: between two windows, at their edges, or lost on the way.
UNTRACED = "untraced"
OTHER = "other"


class RowKey(msgspec.Struct, frozen=True, order=True):
    """Whose idle exits: names that come again after a restart, no numbers of processes."""

    process: str
    thread: str
    function: str


REST = RowKey(OTHER, OTHER, OTHER)


class IntervalRow(msgspec.Struct, frozen=True, kw_only=True):
    """Idle exits of one process, thread name and function in one interval, and the running time that is theirs.

    `stack` is the most frequent one, innermost first; `period_ms` that of its wake-ups where they are regular; `unit`
    the control group as people call it.
    """

    key: RowKey
    exits_count: int
    c0_s: float
    mechanism: str
    stack: tuple[str, ...] = ()
    period_ms: float | None = None
    pid: int | None = None
    unit: str | None = None


class Joules(msgspec.Struct, frozen=True, kw_only=True):
    """What one domain drew; None where its meter gave no figure. `in_host`: part of the host's sum."""

    source: str
    domain: str
    kind: Kind
    joules: float | None
    in_host: bool = False


class ServerState(msgspec.Struct, frozen=True, kw_only=True):
    """What a database server reported at the interval's end. `queries_count` were answered in it. `account` runs it,
    from the file `program`."""

    name: str
    up: bool
    account: str = ""
    program: str = ""
    role: str = "standalone"
    replication_healthy: bool | None = None
    lag_s: float | None = None
    queries_count: int | None = None


class LiveFinding(msgspec.Struct, frozen=True, kw_only=True):
    """A finding of `diagnose` that held at the last look, and the server that it is of."""

    rule: str
    severity: str
    text: str
    server: str = ""
    account: str = ""
    program: str = ""
    remedy: tuple[str, ...] = ()
    rate_hz: float | None = None


class OwnCost(msgspec.Struct, frozen=True, kw_only=True):
    """What powerprof itself used: CPU time of its process and of its BPF programs, and how often it woke a CPU."""

    cpu_s: float
    wakeups_count: int
    bpf_s: float | None = None
    memory_bytes: int | None = None


class CpuUse(msgspec.Struct, frozen=True):
    """CPU time of the processes of one name that were there from an interval's beginning to its end."""

    processes: int
    cpu_s: float


class ServedStatement(msgspec.Struct, frozen=True, kw_only=True):
    """What a statement used in an interval. `text` is without values, and cut."""

    id: str
    text: str
    schema: str
    c0_s: float
    wakeups_count: int = 0
    joules: float = 0.0


class ServedStatements(msgspec.Struct, frozen=True, kw_only=True):
    """The statements of one server in an interval; `method` None: it was away, or could not be traced.

    `c0_s`, `wakeups_count` and `joules` are the whole server's in `window_s`; None where they are not known, as
    wake-ups of samples. `kind` is that of the joules.
    """

    server: str
    method: str | None = None
    window_s: float = 0.0
    c0_s: float = 0.0
    wakeups_count: int | None = None
    joules: float | None = None
    kind: Kind | None = None
    statements: tuple[ServedStatement, ...] = ()
    bpf_s: float | None = None


class LiveInterval(msgspec.Struct, frozen=True, kw_only=True):
    """What happened on this host in one interval.

    `idle_s` by CPU and state and `exits_count` are the kernel's own counters; `mechanisms` sums to `exits_count`, and
    so do `rows` with what is in none of them. `balance_error` is how far the trace was from the kernel's count, as a
    share of it (None where nothing counts). `cpus` were online from its beginning to its end. The counters were read
    at `ended_at`; `ahead_count` of the exits are not in them yet, and in no later interval. `used` is the CPU time of
    processes by name, where the CPUs were busy and it was looked at.
    """

    ended_at: str
    window_s: float
    cpus: int
    idle_s: dict[tuple[int, str], float]
    polling: frozenset[str] = frozenset()
    exits_count: int
    ahead_count: int = 0
    mechanisms: dict[str, int]
    rows: tuple[IntervalRow, ...]
    c0_s: float
    own: OwnCost
    energy: tuple[Joules, ...] = ()
    lost_count: int = 0
    lost_stacks_count: int = 0
    unknown_count: int = 0
    balance_error: float | None = None
    stacks_complete_percent: float | None = None
    suspended_s: float = 0.0
    servers: tuple[ServerState, ...] = ()
    findings: tuple[LiveFinding, ...] = ()
    used: dict[str, CpuUse] | None = None
    statements: ServedStatements | None = None
    notes: Notes = ()

    @property
    def c0_percent(self) -> float | None:
        """The share of all CPUs' time in which they ran."""
        return 100.0 * self.c0_s / (self.window_s * self.cpus) if self.window_s > 0 and self.cpus else None

    @property
    def exits_hz(self) -> float | None:
        """Idle exits per second of all CPUs."""
        return self.exits_count / self.window_s if self.window_s > 0 else None

    @property
    def host_watts(self) -> tuple[float, Kind] | None:
        """What the host drew, and whether that was measured; None where it is unknown."""
        mine = [reading for reading in self.energy if reading.in_host]
        if not mine or self.window_s <= 0 or any(reading.joules is None for reading in mine):
            return None
        return sum(reading.joules or 0.0 for reading in mine) / self.window_s, mine[0].kind


def compute_balance_error(seen: int, kernel: int | None) -> float | None:
    """How far apart what was traced and what the kernel counted are, as a share of the latter; None without one."""
    if kernel is None:
        return None
    return abs(seen - kernel) / kernel if kernel else float(seen > 0)


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


def format_changed_cpus(cpus: Sequence[int]) -> str:
    """The note on CPUs that were not there all the time, or are not traced yet."""
    return f"CPU {', '.join(map(str, cpus))} came or went: left out of this interval"


def measure_span(before: Snapshot, after: Snapshot) -> Span:
    """The counters of all CPUs in both snapshots. A CPU that came, went or was reset is left out, with a note."""
    idle_s: dict[tuple[int, str], float] = {}
    walls, notes, polling = [], [], set()
    exits, forced, has_counters, c0_s = 0, 0, True, 0.0
    changed = sorted(set(before.cpus) ^ set(after.cpus))
    if changed:
        notes.append(format_changed_cpus(changed))
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


def name_function(wakeup: Wakeup | Waking) -> str:
    """The function to name: the innermost that is the program's own."""
    if not wakeup.stack:
        return "[no user stack]"
    frame = next((frame for frame in wakeup.stack if not frame.module.startswith(_PLUMBING)), wakeup.stack[0])
    # An address that is not one of a file is another one in the next process: no name for a series.
    if frame.function is None and (frame.function_start is None or frame.module.startswith("[")):
        return frame.module
    return frame.label


def build_rows(record: Attribution, processes: Mapping[int, str]) -> list[IntervalRow]:
    """Everybody that idle exits are blamed on: threads with their functions, and what has no user stack; and where
    threads were woken on busy CPUs only, with what they ran.

    `processes` are names by pid; a thread whose process is not in it is its own.
    """
    rows = [
        IntervalRow(
            key=RowKey(_process_of(wakeup, processes), wakeup.thread.label, name_function(wakeup)),
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
        key=RowKey(_process_of(waking, processes), waking.thread.label, name_function(waking)),
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


def limit_running_time(rows: list[IntervalRow], c0_s: float) -> list[IntervalRow]:
    """Rows whose running time is no more than the interval's.

    A thread that ran from one interval into the next is counted when it leaves its CPU, with all that time: what lay in
    the earlier interval was counted there, as nobody's.
    """
    blamed_s = sum(row.c0_s for row in rows)
    if blamed_s <= c0_s:
        return rows
    return [msgspec.structs.replace(row, c0_s=row.c0_s * c0_s / blamed_s) for row in rows]


def count_mechanisms(
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


def count_ahead_exits(total: int, exits_count: int | None, ahead_count: int) -> int:
    """How many idle exits the intervals so far have counted that are not in the kernel's counters yet.

    To take the larger sum in each interval, and forget by how much, would let their sum run away from the kernel's.
    What is more than fits between two readings is none of these: entries that a driver rejected are never counted.
    """
    if exits_count is None:
        return 0
    return min(max(0, total + ahead_count - exits_count), total // _READ_APART)


def scale_energy(energy: Sequence[EnergyReading], host: Sequence[tuple[str, str]], share: float) -> tuple[Joules, ...]:
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


def build_interval(
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
    rows = limit_running_time(build_rows(record, processes), span.c0_s)
    mechanisms, total = count_mechanisms(rows, span.exits_count, ahead_count)
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
        ahead_count=count_ahead_exits(total, span.exits_count, ahead_count),
        mechanisms=mechanisms,
        rows=tuple(rows),
        c0_s=span.c0_s,
        own=OwnCost(
            cpu_s=own_cpu_s, wakeups_count=own + span.forced_count, bpf_s=own_bpf_s, memory_bytes=own_memory_bytes
        ),
        energy=scale_energy(record.energy, host_domains, window_s / record.window_s if record.window_s > 0 else 1.0),
        lost_count=traced.lost_count,
        lost_stacks_count=record.stacks.lost_count,
        unknown_count=traced.unknown_count,
        balance_error=compute_balance_error(traced.idle_exits_count, traced.reference_count),
        stacks_complete_percent=record.stacks.exits_complete_percent,
        suspended_s=suspended_s,
        notes=(*span.notes, *record.notes, *(record.energy_source.notes() if record.energy_source else ())),
    )


def merge_rows(rows: Iterable[IntervalRow]) -> list[IntervalRow]:
    """Return one row for each process, thread and function, the most exits first.

    An interval has one row per mechanism and stack: the merged row keeps those of the row with the most exits.
    `REST` is left out.
    """
    merged: dict[RowKey, IntervalRow] = {}
    for row in rows:
        if row.key == REST:
            continue
        earlier = merged.get(row.key)
        if earlier is None:
            merged[row.key] = row
            continue
        main = max(earlier, row, key=lambda row: row.exits_count)
        merged[row.key] = msgspec.structs.replace(
            main, exits_count=earlier.exits_count + row.exits_count, c0_s=earlier.c0_s + row.c0_s
        )
    return sorted(merged.values(), key=lambda row: (-row.exits_count, -row.c0_s, row.key))


POINTS = 12


@dataclass(frozen=True)
class RowTrend:
    """A row of the newest interval with its rates before; `new_s` is how long ago it came, None where it was there all
    along."""

    row: IntervalRow
    rate_hz: float
    c0_percent: float
    rates_hz: tuple[float, ...]
    new_s: float | None


class RowHistory:
    """Intervals as they come."""

    def __init__(self, points: int = POINTS) -> None:
        self.intervals: deque[LiveInterval] = deque(maxlen=points)
        self._rates: deque[dict[RowKey, float]] = deque(maxlen=points)
        self._seen = 0

    def add(self, interval: LiveInterval) -> None:
        """One more."""
        self._seen += 1
        self.intervals.append(interval)
        seconds = interval.window_s or 1.0
        self._rates.append({row.key: row.exits_count / seconds for row in merge_rows(interval.rows)})

    @property
    def last(self) -> LiveInterval | None:
        """The newest."""
        return self.intervals[-1] if self.intervals else None

    def series(self, value: Callable[[LiveInterval], float | None]) -> list[float | None]:
        """One figure of each interval."""
        return [value(interval) for interval in self.intervals]

    def lines(self) -> list[RowTrend]:
        """Every row of the newest interval, the most exits first."""
        newest = self.last
        if newest is None:
            return []
        seconds = newest.window_s or 1.0
        return [
            RowTrend(
                row=row,
                rate_hz=row.exits_count / seconds,
                c0_percent=100.0 * row.c0_s / (seconds * max(1, newest.cpus)),
                rates_hz=tuple(rates.get(row.key, 0.0) for rates in self._rates),
                new_s=self._age(row.key),
            )
            for row in merge_rows(newest.rows)
        ]

    def _age(self, key: RowKey) -> float | None:
        """Seconds since it came; None for what was there at the first look, or at the oldest that is remembered."""
        first = next((number for number, rates in enumerate(self._rates) if rates.get(key)), 0)
        if first == 0:
            return None
        return sum(interval.window_s for interval in list(self.intervals)[first:])
