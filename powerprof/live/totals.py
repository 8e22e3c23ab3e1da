# SPDX-License-Identifier: Apache-2.0
"""Counters that only rise, made of intervals: as many rows as a budget allows, everything else in `other`.

A row takes a place by what it costs; its series starts at 0 and counts from when a reader has seen that 0, because a
reader of counters cannot tell what a series already held when it appeared. Until then, and after it lost its place, its
exits count as `other`. So the increase of all series is the host's, whoever comes and goes and however seldom is read.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from math import exp, log
from typing import get_args

from powerprof.live.intervals import REST, UNTRACED, IntervalRow, Joules, LiveFinding, LiveInterval, RowKey, ServerState
from powerprof.records import Mechanism

TOP = 20
STALE_S = 300.0
# What is remembered of rows without a place, so that names that never repeat cannot fill the memory.
_REMEMBERED = 20
_HALF_LIFE_S = 60.0
# A place changes hands only for a clear gain: series that come and go cost a store more than they tell.
_CLEARLY = 1.5


@dataclass
class Place:
    """A row's counters, and what of them was read. `seen`: somebody has read its 0."""

    exits_count: int = 0
    c0_s: float = 0.0
    seen: bool = False
    read_count: int = 0
    read_c0_s: float = 0.0


@dataclass
class _Known:
    cost: float = 0.0
    idle_for_s: float = 0.0


@dataclass
class Totals:
    """The sums over all intervals so far. `add` takes the next; `read` marks what a reader was shown."""

    top: int = TOP
    stale_s: float = STALE_S
    per_cpu: bool = True
    places: dict[RowKey, Place] = field(default_factory=dict)
    rest: Place = field(default_factory=Place)
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
    _known: dict[RowKey, _Known] = field(default_factory=dict)
    # Series that have ended since somebody read them: one that begins again before the next reading goes on.
    _ended: dict[RowKey, Place] = field(default_factory=dict)

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

    def read(self) -> None:
        """A reader was shown every series: rows that are new count from here."""
        self._ended.clear()
        for place in self.places.values():
            place.seen = True
            place.read_count, place.read_c0_s = place.exits_count, place.c0_s

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
        rows = _merged(interval.rows)
        self._age(interval, rows)
        counted_exits, counted_c0_s = 0, 0.0
        for key, row in rows.items():
            place = self.places.get(key)
            if place is not None and place.seen:
                place.exits_count += row.exits_count
                place.c0_s += row.c0_s
                counted_exits += row.exits_count
                counted_c0_s += row.c0_s
        self.rest.exits_count += max(0, interval.exits_count - counted_exits)
        self.rest.c0_s += max(0.0, interval.c0_s - counted_c0_s)
        self._give_places()

    def _age(self, interval: LiveInterval, rows: dict[RowKey, IntervalRow]) -> None:
        """Costs fade by half a minute; a row that did nothing for long enough loses its place."""
        fade = exp(-log(2.0) * interval.window_s / _HALF_LIFE_S)
        exits = sum(row.exits_count for row in rows.values()) or 1
        c0_s = sum(row.c0_s for row in rows.values()) or 1.0
        for known in self._known.values():
            known.cost *= fade
            known.idle_for_s += interval.window_s
        for key, row in rows.items():
            known = self._known.setdefault(key, _Known())
            known.idle_for_s = 0.0
            # A second in C0 and the waking itself both cost: half of the score is the share of each.
            known.cost += (1.0 - fade) * (row.exits_count / exits + row.c0_s / c0_s) / 2.0
        for key in [key for key, known in self._known.items() if known.idle_for_s >= self.stale_s]:
            del self._known[key]
            self._end(key)

    def _end(self, key: RowKey) -> None:
        """A series ends: what it counted since it was read last would be in none."""
        place = self.places.pop(key, None)
        if place is not None:
            self.rest.exits_count += place.exits_count - place.read_count
            self.rest.c0_s += place.c0_s - place.read_c0_s
            if place.seen:
                self._ended[key] = replace(place, exits_count=place.read_count, c0_s=place.read_c0_s)

    def _begin(self, key: RowKey) -> None:
        self.places[key] = self._ended.pop(key, Place())

    def _give_places(self) -> None:
        waiting = sorted(
            (key for key in self._known if key not in self.places), key=lambda key: (-self._known[key].cost, key)
        )
        for key in waiting:
            if len(self.places) < self.top:
                self._begin(key)
                continue
            cheapest = min(self.places, key=lambda place: self._known[place].cost, default=None)
            if cheapest is None or self._known[key].cost <= _CLEARLY * self._known[cheapest].cost:
                break
            self._end(cheapest)
            self._begin(key)
        left = [key for key in waiting if key not in self.places]
        for key in left[_REMEMBERED * max(1, self.top) :]:
            del self._known[key]


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
        )
    return by_key


def merged(rows: Iterable[IntervalRow]) -> list[IntervalRow]:
    """Rows by process, thread and function, the most exits first."""
    return sorted(_merged(rows).values(), key=lambda row: (-row.exits_count, -row.c0_s, row.key))
