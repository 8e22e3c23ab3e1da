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
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any

from powerprof.live.intervals import OTHER, REST, LiveInterval
from powerprof.live.totals import StatementTotals, Totals

if TYPE_CHECKING:
    from prometheus_client.core import Metric


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


def render(shared: SharedTotals, accept: str = "") -> tuple[bytes, str]:
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
