# SPDX-License-Identifier: Apache-2.0
"""The intervals of a monitor: their records, their sums, and the history that a screen shows.

Intervals follow each other without a gap. An idle exit between two traced windows counts in the later interval, as
`untraced`. The module reads nothing from the host.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from powerprof.attribution.units import UnitCost, price_units
from powerprof.diagnosis.evidence import StatementWindow
from powerprof.energy.total import HostMeters, host_energy
from powerprof.measure.idle_counters import Snapshot, StateInfo
from powerprof.measure.residency import find_inconsistency
from powerprof.model.attribution import Attribution, Wakeup, Waking
from powerprof.model.records import Cause, Ended, EnergyReading, Kind, Notes
from powerprof.system.cgroups import UnitLabels

# The mechanism of idle exits in the kernel's count but not in the trace: between two windows, at their edges, or lost.
UNTRACED = "untraced"
OTHER = "other"
OWN = "powerprof"
# A thread that sleeps has these modules at the top of its stack, whatever its program does.
_SYSTEM_MODULES = ("libc.", "libc-", "ld-", "libpthread", "[vdso]")
# Deeper stacks lose their outermost functions.
_MAX_FRAMES = 128
# The counters and the trace are read some milliseconds apart. 1/50 of an interval is a generous bound.
_MAX_AHEAD_DIVISOR = 50
# Intervals on a screen.
POINTS = 12


class RowKey(msgspec.Struct, frozen=True, order=True):
    """The names of a row: process, thread and function. They have no process ids, so a restart keeps the key."""

    process: str
    thread: str
    function: str


REST = RowKey(OTHER, OTHER, OTHER)


class IntervalRow(msgspec.Struct, frozen=True, kw_only=True):
    """The idle exits and the running time of one process, thread name and function in one interval.

    `stack` is the most frequent one, innermost function first. `period_ms` is the period of regular wake-ups. `unit` is
    the service, container or pod. `is_other`: not a part of the target.
    """

    key: RowKey
    exits_count: int
    c0_s: float
    mechanism: str
    stack: tuple[str, ...] = ()
    period_ms: float | None = None
    pid: int | None = None
    unit: str | None = None
    is_other: bool = False


class Joules(msgspec.Struct, frozen=True, kw_only=True):
    """The energy of one domain in joules; None without a figure."""

    source: str
    domain: str
    kind: Kind
    joules: float | None


class ServerState(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a database server at the end of an interval.

    `queries_count` is the number of statements (PostgreSQL: transactions) since the last look. `account` runs the
    server from the file `program`. `role` is empty if the server lets powerprof not in.
    """

    name: str
    up: bool
    place: UnitLabels = UnitLabels()
    account: str = ""
    program: str = ""
    role: str = ""
    replication_healthy: bool | None = None
    lag_s: float | None = None
    queries_count: int | None = None


class LiveFinding(msgspec.Struct, frozen=True, kw_only=True):
    """A finding of `diagnose` at the last look, with its server."""

    rule: str
    severity: str
    text: str
    server: str = ""
    place: UnitLabels = UnitLabels()
    account: str = ""
    program: str = ""
    remedy: tuple[str, ...] = ()
    rate_hz: float | None = None


class OwnCost(msgspec.Struct, frozen=True, kw_only=True):
    """The cost of powerprof: CPU time of its process and its BPF programs, wake-ups, and resident memory."""

    cpu_s: float
    wakeups_count: int
    bpf_s: float | None = None
    memory_bytes: int | None = None


class CpuUse(msgspec.Struct, frozen=True):
    """CPU time of the processes with one name that ran for the whole interval, and their number."""

    processes: int
    cpu_s: float


class ServedStatement(msgspec.Struct, frozen=True, kw_only=True):
    """The use of one statement in an interval. `text` has no values and a bounded length."""

    id: str
    text: str
    schema: str
    c0_s: float
    wakeups_count: int = 0
    joules: float = 0.0


class ServedStatements(msgspec.Struct, frozen=True, kw_only=True):
    """The statements of one server in an interval, with the sums of the whole server in `window_s` traced seconds.

    `method` is probes or samples, or None if the server was away or could not be traced. Samples have no wake-ups.
    `joules` is the energy above the idle floor, of the given `kind`. `bpf_s` is the CPU time of the probes.
    `calls_count` is None if executions are not counted. `by_cost` is the window for the rules of `diagnose`.
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
    calls_count: int | None = None
    by_cost: StatementWindow | None = None


class IdleCounts(NamedTuple):
    """The entries of an idle state of a CPU, and the kernel's misses; None for a counter that the kernel lacks."""

    entries: int
    above: int | None
    below: int | None
    rejected: int | None


class LiveInterval(msgspec.Struct, frozen=True, kw_only=True):
    """One interval of this host.

    `idle_s`, `idle_counts` (by CPU and state) and `exits_count` are the kernel's counters, read at `ended_at`.
    `mechanisms` sums to `exits_count`. `cpus` were online for the whole interval.

    Attributes:
        ahead_count: Exits in this interval that are in the trace but not yet in the kernel's counters.
        host_joules: The energy of the host by its one sum of domains (`host_energy`). None if it is unknown.
        unit_joules: The energy of each unit above the idle floor; None if it is unknown.
        idle_joules: The energy of the idle floor; None if it is unknown.
        balance_error: The difference between trace and kernel, as a share of the kernel's count.
        suspended_s: Seconds of suspend, in no other figure.
        used: CPU time of processes by name, if the CPUs were busy and the clocks were read.
        target: The name of the watched processes; empty for the whole host.
        target_percent: CPU use of the target, in percent of one CPU; None if it is unknown.
        statements: The statements of the first server that is served.
        other_statements: Those of the other servers.
        ended: The end, stop or change of the target in the interval.
    `traced_percent`: the traced part of the interval; below 100, `rows` are estimates. `max_cost_percent`: the bound of
    the cost of tracing.
    """

    ended_at: str
    window_s: float
    cpus: int
    idle_s: dict[tuple[int, str], float]
    idle_counts: dict[tuple[int, str], IdleCounts] = {}
    idle_states: tuple[StateInfo, ...] = ()
    polling: frozenset[str] = frozenset()
    exits_count: int
    ahead_count: int = 0
    mechanisms: dict[str, int]
    rows: tuple[IntervalRow, ...]
    c0_s: float
    own: OwnCost
    energy: tuple[Joules, ...] = ()
    host_joules: float | None = None
    host_kind: Kind = "measured"
    unit_joules: dict[str, float] | None = None
    idle_joules: float | None = None
    lost_count: int = 0
    lost_stacks_count: int = 0
    unknown_count: int = 0
    balance_error: float | None = None
    traced_percent: float = 100.0
    max_cost_percent: float | None = None
    stacks_complete_percent: float | None = None
    suspended_s: float = 0.0
    servers: tuple[ServerState, ...] = ()
    findings: tuple[LiveFinding, ...] = ()
    used: dict[str, CpuUse] | None = None
    target: str = ""
    target_percent: float | None = None
    statements: ServedStatements | None = None
    other_statements: tuple[ServedStatements, ...] = ()
    ended: Ended | None = None
    notes: Notes = ()

    @property
    def c0_percent(self) -> float | None:
        """Return the running time as a share of the time of all CPUs."""
        return 100.0 * self.c0_s / (self.window_s * self.cpus) if self.window_s > 0 and self.cpus else None

    @property
    def exits_hz(self) -> float | None:
        """Return the idle exits of all CPUs per second."""
        return self.exits_count / self.window_s if self.window_s > 0 else None

    @property
    def target_exits_hz(self) -> float:
        """Return the idle exits per second that the target caused."""
        return sum(row.exits_count for row in self.rows if not row.is_other) / self.window_s if self.window_s else 0.0

    @property
    def statements_hz(self) -> float | None:
        """Return the statements per second of the measured server; None if they are unknown."""
        served = self.statements
        if served is None or served.calls_count is None or served.window_s <= 0:
            return None
        return served.calls_count / served.window_s

    @property
    def host_watts(self) -> tuple[float, Kind] | None:
        """Return the power of the host and its kind (measured or estimated); None if it is unknown."""
        if self.host_joules is None or self.window_s <= 0:
            return None
        return self.host_joules / self.window_s, self.host_kind


def compute_balance_error(traced_count: int, kernel_count: int | None) -> float | None:
    """Return the difference of the two counts as a share of the kernel's; None without a kernel count."""
    if kernel_count is None:
        return None
    return abs(traced_count - kernel_count) / kernel_count if kernel_count else float(traced_count > 0)


class Span(msgspec.Struct, frozen=True):
    """The kernel's counters between two snapshots, of the CPUs in both.

    `window_s` is the mean over the CPUs. `exits_count` is None without counters. The reader of the counters caused
    `forced_count` of the exits. `c0_s` is the running time of all CPUs, polling included.
    """

    window_s: float
    cpus: int
    idle_s: Mapping[tuple[int, str], float]
    polling: frozenset[str]
    exits_count: int | None
    forced_count: int
    c0_s: float
    notes: tuple[str, ...]
    idle_counts: Mapping[tuple[int, str], IdleCounts] = msgspec.field(default_factory=dict)
    idle_states: tuple[StateInfo, ...] = ()


def format_changed_cpus(cpus: Sequence[int]) -> str:
    """Return the note on CPUs that came or went, or that are not traced yet."""
    return f"CPU {', '.join(map(str, cpus))} came or went: left out of this interval"


def measure_span(before: Snapshot, after: Snapshot) -> Span:
    """Return the counters of the CPUs in both snapshots.

    A CPU that came, went or was reset is left out, with a note.
    """
    idle_s: dict[tuple[int, str], float] = {}
    counts: dict[tuple[int, str], IdleCounts] = {}
    infos: dict[str, StateInfo] = {}
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
            misses = ((new.above, old.above), (new.below, old.below), (new.rejected, old.rejected))
            counts[cpu, state.name] = IdleCounts(
                new.usage[index] - old.usage[index], *(_subtract(now[index], then[index]) for now, then in misses)
            )
            infos.setdefault(state.name, state)
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
        idle_counts=counts,
        idle_states=tuple(infos.values()),
    )


def _subtract(now: int | None, then: int | None) -> int | None:
    return None if now is None or then is None else now - then


def name_function(wakeup: Wakeup | Waking) -> str:
    """Return the innermost function of the stack that is not of a system library."""
    if not wakeup.stack:
        return "[no user stack]"
    frame = next((frame for frame in wakeup.stack if not frame.module.startswith(_SYSTEM_MODULES)), wakeup.stack[0])
    # An address outside a file differs in each process, so it cannot name a series.
    if frame.function is None and (frame.function_start is None or frame.module.startswith("[")):
        return frame.module
    return frame.label


def build_rows(record: Attribution, processes: Mapping[int, str]) -> list[IntervalRow]:
    """Return the rows of an attribution.

    They are the blamed threads with their functions, the causes without a user stack, and the threads that woke only
    on busy CPUs. `processes` has process names by pid. A thread whose process is missing there gets its own name.
    """
    rows = [
        IntervalRow(
            key=_build_key(wakeup, processes),
            exits_count=wakeup.count,
            c0_s=wakeup.c0_ms / 1e3,
            mechanism=wakeup.mechanism,
            stack=tuple(frame.label for frame in wakeup.stack[:_MAX_FRAMES]),
            period_ms=wakeup.period_ms,
            pid=wakeup.thread.pid,
            unit=wakeup.thread.unit,
        )
        for wakeup in record.wakeups
    ]
    rows += [
        IntervalRow(
            key=_build_key(waking, processes),
            exits_count=0,
            c0_s=waking.own_ms / 1e3,
            mechanism=UNTRACED,
            stack=tuple(frame.label for frame in waking.stack[:_MAX_FRAMES]),
            pid=waking.thread.pid,
            unit=waking.thread.unit,
        )
        for waking in record.wakings_without_exit
        if waking.own_ms
    ]
    is_other = not record.target.system
    return rows + [_build_row(cause, is_other) for cause in record.other_causes]


def _build_key(wakeup: Wakeup | Waking, processes: Mapping[int, str]) -> RowKey:
    process = processes.get(wakeup.thread.pid or 0)
    # A process that ended before its name could be read is called "pid N".
    if process is None or process.startswith("pid "):
        process = wakeup.thread.comm
    return RowKey(process, wakeup.thread.label, name_function(wakeup))


def _build_row(cause: Cause, is_other: bool) -> IntervalRow:
    process = cause.process or "kernel"
    return IntervalRow(
        key=RowKey(process, cause.thread or process, cause.name or cause.mechanism.replace("_", "-")),
        exits_count=cause.count,
        c0_s=(cause.c0_ms or 0.0) / 1e3,
        mechanism=cause.mechanism,
        period_ms=cause.period_ms,
        pid=cause.pid,
        is_other=is_other,
    )


def limit_running_time(rows: list[IntervalRow], c0_s: float) -> list[IntervalRow]:
    """Scale the running time of the rows down to `c0_s`, the running time of the interval.

    The trace counts a thread's running time when the thread leaves its CPU. A thread that began to run in an earlier
    interval would add that interval's time to this one.
    """
    blamed_s = sum(row.c0_s for row in rows)
    if blamed_s <= c0_s:
        return rows
    return [msgspec.structs.replace(row, c0_s=row.c0_s * c0_s / blamed_s) for row in rows]


def count_mechanisms(
    rows: Sequence[IntervalRow], exits_count: int | None, ahead_count: int = 0
) -> tuple[dict[str, int], int]:
    """Return idle exits by mechanism, `untraced` included, and their sum.

    The sum is the kernel's `exits_count`, or the trace's count if it is larger or the kernel has no counters.
    `ahead_count` of the kernel's exits count in the interval before: the trace is read after the counters.
    """
    counts: Counter[str] = Counter()
    for row in rows:
        counts[row.mechanism] += row.exits_count
    traced = sum(counts.values())
    total = max(traced, (exits_count or 0) - ahead_count)
    counts[UNTRACED] = total - traced
    return dict(counts), total


def count_ahead_exits(total: int, exits_count: int | None, ahead_count: int) -> int:
    """Return the idle exits that the intervals so far have counted and the kernel's counters have not.

    Without this correction the sum of the intervals would diverge from the kernel's. The result is bounded, because
    the trace also has entries that a driver rejects, and the kernel never counts these.
    """
    if exits_count is None:
        return 0
    return min(max(0, total + ahead_count - exits_count), total // _MAX_AHEAD_DIVISOR)


def scale_energy(energy: Sequence[EnergyReading], factor: float) -> tuple[Joules, ...]:
    """Return the readings of a traced window, multiplied by `factor` to cover the whole interval.

    The time between two windows is about 1 % of an interval and is assumed to draw the same power.
    """
    return tuple(
        Joules(
            source=reading.source,
            domain=reading.domain,
            kind=reading.kind,
            joules=None if reading.joules is None else reading.joules * factor,
        )
        for reading in energy
    )


def build_interval(
    record: Attribution,
    span: Span,
    *,
    ended_at: str,
    processes: Mapping[int, str],
    meters: HostMeters | None,
    own_cpu_s: float,
    own_bpf_s: float | None,
    own_memory_bytes: int,
    suspended_s: float,
    ahead_count: int,
) -> LiveInterval:
    """Return the interval at the end of a traced window.

    `span` begins at the end of the interval before, and `ahead_count` is that interval's. `meters` stand for the host
    in all intervals.
    """
    rows = limit_running_time(build_rows(record, processes), span.c0_s)
    mechanisms, total = count_mechanisms(rows, span.exits_count, ahead_count)
    own_exits = sum(row.exits_count for row in rows if row.key.process == OWN)
    window_s = span.window_s or record.window_s
    factor = window_s / record.window_s if record.window_s > 0 else 1.0
    host = host_energy(record.energy, meters)
    split = record.energy_split
    unit_joules = None if host.joules is None or host.kind is None else price_units(sum_units(rows), split)
    traced = record.conservation
    return LiveInterval(
        ended_at=ended_at,
        window_s=window_s,
        cpus=span.cpus or record.cpus,
        idle_s=dict(span.idle_s),
        idle_counts=dict(span.idle_counts),
        idle_states=span.idle_states,
        polling=span.polling,
        exits_count=total,
        ahead_count=count_ahead_exits(total, span.exits_count, ahead_count),
        mechanisms=mechanisms,
        rows=tuple(rows),
        c0_s=span.c0_s,
        own=OwnCost(
            cpu_s=own_cpu_s, wakeups_count=own_exits + span.forced_count, bpf_s=own_bpf_s, memory_bytes=own_memory_bytes
        ),
        energy=scale_energy(record.energy, factor),
        host_joules=None if host.joules is None else host.joules * factor,
        host_kind=host.kind or "measured",
        unit_joules=unit_joules,
        idle_joules=None if split is None or split.idle_joules is None else split.idle_joules * factor,
        lost_count=traced.lost_count,
        lost_stacks_count=record.stacks.lost_count,
        unknown_count=traced.unknown_count,
        balance_error=compute_balance_error(traced.idle_exits_count, traced.reference_count),
        stacks_complete_percent=record.stacks.exits_complete_percent,
        suspended_s=suspended_s,
        notes=(*span.notes, *record.notes, *(record.energy_source.notes() if record.energy_source else ())),
    )


def sum_units(rows: Iterable[IntervalRow]) -> dict[str, UnitCost]:
    """Return the idle exits and the running time of each unit."""
    units: dict[str, UnitCost] = {}
    for row in rows:
        if row.unit is not None:
            exits_count, c0_s = units.get(row.unit, (0, 0.0))
            units[row.unit] = exits_count + row.exits_count, c0_s + row.c0_s
    return units


def merge_rows(rows: Iterable[IntervalRow]) -> list[IntervalRow]:
    """Return one row for each process, thread and function, the most exits first.

    An interval has one row per mechanism and stack: the merged row keeps those of the row with the most exits.
    `REST` is left out.
    """
    groups: dict[RowKey, list[IntervalRow]] = {}
    for row in rows:
        if row.key != REST:
            groups.setdefault(row.key, []).append(row)
    merged = [
        msgspec.structs.replace(
            max(same, key=lambda row: row.exits_count),
            exits_count=sum(row.exits_count for row in same),
            c0_s=sum(row.c0_s for row in same),
        )
        for same in groups.values()
    ]
    return sorted(merged, key=lambda row: (-row.exits_count, -row.c0_s, row.key))


class RowTrend(msgspec.Struct, frozen=True):
    """A row of the newest interval with its earlier rates.

    Attributes:
        row: The row.
        rate_hz: Its idle exits per second.
        c0_percent: Its running time as a share of all CPUs.
        rates_hz: Its rate in each interval, the newest last.
        new_s: Seconds since it appeared; None if it is in the oldest interval.
    """

    row: IntervalRow
    rate_hz: float
    c0_percent: float
    rates_hz: tuple[float, ...]
    new_s: float | None


class RowHistory:
    """The newest `POINTS` intervals, the newest last."""

    def __init__(self) -> None:
        self.intervals: deque[LiveInterval] = deque(maxlen=POINTS)
        self._rates: deque[dict[RowKey, float]] = deque(maxlen=POINTS)

    def add(self, interval: LiveInterval) -> None:
        """Add an interval, and drop the oldest if there are too many."""
        self.intervals.append(interval)
        seconds = interval.window_s or 1.0
        self._rates.append({row.key: row.exits_count / seconds for row in merge_rows(interval.rows)})

    @property
    def last(self) -> LiveInterval | None:
        """Return the newest interval."""
        return self.intervals[-1] if self.intervals else None

    def series(self, value: Callable[[LiveInterval], float | None]) -> list[float | None]:
        """Return one figure per interval."""
        return [value(interval) for interval in self.intervals]

    def lines(self) -> list[RowTrend]:
        """Return the rows of the newest interval with their trends, the most exits first."""
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
                new_s=self._age_s(row.key),
            )
            for row in merge_rows(newest.rows)
        ]

    def _age_s(self, key: RowKey) -> float | None:
        first = next((number for number, rates in enumerate(self._rates) if rates.get(key)), 0)
        if first == 0:
            return None
        return sum(interval.window_s for interval in list(self.intervals)[first:])
