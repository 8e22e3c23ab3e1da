# SPDX-License-Identifier: Apache-2.0
"""Counters that only rise, made of intervals; what has series of its own is ranked (`ranking`)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from math import exp, log
from typing import Any, Generic, TypeVar, get_args

from powerprof.live.intervals import (
    REST,
    UNTRACED,
    IntervalRow,
    Joules,
    LiveFinding,
    LiveInterval,
    RowKey,
    ServedStatement,
    ServedStatements,
    ServerState,
)
from powerprof.model.records import Kind, Mechanism

# Series for as many keys as a budget allows, everything else in one sum, `rest`.
#
# A key takes a place by what it costs; its series starts at 0 and counts from when a reader has seen that 0, because a
# reader of counters cannot tell what a series already held when it appeared. Until then, and after it lost its place,
# its exits count in the rest. So the increase of all series is the host's, whoever comes and goes and however seldom is
# read.

K = TypeVar("K")
# Idle exits and seconds in C0.
Cost = tuple[int, float]
TOP = 20
STALE_S = 300.0
# What is remembered of keys without a place, so that names that never repeat cannot fill the memory.
_REMEMBERED = 20
_HALF_LIFE_S = 60.0
# A place changes hands only for a clear gain: series that come and go cost a store more than they tell.
_CLEARLY = 1.5


@dataclass
class RankedCounters:
    """A key's counters, and what of them was read. `seen`: somebody has read its 0."""

    exits_count: int = 0
    c0_s: float = 0.0
    seen: bool = False
    read_count: int = 0
    read_c0_s: float = 0.0
    joules: float = 0.0
    read_joules: float = 0.0


@dataclass
class _CostSeen:
    cost: float = 0.0
    idle_for_s: float = 0.0


@dataclass
class Ranking(Generic[K]):
    """The places of the dearest `top` keys; a key without costs for `stale_s` loses its place."""

    top: int = TOP
    stale_s: float = STALE_S
    places: dict[K, RankedCounters] = field(default_factory=dict)
    rest: RankedCounters = field(default_factory=RankedCounters)
    _known: dict[K, _CostSeen] = field(default_factory=dict)
    # Series that have ended since somebody read them: one that begins again before the next reading goes on.
    _ended: dict[K, RankedCounters] = field(default_factory=dict)

    def add(
        self,
        window_s: float,
        costs: Mapping[K, Cost],
        exits_count: int,
        c0_s: float,
        energy: Mapping[K, float] | None = None,
        joules: float = 0.0,
    ) -> None:
        """One more interval: what each key cost, and what it was in all; with `energy`, the joules of each."""
        self._age(window_s, costs)
        counted_exits, counted_c0_s, counted_joules = 0, 0.0, 0.0
        for key, cost in costs.items():
            place = self.places.get(key)
            if place is not None and place.seen:
                place.exits_count += cost[0]
                place.c0_s += cost[1]
                counted_exits += cost[0]
                counted_c0_s += cost[1]
                if energy is not None:
                    place.joules += energy.get(key, 0.0)
                    counted_joules += energy.get(key, 0.0)
        self.rest.exits_count += max(0, exits_count - counted_exits)
        self.rest.c0_s += max(0.0, c0_s - counted_c0_s)
        self.rest.joules += max(0.0, joules - counted_joules)
        self._give_places()

    def read(self) -> None:
        """A reader was shown every series: keys that are new count from here."""
        self._ended.clear()
        for place in self.places.values():
            place.seen = True
            place.read_count, place.read_c0_s = place.exits_count, place.c0_s
            place.read_joules = place.joules

    def _age(self, window_s: float, costs: Mapping[K, Cost]) -> None:
        """Costs fade by half a minute; a key that did nothing for long enough loses its place."""
        fade = exp(-log(2.0) * window_s / _HALF_LIFE_S)
        exits = sum(cost[0] for cost in costs.values()) or 1
        c0_s = sum(cost[1] for cost in costs.values()) or 1.0
        for known in self._known.values():
            known.cost *= fade
            known.idle_for_s += window_s
        for key, cost in costs.items():
            known = self._known.setdefault(key, _CostSeen())
            known.idle_for_s = 0.0
            # A second in C0 and the waking itself both cost: half of the score is the share of each.
            known.cost += (1.0 - fade) * (cost[0] / exits + cost[1] / c0_s) / 2.0
        for key in [key for key, known in self._known.items() if known.idle_for_s >= self.stale_s]:
            del self._known[key]
            self._end(key)

    def _end(self, key: K) -> None:
        """A series ends: what it counted since it was read last would be in none."""
        place = self.places.pop(key, None)
        if place is not None:
            self.rest.exits_count += place.exits_count - place.read_count
            self.rest.c0_s += place.c0_s - place.read_c0_s
            self.rest.joules += place.joules - place.read_joules
            if place.seen:
                self._ended[key] = replace(
                    place, exits_count=place.read_count, c0_s=place.read_c0_s, joules=place.read_joules
                )

    def _begin(self, key: K) -> None:
        self.places[key] = self._ended.pop(key, RankedCounters())

    def _order(self, key: K) -> tuple[float, Any]:
        return -self._known[key].cost, key

    def _give_places(self) -> None:
        waiting = sorted((key for key in self._known if key not in self.places), key=self._order)
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


# Counters of the statements of one server: series for the costliest, one sum for all else.


@dataclass
class StatementTotals:
    """The sums over all intervals of one server. What is in no statement's series (statements below the top,
    background, connections) is `rest`, so that all series together are the server."""

    rows: Ranking[str] = field(default_factory=Ranking)
    texts: dict[str, ServedStatement] = field(default_factory=dict)
    measured_s: dict[str, float] = field(default_factory=lambda: {"probes": 0.0, "samples": 0.0})
    server: str = ""
    up: bool = False
    has_wakeups: bool = False
    kind: Kind | None = None

    @classmethod
    def of(cls, top: int = TOP, stale_s: float = 300.0) -> StatementTotals:
        """With so many places."""
        return cls(Ranking(top, stale_s))

    def add(self, interval: ServedStatements) -> None:
        """Count one more interval."""
        self.server = self.server or interval.server
        self.up = interval.method is not None
        if interval.method is None:
            return
        self.measured_s[interval.method] = self.measured_s.get(interval.method, 0.0) + interval.window_s
        self.has_wakeups = interval.wakeups_count is not None
        # Measured and estimated joules are never added: what was there first is counted.
        self.kind = self.kind or interval.kind
        is_alike = self.kind is not None and interval.kind == self.kind
        costs: dict[str, tuple[int, float]] = {}
        energy: dict[str, float] = {}
        for row in interval.statements:
            count, c0_s = costs.get(row.id, (0, 0.0))
            costs[row.id] = count + row.wakeups_count, c0_s + max(row.c0_s, 0.0)
            energy[row.id] = energy.get(row.id, 0.0) + max(row.joules, 0.0)
            self.texts.setdefault(row.id, row)
        self.rows.add(
            interval.window_s,
            costs,
            interval.wakeups_count or 0,
            interval.c0_s,
            energy if is_alike else None,
            max(interval.joules or 0.0, 0.0) if is_alike else 0.0,
        )
        self._forget(costs)

    def read(self) -> None:
        """A reader was shown every series; of a server that is away there is none."""
        if self.up:
            self.rows.read()

    def places(self) -> dict[str, RankedCounters]:
        """The counters by the statement's id, `other` for all that has none."""
        return {**self.rows.places, "other": self.rows.rest}

    def _forget(self, new: dict[str, tuple[int, float]]) -> None:
        if len(self.texts) > _REMEMBERED * max(1, self.rows.top):
            keep = set(self.rows.places) | set(new)
            self.texts = {id: row for id, row in self.texts.items() if id in keep}


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
