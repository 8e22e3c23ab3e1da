# SPDX-License-Identifier: Apache-2.0
"""What metrics and units are called in reports, and the prefix with which a small figure is readable."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from math import floor, log10

from powerprof import text

# What a metric is called in a sentence or on a page, and on a terminal, where its unit stands in its name.
_METRICS = {
    "c0_ms_per_query_server": ("C0 per query, server", "C0 ms/query, server"),
    "c0_ms_per_query": ("C0 per query, all", "C0 ms/query, host"),
    "c0_ms_per_query_net": ("C0 per query, net of idle", "  net of idle"),
    "c0_ms_per_query_client": ("C0 per query, client", "C0 ms/query, client"),
    "joules_per_query": ("energy per query", "joules/query"),
    "joules_per_query_net": ("energy per query, net of idle", "  net of idle"),
    "energy_to_solution_joules": ("energy to solution", "joules to solution"),
    "time_to_solution_s": ("time to solution", "seconds to solution"),
    "wakeups_per_query": ("wake-ups per query", "wake-ups/query"),
    "latency_p50_ms": ("latency, median", "p50 latency, ms"),
    "latency_p95_ms": ("latency, p95", "p95 latency, ms"),
    "latency_p99_ms": ("latency, p99", "p99 latency, ms"),
    "edp_joule_seconds": ("energy-delay product", "EDP, J·s/query"),
    "rows_examined_per_query": ("rows examined per query", "rows read/query"),
    "minor_faults_per_query": ("minor faults per query", "page faults/query"),
    "thread_wakings_hz": ("wake-ups of the thread", "thread's wake-ups/s"),
    "thread_wakings_traced_hz": ("wake-ups of the thread, by the trace", "  by the trace"),
    "thread_idle_exits_hz": ("idle exits by the thread", "  its idle exits/s"),
    "target_wakings_hz": ("wake-ups of the process", "process's wake-ups/s"),
    "target_idle_exits_hz": ("idle exits by the process", "  its idle exits/s"),
    "host_idle_exits_hz": ("idle exits of the host", "host's idle exits/s"),
    "statements_hz": ("statements of the server", "statements/s"),
    "commit_p50_ms": ("statements that commit, median", "p50 commits, ms"),
    "commit_p95_ms": ("statements that commit, p95", "p95 commits, ms"),
    "replica_lag_s": ("seconds behind the source", "seconds behind"),
    "replica_backlog_bytes": ("received and not applied", "backlog, bytes"),
    "replica_delay_ms": ("delay of the replica", "replica's delay, ms"),
    "server_wakings_hz": ("wakings of the server's threads", "its wakings/s"),
    "server_exits_hz": ("idle exits by the server's threads", "its idle exits/s"),
    "server_cpu_ms_per_s": ("CPU time of the server", "its CPU, ms/s"),
    "write_bytes_hz": ("written by the server", "written, B/s"),
    "write_bytes_peak_hz": ("written by the server, slice with most", "  most in a slice"),
    "wakeups_peak_hz": ("wake-ups from idle, slice with most", "wake-ups/s, most"),
    "user_ms_per_query": ("user time per query", "user ms/query"),
    "system_ms_per_query": ("kernel time per query", "kernel ms/query"),
    "irq_ms_per_query": ("interrupt time per query", "interrupts ms/query"),
    "context_switches_per_query": ("context switches per query", "switches/query"),
    "page_faults_per_query": ("page faults per query, whole host", "faults/query, host"),
    "major_faults_per_query": ("major faults per query, whole host", "major faults/query"),
    "network_packets_per_query": ("packets per query", "packets/query"),
    "disk_reads_per_query": ("disk reads per query", "disk reads/query"),
    "disk_writes_per_query": ("disk writes per query", "disk writes/query"),
    "disk_read_bytes_per_query": ("bytes read from disk per query", "disk B read/query"),
    "disk_write_bytes_per_query": ("bytes written to disk per query", "disk B written/query"),
    "disk_busy_percent": ("disk busy", "disk busy, %"),
    "waiting_tasks": ("tasks that waited for a CPU", "tasks waiting"),
    "migrations_per_query": ("moves to another CPU per query", "migrations/query"),
    "migrations_hz": ("moves of a task to another CPU", "migrations/s"),
    "busy_mhz": ("frequency while running", "MHz while running"),
    "busiest_cpu_percent": ("busiest CPU", "busiest CPU, %"),
    "idlest_cpu_percent": ("least busy CPU", "least busy CPU, %"),
    "cpu_pressure_percent": ("time in which a task waited for a CPU", "CPU pressure, %"),
    "io_pressure_percent": ("time in which a task waited for I/O", "I/O pressure, %"),
    "joules_per_execution": ("energy per execution", "joules/execution"),
    "joules_per_execution_net": ("energy per execution, net of idle", "  net of idle"),
    "cpu_s_per_execution": ("CPU time per execution", "CPU s/execution"),
    "c0_s_per_execution": ("C0 per execution, all", "C0 s/execution, host"),
    "time_s_per_execution": ("time per execution", "seconds/execution"),
    "wakeups_per_execution": ("wake-ups per execution", "wake-ups/execution"),
    "round_trips_per_query": ("round trips per query", "round trips/query"),
    "queries_hz": ("queries per second", "queries/s"),
    "c0_percent": ("C0 (running)", "C0, %"),
    "idle_percent": ("idle", "idle, %"),
    "wakeups_hz": ("wake-ups from idle", "wake-ups/s"),
    "watts": ("power", "watts"),
    "storm_raged_percent": ("storm active", "storm active, % of time"),
    "storm_counter_hz": ("storm counter hz", "storm's counter/s"),
}
_OF_SERVERS = {
    "c0_percent": "C0, %",
    "watts": "watts",
    "connections_hz": "connections/s",
    "commits_hz": "commits/s",
    "relay_log_bytes_hz": "relay logs, B/s",
}
# Of one device, which stands behind the colon: in a sentence, and on a terminal.
_OF_DEVICES = {
    "disk_service_ms": ("service time of {}", "{}: service, ms"),
    "disk_read_ms": ("time of a read on {}", "  {}: a read, ms"),
    "disk_write_ms": ("time of a write on {}", "  {}: a write, ms"),
    "disk_queue_count": ("requests outstanding on {}", "  {}: queue"),
    "disk_busy_percent": ("{} busy", "  {}: busy, %"),
    "pstate_percent": ("P-state {}", "P-state {}, %"),
    "interrupts_per_query": ("interrupts of {} per query", "{} interrupts/query"),
    "interrupts_hz": ("interrupts of {}", "{} interrupts/s"),
}
_UNIT_SUFFIX = re.compile(r"_(s|ms|us|ns|hz|percent|joules|watts|bytes|count|mhz)$")
_UNITS = {"us": "µs", "hz": "/s", "percent": "%", "joules": "J", "watts": "W", "count": "", "mhz": "MHz"}
_PREFIXED = {"J", "s", "J·s", "W"}
# No meter or clock resolves less in any unit of a report: what is left of a difference of equal figures.
_NOTHING = 1e-12


def metric(name: str) -> str:
    """A metric's name in words; an unknown one is its own."""
    if name in _METRICS:
        return _METRICS[name][0]
    what, colon, of = name.partition(":")
    if what == "residency_percent" and colon:
        return f"residency in {of}"
    if what in _OF_DEVICES:
        return _OF_DEVICES[what][0].format(of)
    if what == "watts" and colon:
        return f"{of.replace(':', ' ')} watts"
    return key(name)[0]


def short(name: str) -> str:
    """A metric's name on a terminal; an unknown one is its own."""
    if name in _METRICS:
        return _METRICS[name][1]
    what, colon, whose = name.partition(":")
    if what == "residency_percent" and colon:
        return f"{whose}, %"
    if what in _OF_DEVICES and colon:
        return _OF_DEVICES[what][1].format(whose)
    return f"  {whose}: {_OF_SERVERS.get(what, what)}" if colon else name


def key(name: str) -> tuple[str, str]:
    """A JSON key as words and the unit that its suffix names: `cpu_percent` → ("cpu", "%")."""
    suffix = _UNIT_SUFFIX.search(name)
    if suffix is None:
        return name.replace("_", " "), ""
    return name[: suffix.start()].replace("_", " "), _UNITS.get(suffix[1], suffix[1])


def significant(value: float | None) -> str:
    """Three significant digits, whole numbers from 1,000 on."""
    if value is None:
        return text.UNKNOWN
    if abs(value) < _NOTHING:
        return "0"
    if abs(value) < 0.0001:
        return f"{value:.2e}".replace("-", "−")
    places = 0 if abs(value) >= 1000 else max(0, 3 - len(str(int(abs(value)))) + (1 if abs(value) < 1 else 0))
    return text.number(value, 4 if 0 < abs(value) < 0.1 else places)


def prefix(unit: str, largest: float) -> tuple[str, float]:
    """The unit with m or µ where the figures are small, and what to multiply them by."""
    if unit not in _PREFIXED or not 0 < abs(largest) < 0.1:
        return ("" if unit == "1" else unit), 1.0
    return (f"m{unit}", 1e3) if abs(largest) >= 1e-4 else (f"µ{unit}", 1e6)


def digits(largest: float, significant: int = 3) -> int:
    """Decimals that show that many significant digits of the largest figure of a row, at most six."""
    if not largest:
        return 0 if significant < 3 else 2
    return min(6, max(0, significant - 1 - floor(log10(abs(largest)))))


@dataclass(frozen=True)
class Shown:
    """How the figures of one row are shown: in this unit, times `factor`, with so many decimals."""

    unit: str
    factor: float
    decimals: int


def shown(unit: str, values: Iterable[float | None]) -> Shown:
    """Three significant digits of the largest figure of a row, and two of the smallest as far as four decimals go."""
    known = [abs(value) for value in values if value]
    largest = max(known, default=0.0)
    name, factor = prefix(unit, largest)
    if largest * factor >= 1000:
        return Shown(name, factor, 0)
    least = digits(min(known, default=0.0) * factor, 2)
    return Shown(name, factor, max(digits(largest * factor), min(4, least)))
