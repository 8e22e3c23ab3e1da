# SPDX-License-Identifier: Apache-2.0
"""Counters as Prometheus and OpenMetrics text; the only importer of prometheus_client.

Names and labels are a contract (docs/reference/metrics.md): no exemplars, no timestamps, and a series that ends is left
out of the next answer, by which a store marks it stale.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime
from math import exp, log
from typing import TYPE_CHECKING, Any, Generic, TypeVar, get_args

from powerprof.live.intervals import (
    OTHER,
    REST,
    UNTRACED,
    Joules,
    LiveFinding,
    LiveInterval,
    RowKey,
    ServedStatement,
    ServedStatements,
    ServerState,
    merge_rows,
)
from powerprof.model.records import Kind, Mechanism

if TYPE_CHECKING:
    from prometheus_client.core import Metric


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
        rows = {row.key: (row.exits_count, row.c0_s) for row in merge_rows(interval.rows)}
        self.rows.add(interval.window_s, rows, *whole)
        units: dict[str, tuple[int, float]] = {}
        for row in interval.rows:
            if row.unit is not None:
                exits_count, c0_s = units.get(row.unit, (0, 0.0))
                units[row.unit] = exits_count + row.exits_count, c0_s + row.c0_s
        self.units.add(interval.window_s, units, *whole)


# By which account and from which file a server runs.
_WHOSE = ("account", "program")
_STATEMENT, _BY_METHOD = ("server", "statement"), ("server", "method")
# Label values in the order of the labels.
Rows = Mapping[Any, float]


@dataclass
class SharedTotals:
    """Totals that one thread adds to and others read. `built` are the labels of `powerprof_build_info`.

    Figures that are older than `deadline_s` are not shown (None: they are, however old): who keeps the measuring thread
    from its work must not freeze what monitoring sees of this host.
    """

    totals: Totals
    built: Mapping[str, str]
    deadline_s: float | None = None
    last_at_s: float = 0.0
    _added_s: float | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, interval: LiveInterval) -> None:
        """Count one more interval."""
        with self._lock:
            self.totals.add(interval)
            self._added_s = time.monotonic()
            self.last_at_s = datetime.fromisoformat(interval.ended_at).timestamp()

    @property
    def is_late(self) -> bool:
        """Whether the interval that is under way has passed its deadline."""
        if self.deadline_s is None or self._added_s is None:
            return False
        return time.monotonic() - self._added_s > self.deadline_s

    @contextmanager
    def reading(self) -> Iterator[Totals]:
        """The totals, which stand still meanwhile; their new rows count as seen afterwards."""
        with self._lock:
            yield self.totals
            self.totals.read()


def render_metrics(shared: SharedTotals, accept: str = "") -> tuple[bytes, str]:
    """What a reader gets, and its media type: OpenMetrics where `accept` asks for it, else Prometheus' text."""
    from prometheus_client import CollectorRegistry
    from prometheus_client.exposition import choose_encoder

    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collector(shared))
    encoder, kind = choose_encoder(accept)
    encode: Callable[[CollectorRegistry], bytes] = encoder
    return encode(registry), kind


class _Collector:
    """What prometheus_client asks for metrics."""

    def __init__(self, shared: SharedTotals) -> None:
        self._shared = shared

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterator[Metric]:
        if self._shared.is_late:
            yield from _always(self._shared)
            return
        with self._shared.reading() as totals:
            families = [*_counters(totals), *_gauges(totals, self._shared)]
        yield from families


def _counters(totals: Totals) -> Iterator[Metric]:
    from prometheus_client.core import CounterMetricFamily

    def family(name: str, help_text: str, labels: tuple[str, ...], rows: Rows) -> Metric:
        made = CounterMetricFamily(name, help_text, labels=labels)
        for key, value in sorted(rows.items()):
            made.add_metric(list(key), value)
        return made

    places = {(woken.process, woken.thread, woken.function): place for woken, place in totals.rows.places.items()}
    places[(REST.process, REST.thread, REST.function)] = totals.rows.rest
    row_labels = ("process", "thread", "function")
    yield family("powerprof_idle_seconds", "Time in an idle state.", ("cpu", "state"), totals.idle_s)
    exits = {(name,): float(count) for name, count in totals.mechanisms.items()}
    yield family("powerprof_idle_exits", "Idle exits of the host by what ended the period.", ("mechanism",), exits)
    wakeups = {key: float(place.exits_count) for key, place in places.items()}
    yield family(
        "powerprof_wakeups", "Idle exits by blamed thread; all rows together are the host.", row_labels, wakeups
    )
    running = {key: place.c0_s for key, place in places.items()}
    yield family("powerprof_c0_seconds", "CPU time in C0 by what the CPU was woken for.", row_labels, running)
    units = {(unit,): place for unit, place in totals.units.places.items()}
    units[(OTHER,)] = totals.units.rest
    unit_exits = {key: float(place.exits_count) for key, place in units.items()}
    yield family("powerprof_unit_wakeups", "Idle exits by service, container or pod.", ("unit",), unit_exits)
    unit_c0_s = {key: place.c0_s for key, place in units.items()}
    yield family("powerprof_unit_c0_seconds", "CPU time in C0 by service, container or pod.", ("unit",), unit_c0_s)
    by_domain = {(source, domain, kind): value for (source, domain, kind), value in totals.joules.items()}
    yield family("powerprof_energy_joules", "Energy by meter and domain.", ("source", "domain", "kind"), by_domain)
    host = {(kind,): value for kind, value in totals.host_joules.items()}
    yield family("powerprof_host_energy_joules", "Energy of the host: one sum of domains.", ("kind",), host)
    yield from _statement_counters(totals.statements, family)
    queries = {(name,): float(count) for name, count in totals.queries.items()}
    yield family("powerprof_server_queries", "Statements that a server answered.", ("server",), queries)
    for name, help_text, value in (
        ("powerprof_lost_events", "Idle exits whose cause was lost on the way from the kernel.", totals.lost_count),
        ("powerprof_lost_stacks", "Stacks that did not fit into their buffer.", totals.lost_stacks_count),
        ("powerprof_measured_seconds", "Time that intervals covered.", totals.measured_s),
        ("powerprof_intervals", "Intervals that were measured.", totals.intervals_count),
        (
            "powerprof_suspended_seconds",
            "Time in which the host was suspended, in no other figure.",
            totals.suspended_s,
        ),
        ("powerprof_tool_cpu_seconds", "CPU time of powerprof itself.", totals.own_cpu_s),
        (
            "powerprof_tool_bpf_seconds",
            "CPU time of powerprof's BPF programs, estimated after a few intervals.",
            totals.own_bpf_s,
        ),
        ("powerprof_tool_wakeups", "Idle exits that powerprof itself caused.", totals.own_wakeups_count),
    ):
        yield family(name, help_text, (), {(): float(value)})


def _statement_counters(found: StatementTotals | None, family: Callable[..., Metric]) -> Iterator[Metric]:
    """Of the server whose statements are served. What was not measured in the last interval has no series then."""
    if found is None or not found.server:
        return
    measured = {(found.server, method): seconds for method, seconds in found.measured_s.items()}
    yield family(
        "powerprof_statements_measured_seconds", "Time in which statements were measured.", _BY_METHOD, measured
    )
    if not found.up:
        return
    places = {(found.server, id): place for id, place in found.places().items()}
    cpu_s = {key: place.c0_s for key, place in places.items()}
    yield family(
        "powerprof_statement_cpu_seconds", "CPU time by statement; all rows together are the server.", _STATEMENT, cpu_s
    )
    if found.has_wakeups:
        wakeups = {key: float(place.exits_count) for key, place in places.items()}
        yield family("powerprof_statement_wakeups", "Idle periods that a statement ended.", _STATEMENT, wakeups)
    if found.kind is not None:
        joules = {(*key, found.kind): place.joules for key, place in places.items()}
        yield family(
            "powerprof_statement_joules", "Energy above the idle floor by statement.", (*_STATEMENT, "kind"), joules
        )


def _statement_gauges(found: StatementTotals | None, family: Callable[..., Metric]) -> Iterator[Metric]:
    if found is None or not found.server:
        return
    up = {(found.server,): float(found.up)}
    yield family("powerprof_statements_up", "Whether statements were measured.", ("server",), up)
    if found.up:
        texts = {id: found.texts.get(id) for id in found.rows.places}
        info = {(found.server, id, row.schema, row.text): 1.0 for id, row in texts.items() if row is not None}
        labels = (*_STATEMENT, "schema", "text")
        yield family("powerprof_statement_info", "The text of a statement, without values, cut.", labels, info)


def _gauges(totals: Totals, shared: SharedTotals) -> Iterator[Metric]:
    from prometheus_client.core import GaugeMetricFamily

    def family(name: str, help_text: str, labels: tuple[str, ...], rows: Rows) -> Metric:
        made = GaugeMetricFamily(name, help_text, labels=labels)
        for key, value in sorted(rows.items()):
            made.add_metric(list(key), value)
        return made

    servers = totals.servers
    up = {(server.name, server.account, server.program): float(server.up) for server in servers}
    yield family("powerprof_server_up", "Whether the server answered.", ("server", *_WHOSE), up)
    roles = {(server.name, server.role): 1.0 for server in servers if server.up}
    yield family("powerprof_server_role", "Its part in replication.", ("server", "role"), roles)
    healthy = {
        (server.name,): float(server.replication_healthy)
        for server in servers
        if server.replication_healthy is not None
    }
    yield family(
        "powerprof_replication_healthy", "Whether a replica's threads run without errors.", ("server",), healthy
    )
    lag = {(server.name,): server.lag_s for server in servers if server.lag_s is not None}
    yield family("powerprof_replication_lag_seconds", "How far a replica is behind.", ("server",), lag)
    findings = {
        (finding.rule, finding.severity, finding.server, finding.account, finding.program): 1.0
        for finding in totals.findings
    }
    labels = ("rule", "severity", "server", *_WHOSE)
    yield family("powerprof_finding", "1 while a rule of `diagnose` holds.", labels, findings)
    yield from _statement_gauges(totals.statements, family)
    meters = {key: float(value) for key, value in totals.meters.items()}
    yield family("powerprof_meter_up", "Whether a meter gave a figure.", ("source", "domain"), meters)
    single: list[tuple[str, str, float | None]] = [
        ("powerprof_balance_error_ratio", "How far the trace and the kernel's count are apart.", totals.balance_error),
        ("powerprof_stacks_complete_ratio", "Of stacks, those that reach the start.", _ratio(totals)),
        ("powerprof_tool_resident_bytes", "Memory of powerprof itself.", totals.own_memory_bytes),
        ("powerprof_online_cpus", "CPUs that were measured.", totals.cpus),
    ]
    for name, help_text, value in single:
        yield family(name, help_text, (), {} if value is None else {(): float(value)})
    yield from _always(shared)


def _always(shared: SharedTotals) -> Iterator[Metric]:
    """What is true however long ago the last interval ended."""
    from prometheus_client.core import GaugeMetricFamily

    ended = GaugeMetricFamily("powerprof_last_interval_timestamp_seconds", "When the last interval ended.")
    if shared.last_at_s:
        ended.add_metric([], shared.last_at_s)
    yield ended
    built = GaugeMetricFamily("powerprof_build_info", "What runs here.", labels=tuple(shared.built))
    built.add_metric(list(shared.built.values()), 1.0)
    yield built


def _ratio(totals: Totals) -> float | None:
    percent = totals.stacks_complete_percent
    return None if percent is None else percent / 100.0
