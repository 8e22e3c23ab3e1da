# SPDX-License-Identifier: Apache-2.0
"""Counters over all intervals, and their text for Prometheus and OpenMetrics.

Only this module imports prometheus_client. Names and labels are a contract (docs/reference/metrics.md). They have
no exemplars and no timestamps. A series that ends is missing in the next answer, so that a store marks it stale.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from functools import partial
from math import exp, log
from typing import TYPE_CHECKING, Any, Generic, TypeVar, get_args

import msgspec
from msgspec.structs import astuple, replace

from powerprof.live.intervals import (
    OTHER,
    REST,
    UNTRACED,
    LiveFinding,
    LiveInterval,
    RowKey,
    ServedStatement,
    ServedStatements,
    ServerState,
    merge_rows,
    sum_units,
)
from powerprof.measure.idle_counters import StateInfo
from powerprof.model.records import Kind, Mechanism
from powerprof.system.cgroups import UnitLabels, label_unit

if TYPE_CHECKING:
    from prometheus_client.core import Metric

K = TypeVar("K")
# Idle exits and seconds in C0.
Cost = tuple[int, float]
# Label values in the order of the labels.
Rows = Mapping[Any, float]
TOP = 20
STALE_S = 300.0
# Remembered keys per place. The bound keeps names that never repeat from filling the memory.
_REMEMBERED_PER_PLACE = 20
_HALF_LIFE_S = 60.0
# The cost ratio at which a key takes over a place. Series that come and go are expensive for a store.
_TAKEOVER_RATIO = 1.5
_IDLE_COUNTERS = {
    "entries": "Entries of an idle state.",
    "above": "Entries whose idle period was too short for the state.",
    "below": "Entries whose idle period was long enough for a deeper state.",
    "rejected": "Entries that the hardware or the driver rejected.",
}
_ROW_LABELS = ("process", "thread", "function")
_OWNER_LABELS = ("account", "program")
_PLACE_LABELS = ("unit", "namespace", "pod", "container")
_SERVER_LABELS = ("server", *_PLACE_LABELS)
_STATEMENT_LABELS = ("server", "statement")


class RankedCounters(msgspec.Struct):
    """The counters of a series, and their values at the last reading. `is_read`: a reader has seen the series at 0."""

    exits_count: int = 0
    c0_s: float = 0.0
    is_read: bool = False
    read_count: int = 0
    read_c0_s: float = 0.0
    joules: float = 0.0
    read_joules: float = 0.0


class _RecentCost(msgspec.Struct):
    """The cost of a key, fading with time, and the seconds since its last cost."""

    cost: float = 0.0
    idle_for_s: float = 0.0


class Ranking(Generic[K], msgspec.Struct):
    """Counters for the most expensive keys, and one sum of all other costs.

    A series begins at 0 and counts only after a reader has seen the 0: a store ignores the first value of a series.
    Before that, and after a key has lost its place, its costs count in the rest. So the increase of all series is the
    increase of the host, whatever keys come and go and however seldom they are read.

    Attributes:
        top: The number of places.
        stale_s: A key without costs for this time loses its place.
        places: The counters by key.
        rest: The sum of all other costs.
    """

    top: int = TOP
    stale_s: float = STALE_S
    places: dict[K, RankedCounters] = msgspec.field(default_factory=dict)
    rest: RankedCounters = msgspec.field(default_factory=RankedCounters)
    _recent: dict[K, _RecentCost] = msgspec.field(default_factory=dict)
    # Series that ended since the last reading. One that begins again before the next reading continues.
    _ended: dict[K, RankedCounters] = msgspec.field(default_factory=dict)

    def add(
        self,
        window_s: float,
        costs: Mapping[K, Cost],
        exits_count: int,
        c0_s: float,
        energy: Mapping[K, float] | None = None,
        joules: float = 0.0,
    ) -> None:
        """Add an interval.

        Args:
            window_s: Its length.
            costs: The idle exits and the running time of each key.
            exits_count: Idle exits in total.
            c0_s: Running time in total.
            energy: The joules of each key, if known.
            joules: Joules in total.
        """
        self._fade(window_s, costs)
        counted_exits, counted_c0_s, counted_joules = 0, 0.0, 0.0
        for key, cost in costs.items():
            place = self.places.get(key)
            if place is not None and place.is_read:
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
        self._assign_places()

    def mark_read(self) -> None:
        """Record that a reader has seen every series. New series count from here."""
        self._ended.clear()
        for place in self.places.values():
            place.is_read = True
            place.read_count, place.read_c0_s = place.exits_count, place.c0_s
            place.read_joules = place.joules

    def _fade(self, window_s: float, costs: Mapping[K, Cost]) -> None:
        """Fade the costs, add the new ones, and drop the stale keys."""
        fade = exp(-log(2.0) * window_s / _HALF_LIFE_S)
        exits = sum(cost[0] for cost in costs.values()) or 1
        c0_s = sum(cost[1] for cost in costs.values()) or 1.0
        for recent in self._recent.values():
            recent.cost *= fade
            recent.idle_for_s += window_s
        for key, cost in costs.items():
            recent = self._recent.setdefault(key, _RecentCost())
            recent.idle_for_s = 0.0
            # Running time and wake-ups both cost energy: each share is half of the score.
            recent.cost += (1.0 - fade) * (cost[0] / exits + cost[1] / c0_s) / 2.0
        for key in [key for key, recent in self._recent.items() if recent.idle_for_s >= self.stale_s]:
            del self._recent[key]
            self._end(key)

    def _end(self, key: K) -> None:
        """End a series. Its increase since the last reading moves to the rest."""
        place = self.places.pop(key, None)
        if place is not None:
            self.rest.exits_count += place.exits_count - place.read_count
            self.rest.c0_s += place.c0_s - place.read_c0_s
            self.rest.joules += place.joules - place.read_joules
            if place.is_read:
                self._ended[key] = replace(
                    place, exits_count=place.read_count, c0_s=place.read_c0_s, joules=place.read_joules
                )

    def _begin(self, key: K) -> None:
        self.places[key] = self._ended.pop(key, RankedCounters())

    def _order(self, key: K) -> tuple[float, Any]:
        return -self._recent[key].cost, key

    def _assign_places(self) -> None:
        waiting = sorted((key for key in self._recent if key not in self.places), key=self._order)
        for key in waiting:
            if len(self.places) < self.top:
                self._begin(key)
                continue
            cheapest = min(self.places, key=lambda place: self._recent[place].cost, default=None)
            if cheapest is None or self._recent[key].cost <= _TAKEOVER_RATIO * self._recent[cheapest].cost:
                break
            self._end(cheapest)
            self._begin(key)
        while len(self.places) > max(self.top, 0):
            # The number of places has become smaller.
            self._end(min(self.places, key=lambda place: self._recent[place].cost))
        unplaced = [key for key in waiting if key not in self.places]
        for key in unplaced[_REMEMBERED_PER_PLACE * max(1, self.top) :]:
            del self._recent[key]


class ServerStatements(msgspec.Struct):
    """The counters of one server's statements over all intervals.

    The rest has all other work of the server: cheaper statements, background and connections.

    Attributes:
        rows: The counters by statement id.
        texts: The newest statements by id, with their texts.
        measured_s: Measured seconds by method.
        server: The label of the server.
        up: Whether the last interval was measured.
        has_wakeups: Whether the last interval has wake-ups; samples have none.
        kind: Whether the joules are measured or estimated.
    """

    rows: Ranking[str] = msgspec.field(default_factory=Ranking)
    texts: dict[str, ServedStatement] = msgspec.field(default_factory=dict)
    measured_s: dict[str, float] = msgspec.field(default_factory=lambda: {"probes": 0.0, "samples": 0.0})
    server: str = ""
    up: bool = False
    has_wakeups: bool = False
    kind: Kind | None = None

    def add(self, interval: ServedStatements) -> None:
        """Add an interval."""
        self.server = self.server or interval.server
        self.up = interval.method is not None
        if interval.method is None:
            return
        self.measured_s[interval.method] += interval.window_s
        self.has_wakeups = interval.wakeups_count is not None
        # Measured and estimated joules are never summed: the first kind is counted.
        self.kind = self.kind or interval.kind
        has_energy = self.kind is not None and interval.kind == self.kind
        costs: dict[str, Cost] = {}
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
            energy if has_energy else None,
            max(interval.joules or 0.0, 0.0) if has_energy else 0.0,
        )
        if len(self.texts) > _REMEMBERED_PER_PLACE * max(1, self.rows.top):
            self.texts = {id: row for id, row in self.texts.items() if id in self.rows.places or id in costs}

    def mark_read(self) -> None:
        """Record that a reader has seen every series. A server that is away has none."""
        if self.up:
            self.rows.mark_read()

    def places(self) -> dict[str, RankedCounters]:
        """Return the counters by statement id, with the rest as `other`."""
        return {**self.rows.places, OTHER: self.rows.rest}


class StatementTotals(msgspec.Struct):
    """The counters of the statements of all served servers.

    Attributes:
        top: The number of statements with series of all servers together.
        stale_s: A statement without costs for this time loses its series.
        servers: The counters by the label of the server.
    """

    top: int = TOP
    stale_s: float = STALE_S
    servers: dict[str, ServerStatements] = msgspec.field(default_factory=dict)

    def add(self, served: Sequence[ServedStatements]) -> None:
        """Add an interval. A server that is no longer served loses its series."""
        names = {interval.server for interval in served if interval.server}
        self.servers = {name: totals for name, totals in self.servers.items() if name in names}
        share = max(1, self.top // max(1, len(names)))
        for interval in served:
            if interval.server not in self.servers and len(self.servers) < max(1, self.top):
                self.servers[interval.server] = ServerStatements(Ranking(stale_s=self.stale_s))
            if (totals := self.servers.get(interval.server)) is not None:
                totals.rows.top = share
                totals.add(interval)

    def mark_read(self) -> None:
        """Record that a reader has seen every series."""
        for totals in self.servers.values():
            totals.mark_read()


class Totals(msgspec.Struct):
    """The counters of the host over all intervals, and the gauges of the last interval."""

    rows: Ranking[RowKey] = msgspec.field(default_factory=Ranking)
    units: Ranking[str] = msgspec.field(default_factory=Ranking)
    statements: StatementTotals = msgspec.field(default_factory=StatementTotals)
    per_cpu: bool = True
    idle_s: dict[tuple[str, str], float] = msgspec.field(default_factory=dict)
    # Counter of the kernel → CPU and state → count; without counters that the kernel lacks.
    idle_counts: dict[str, dict[tuple[str, str], float]] = msgspec.field(default_factory=dict)
    idle_states: tuple[StateInfo, ...] = ()
    # All mechanisms exist from the start: a store ignores the first value of a series.
    mechanisms: dict[str, int] = msgspec.field(
        default_factory=lambda: dict.fromkeys((*get_args(Mechanism), UNTRACED), 0)
    )
    joules: dict[tuple[str, str, str], float] = msgspec.field(default_factory=dict)
    host_joules: dict[str, float] = msgspec.field(default_factory=dict)
    is_host_known: bool = False
    unit_kind: Kind | None = None
    are_units_known: bool = False
    idle_joules: float = 0.0
    meters: dict[tuple[str, str], bool] = msgspec.field(default_factory=dict)
    queries: dict[tuple[str, ...], int] = msgspec.field(default_factory=dict)
    servers: tuple[ServerState, ...] = ()
    findings: tuple[LiveFinding, ...] = ()
    lost_count: int = 0
    lost_stacks_count: int = 0
    intervals_count: int = 0
    measured_s: float = 0.0
    suspended_s: float = 0.0
    own_cpu_s: float = 0.0
    own_bpf_s: float = 0.0
    own_wakeups_count: int = 0
    own_memory_bytes: int | None = None
    balance_error: float | None = None
    traced_percent: float = 100.0
    max_cost_percent: float | None = None
    stacks_complete_percent: float | None = None
    cpus: int = 0

    def add(self, interval: LiveInterval) -> None:
        """Add an interval."""
        self.intervals_count += 1
        self.measured_s += interval.window_s
        self.suspended_s += interval.suspended_s
        self.lost_count += interval.lost_count
        self.lost_stacks_count += interval.lost_stacks_count
        self.own_cpu_s += interval.own.cpu_s
        self.own_bpf_s += interval.own.bpf_s or 0.0
        self.own_wakeups_count += interval.own.wakeups_count
        self.own_memory_bytes = interval.own.memory_bytes
        self.balance_error = interval.balance_error
        self.traced_percent, self.max_cost_percent = interval.traced_percent, interval.max_cost_percent
        self.stacks_complete_percent = interval.stacks_complete_percent
        self.cpus = interval.cpus
        for (cpu, state), seconds in interval.idle_s.items():
            key = (str(cpu) if self.per_cpu else "all", state)
            self.idle_s[key] = self.idle_s.get(key, 0.0) + max(0.0, seconds)
        for (cpu, state), counts in interval.idle_counts.items():
            key = (str(cpu) if self.per_cpu else "all", state)
            for counter, count in counts._asdict().items():
                if count is not None:
                    by_state = self.idle_counts.setdefault(counter, {})
                    by_state[key] = by_state.get(key, 0.0) + max(0, count)
        self.idle_states = interval.idle_states or self.idle_states
        for name, count in interval.mechanisms.items():
            self.mechanisms[name] = self.mechanisms.get(name, 0) + count
        self._add_energy(interval)
        self.servers, self.findings = interval.servers, interval.findings
        # The counter of a server that is gone ends.
        self.queries = {
            server_key: self.queries.get(server_key, 0) + (server.queries_count or 0)
            for server in interval.servers
            if (server_key := _key_of(server)) in self.queries or server.role
        }
        self._add_rows(interval)
        first = () if interval.statements is None else (interval.statements,)
        self.statements.add((*first, *interval.other_statements))

    def mark_read(self) -> None:
        """Record that a reader has seen every series. New series count from here."""
        self.rows.mark_read()
        self.units.mark_read()
        self.statements.mark_read()

    def _add_energy(self, interval: LiveInterval) -> None:
        self.meters = {}
        if interval.host_joules is not None:
            kind = interval.host_kind
            self.host_joules[kind] = self.host_joules.get(kind, 0.0) + max(0.0, interval.host_joules)
        self.is_host_known = interval.host_joules is not None
        for reading in interval.energy:
            key, joules = (reading.source, reading.domain, reading.kind), max(0.0, reading.joules or 0.0)
            self.joules[key] = self.joules.get(key, 0.0) + joules
            self.meters[(reading.source, reading.domain)] = reading.joules is not None

    def _add_rows(self, interval: LiveInterval) -> None:
        rows = {row.key: (row.exits_count, row.c0_s) for row in merge_rows(interval.rows)}
        self.rows.add(interval.window_s, rows, interval.exits_count, interval.c0_s)
        self._add_units(interval)

    def _add_units(self, interval: LiveInterval) -> None:
        # Measured and estimated joules are never summed: the first kind is counted.
        if interval.unit_joules is not None:
            self.unit_kind = self.unit_kind or interval.host_kind
        is_known = interval.unit_joules is not None and interval.host_kind == self.unit_kind
        self.are_units_known = is_known and interval.host_joules is not None and interval.idle_joules is not None
        energy, active = None, 0.0
        if self.are_units_known:
            idle = min(max(interval.idle_joules or 0.0, 0.0), interval.host_joules or 0.0)
            self.idle_joules += idle
            energy, active = interval.unit_joules, (interval.host_joules or 0.0) - idle
        units = sum_units(interval.rows)
        self.units.add(interval.window_s, units, interval.exits_count, interval.c0_s, energy, active)


class SharedTotals(msgspec.Struct):
    """Totals that one thread adds to and other threads read.

    A stopped measuring thread must not freeze the figures of this host, so old figures are not shown.

    Attributes:
        totals: The totals.
        build: The labels of `powerprof_build_info`.
        deadline_s: The age at which figures are no longer shown; None for never.
        last_at_s: The time at which the last interval ended, in seconds since the epoch.
        begun_s: The monotonic time from which the first interval is awaited.
    """

    totals: Totals
    build: Mapping[str, str]
    deadline_s: float | None = None
    last_at_s: float = 0.0
    begun_s: float = msgspec.field(default_factory=time.monotonic)
    _added_s: float | None = None
    _lock: threading.Lock = msgspec.field(default_factory=threading.Lock)

    def add(self, interval: LiveInterval) -> None:
        """Add an interval."""
        with self._lock:
            self.totals.add(interval)
            self._added_s = time.monotonic()
            self.last_at_s = datetime.fromisoformat(interval.ended_at).timestamp()

    @property
    def is_late(self) -> bool:
        """Return whether the present interval has passed its deadline."""
        if self.deadline_s is None or self._added_s is None:
            return False
        return time.monotonic() - self._added_s > self.deadline_s

    def has_stopped(self) -> bool:
        """Return whether no interval has ended before the deadline, the first one included."""
        last_s = self.begun_s if self._added_s is None else self._added_s
        return self.deadline_s is not None and time.monotonic() - last_s > self.deadline_s

    @contextmanager
    def reading(self) -> Iterator[Totals]:
        """Lock the totals for a reader, and mark them as read at the end."""
        with self._lock:
            yield self.totals
            self.totals.mark_read()


def render_metrics(shared: SharedTotals, accept: str = "") -> tuple[bytes, str]:
    """Return the page and its media type: OpenMetrics if `accept` requests it, otherwise Prometheus' text."""
    from prometheus_client import CollectorRegistry
    from prometheus_client.exposition import choose_encoder

    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collector(shared))
    encoder, media_type = choose_encoder(accept)
    encode: Callable[[CollectorRegistry], bytes] = encoder
    return encode(registry), media_type


class _Collector:
    """A collector for prometheus_client."""

    def __init__(self, shared: SharedTotals) -> None:
        self._shared = shared

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterator[Metric]:
        families: list[Metric] = []
        if self._shared.is_late:
            last_at_s = self._shared.last_at_s
        else:
            with self._shared.reading() as totals:
                families += [*_list_counters(totals), *_list_gauges(totals)]
                last_at_s = self._shared.last_at_s
        yield from families
        ended = {(): last_at_s} if last_at_s else {}
        yield _gauge("powerprof_last_interval_timestamp_seconds", "End of the last interval.", (), ended)
        build = self._shared.build
        yield _gauge("powerprof_build_info", "Version of powerprof.", tuple(build), {tuple(build.values()): 1.0})


def _build_counter(name: str, help_text: str, labels: tuple[str, ...], rows: Rows, *, is_gauge: bool = False) -> Metric:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    family = (GaugeMetricFamily if is_gauge else CounterMetricFamily)(name, help_text, labels=labels)
    for key, value in sorted(rows.items()):
        family.add_metric(list(key), value)
    return family


_gauge = partial(_build_counter, is_gauge=True)


def _key_of(server: ServerState) -> tuple[str, ...]:
    """Return the values of `_SERVER_LABELS`."""
    return (server.name, *astuple(server.place))


def _label(value: int | None) -> str:
    return "unknown" if value is None else str(value)


def _list_counters(totals: Totals) -> Iterator[Metric]:
    places = {(key.process, key.thread, key.function): place for key, place in totals.rows.places.items()}
    places[(REST.process, REST.thread, REST.function)] = totals.rows.rest
    units: dict[tuple[str, ...], RankedCounters] = {astuple(UnitLabels(OTHER)): totals.units.rest}
    for unit, unit_place in sorted(totals.units.places.items()):
        # Containers of two runtimes may have one name. The second one stays a unit.
        labels = astuple(label_unit(unit))
        units[astuple(UnitLabels(unit)) if labels in units else labels] = unit_place
    yield _build_counter("powerprof_idle_seconds", "Time in an idle state.", ("cpu", "state"), totals.idle_s)
    for counter, meaning in _IDLE_COUNTERS.items():
        if counter in totals.idle_counts:
            yield _build_counter(f"powerprof_idle_{counter}", meaning, ("cpu", "state"), totals.idle_counts[counter])
    infos: Rows = {
        (state.name, *map(_label, (state.latency_us, state.target_us, int(state.disabled)))): 1.0
        for state in totals.idle_states
    }
    info_labels = ("state", "latency_us", "target_us", "disabled")
    help_text = "Exit latency and target residency of an idle state."
    yield _gauge("powerprof_idle_state_info", help_text, info_labels, infos)
    exits = {(name,): float(count) for name, count in totals.mechanisms.items()}
    yield _build_counter("powerprof_idle_exits", "Idle exits of the host by cause.", ("mechanism",), exits)
    wakeups = {key: float(place.exits_count) for key, place in places.items()}
    yield _build_counter(
        "powerprof_wakeups", "Idle exits by blamed thread; all rows together are the host.", _ROW_LABELS, wakeups
    )
    running = {key: place.c0_s for key, place in places.items()}
    yield _build_counter("powerprof_c0_seconds", "CPU time in C0 by cause of the wake-up.", _ROW_LABELS, running)
    unit_exits = {key: float(place.exits_count) for key, place in units.items()}
    help_text = "Idle exits by service, container or pod."
    yield _build_counter("powerprof_unit_wakeups", help_text, _PLACE_LABELS, unit_exits)
    unit_c0_s = {key: place.c0_s for key, place in units.items()}
    yield _build_counter(
        "powerprof_unit_c0_seconds", "CPU time in C0 by service, container or pod.", _PLACE_LABELS, unit_c0_s
    )
    if totals.unit_kind is not None and totals.are_units_known:
        joules = {(*key, totals.unit_kind): place.joules for key, place in units.items()}
        joules[(*astuple(UnitLabels("idle")), totals.unit_kind)] = totals.idle_joules
        help_text = "Energy by service, container or pod, with the idle floor; all rows together are the host."
        yield _build_counter("powerprof_unit_joules", help_text, (*_PLACE_LABELS, "kind"), joules)
    energy_labels = ("source", "domain", "kind")
    yield _build_counter("powerprof_energy_joules", "Energy by meter and domain.", energy_labels, totals.joules)
    # A counter that stands still would show a host without power. While the total is unknown the series is absent.
    host = {(kind,): value for kind, value in totals.host_joules.items() if totals.is_host_known}
    yield _build_counter("powerprof_host_energy_joules", "Energy of the host: one sum of domains.", ("kind",), host)
    yield from _list_statement_counters(totals.statements.servers)
    help_text = "Statements that a server executed; transactions of PostgreSQL."
    yield _build_counter("powerprof_server_queries", help_text, _SERVER_LABELS, totals.queries)
    for name, help_text, value in (
        ("powerprof_lost_events", "Idle exits with a lost cause (full buffer).", totals.lost_count),
        ("powerprof_lost_stacks", "Stacks that did not fit into their buffer.", totals.lost_stacks_count),
        ("powerprof_measured_seconds", "Time that intervals covered.", totals.measured_s),
        ("powerprof_intervals", "Intervals that were measured.", totals.intervals_count),
        (
            "powerprof_suspended_seconds",
            "Time in which the host was suspended (not in other figures).",
            totals.suspended_s,
        ),
        ("powerprof_tool_cpu_seconds", "CPU time of powerprof itself.", totals.own_cpu_s),
        ("powerprof_tool_bpf_seconds", "CPU time in powerprof's BPF programs and to enter them.", totals.own_bpf_s),
        ("powerprof_tool_wakeups", "Idle exits that powerprof itself caused.", totals.own_wakeups_count),
    ):
        yield _build_counter(name, help_text, (), {(): float(value)})


def _list_statement_counters(servers: Mapping[str, ServerStatements]) -> Iterator[Metric]:
    """Return the counters of the served statements. Those that the last interval did not measure are left out."""
    if not servers:
        return
    yield _build_counter(
        "powerprof_statements_measured_seconds",
        "Time in which statements were measured.",
        ("server", "method"),
        {(name, method): seconds for name, served in servers.items() for method, seconds in served.measured_s.items()},
    )
    up = {name: served for name, served in servers.items() if served.up}
    places = {(name, id): place for name, served in up.items() for id, place in served.places().items()}
    if places:
        yield _build_counter(
            "powerprof_statement_cpu_seconds",
            "CPU time by statement; all rows together are the server.",
            _STATEMENT_LABELS,
            {key: place.c0_s for key, place in places.items()},
        )
    wakeups = {key: float(place.exits_count) for key, place in places.items() if up[key[0]].has_wakeups}
    if wakeups:
        help_text = "Idle periods that a statement ended."
        yield _build_counter("powerprof_statement_wakeups", help_text, _STATEMENT_LABELS, wakeups)
    joules = {(*key, kind): place.joules for key, place in places.items() if (kind := up[key[0]].kind) is not None}
    if joules:
        help_text = "Energy above the idle floor by statement."
        yield _build_counter("powerprof_statement_joules", help_text, (*_STATEMENT_LABELS, "kind"), joules)


def _list_statement_gauges(servers: Mapping[str, ServerStatements]) -> Iterator[Metric]:
    if not servers:
        return
    up = {(name,): float(served.up) for name, served in servers.items()}
    yield _gauge("powerprof_statements_up", "Whether statements were measured.", ("server",), up)
    info = {
        (name, id, row.schema, row.text): 1.0
        for name, served in servers.items()
        if served.up
        for id in served.rows.places
        if (row := served.texts.get(id)) is not None
    }
    if info:
        labels = (*_STATEMENT_LABELS, "schema", "text")
        yield _gauge("powerprof_statement_info", "Text of a statement, without values, shortened.", labels, info)


def _list_gauges(totals: Totals) -> Iterator[Metric]:
    servers = totals.servers
    up = {(*_key_of(server), server.account, server.program): float(server.up) for server in servers}
    yield _gauge("powerprof_server_up", "Whether the server answers.", (*_SERVER_LABELS, *_OWNER_LABELS), up)
    roles = {(*_key_of(server), server.role): 1.0 for server in servers if server.up and server.role}
    yield _gauge("powerprof_server_role", "Role in replication.", (*_SERVER_LABELS, "role"), roles)
    healthy = {
        _key_of(server): float(server.replication_healthy)
        for server in servers
        if server.replication_healthy is not None
    }
    help_text = "Whether a replica's threads run without errors."
    yield _gauge("powerprof_replication_healthy", help_text, _SERVER_LABELS, healthy)
    lag = {_key_of(server): server.lag_s for server in servers if server.lag_s is not None}
    yield _gauge("powerprof_replication_lag_seconds", "Delay of a replica.", _SERVER_LABELS, lag)
    findings = {
        (finding.rule, finding.severity, finding.server, *astuple(finding.place), finding.account, finding.program): 1.0
        for finding in totals.findings
    }
    labels = ("rule", "severity", *_SERVER_LABELS, *_OWNER_LABELS)
    yield _gauge("powerprof_finding", "1 while a rule of `diagnose` holds.", labels, findings)
    yield from _list_statement_gauges(totals.statements.servers)
    meters = {key: float(value) for key, value in totals.meters.items()}
    yield _gauge("powerprof_meter_up", "Whether a meter gave a figure.", ("source", "domain"), meters)
    percent, traced_ratio = totals.stacks_complete_percent, totals.traced_percent / 100.0
    complete_ratio = None if percent is None else percent / 100.0
    bound_ratio = None if totals.max_cost_percent is None else totals.max_cost_percent / 100.0
    single: list[tuple[str, str, float | None]] = [
        ("powerprof_traced_ratio", "Traced share of the interval; below 1, causes are estimates.", traced_ratio),
        ("powerprof_tool_max_cost_ratio", "Bound of the cost of tracing, of the CPU time in use.", bound_ratio),
        ("powerprof_balance_error_ratio", "Difference between the trace and the kernel's count.", totals.balance_error),
        ("powerprof_stacks_complete_ratio", "Share of complete stacks.", complete_ratio),
        ("powerprof_tool_resident_bytes", "Memory of powerprof itself.", totals.own_memory_bytes),
        ("powerprof_online_cpus", "CPUs that were measured.", totals.cpus),
    ]
    for name, help_text, value in single:
        yield _gauge(name, help_text, (), {} if value is None else {(): float(value)})
