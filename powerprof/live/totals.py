# SPDX-License-Identifier: Apache-2.0
"""Counters that only rise, made of intervals; what has series of its own is ranked (`ranking`)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import get_args

from powerprof.live.intervals import REST, UNTRACED, IntervalRow, Joules, LiveFinding, LiveInterval, RowKey, ServerState
from powerprof.live.ranking import Ranking
from powerprof.live.statementtotals import StatementTotals
from powerprof.records import Mechanism


@dataclass
class Totals:
    """The sums over all intervals so far. `add` takes the next; `read` marks what a reader was shown."""

    rows: Ranking[RowKey] = field(default_factory=Ranking)
    units: Ranking[str] = field(default_factory=Ranking)
    statements: StatementTotals | None = None
    per_cpu: bool = True
    idle_s: dict[tuple[str, str], float] = field(default_factory=dict)
    # All of them from the start: what a series held when it appeared would be lost to a store.
    mechanisms: dict[str, int] = field(default_factory=lambda: dict.fromkeys((*get_args(Mechanism), UNTRACED), 0))
    joules: dict[tuple[str, str, str], float] = field(default_factory=dict)
    host_joules: dict[str, float] = field(default_factory=dict)
    meters: dict[tuple[str, str], bool] = field(default_factory=dict)
    queries: dict[str, int] = field(default_factory=dict)
    servers: tuple[ServerState, ...] = ()
    findings: tuple[LiveFinding, ...] = ()
    exits_count: int = 0
    lost_count: int = 0
    lost_stacks_count: int = 0
    unknown_count: int = 0
    intervals_count: int = 0
    c0_s: float = 0.0
    measured_s: float = 0.0
    suspended_s: float = 0.0
    own_cpu_s: float = 0.0
    own_bpf_s: float = 0.0
    own_wakeups_count: int = 0
    own_memory_bytes: int | None = None
    balance_error: float | None = None
    stacks_complete_percent: float | None = None
    cpus: int = 0

    def add(self, interval: LiveInterval) -> None:
        """Count one more interval."""
        self.intervals_count += 1
        self.measured_s += interval.window_s
        self.suspended_s += interval.suspended_s
        self.exits_count += interval.exits_count
        self.lost_count += interval.lost_count
        self.lost_stacks_count += interval.lost_stacks_count
        self.unknown_count += interval.unknown_count
        self.c0_s += interval.c0_s
        self.balance_error = interval.balance_error
        self.stacks_complete_percent = interval.stacks_complete_percent
        self.cpus = interval.cpus
        self._add_own(interval)
        for (cpu, state), seconds in interval.idle_s.items():
            key = (str(cpu) if self.per_cpu else "all", state)
            self.idle_s[key] = self.idle_s.get(key, 0.0) + max(0.0, seconds)
        for name, count in interval.mechanisms.items():
            self.mechanisms[name] = self.mechanisms.get(name, 0) + count
        self._add_energy(interval.energy)
        self._add_servers(interval)
        self._add_rows(interval)
        if self.statements is not None and interval.statements is not None:
            self.statements.add(interval.statements)

    def read(self) -> None:
        """A reader was shown every series: rows that are new count from here."""
        self.rows.read()
        self.units.read()
        if self.statements is not None:
            self.statements.read()

    def _add_own(self, interval: LiveInterval) -> None:
        own = interval.own
        self.own_cpu_s += own.cpu_s
        self.own_bpf_s += own.bpf_s or 0.0
        self.own_wakeups_count += own.wakeups_count
        self.own_memory_bytes = own.memory_bytes

    def _add_energy(self, energy: Iterable[Joules]) -> None:
        self.meters = {}
        for reading in energy:
            key = (reading.source, reading.domain, reading.kind)
            self.joules[key] = self.joules.get(key, 0.0) + max(0.0, reading.joules or 0.0)
            self.meters[(reading.source, reading.domain)] = reading.joules is not None
            if reading.in_host:
                self.host_joules[reading.kind] = self.host_joules.get(reading.kind, 0.0) + max(
                    0.0, reading.joules or 0.0
                )

    def _add_servers(self, interval: LiveInterval) -> None:
        self.servers, self.findings = interval.servers, interval.findings
        for server in interval.servers:
            self.queries[server.name] = self.queries.get(server.name, 0) + (server.queries_count or 0)
        gone = set(self.queries) - {server.name for server in interval.servers}
        for name in gone:
            del self.queries[name]

    def _add_rows(self, interval: LiveInterval) -> None:
        whole = (interval.exits_count, interval.c0_s)
        rows = {key: (row.exits_count, row.c0_s) for key, row in _merged(interval.rows).items()}
        self.rows.add(interval.window_s, rows, *whole)
        units: dict[str, tuple[int, float]] = {}
        for row in interval.rows:
            if row.unit is not None:
                exits_count, c0_s = units.get(row.unit, (0, 0.0))
                units[row.unit] = exits_count + row.exits_count, c0_s + row.c0_s
        self.units.add(interval.window_s, units, *whole)


def _merged(rows: Iterable[IntervalRow]) -> dict[RowKey, IntervalRow]:
    """Rows of one key as one: an interval has one for each mechanism and stack."""
    by_key: dict[RowKey, IntervalRow] = {}
    for row in rows:
        known = by_key.get(row.key)
        if row.key == REST:
            continue
        if known is None:
            by_key[row.key] = row
            continue
        main = max(known, row, key=lambda row: row.exits_count)
        by_key[row.key] = IntervalRow(
            key=row.key,
            exits_count=known.exits_count + row.exits_count,
            c0_s=known.c0_s + row.c0_s,
            mechanism=main.mechanism,
            stack=main.stack,
            period_ms=main.period_ms,
            pid=main.pid,
            unit=main.unit,
        )
    return by_key


def merged(rows: Iterable[IntervalRow]) -> list[IntervalRow]:
    """Rows by process, thread and function, the most exits first."""
    return sorted(_merged(rows).values(), key=lambda row: (-row.exits_count, -row.c0_s, row.key))
