# SPDX-License-Identifier: Apache-2.0
"""The metrics of conditions, windows and cures. Each is defined once: its unit, its words, and what is better.

The part of a name after a colon is a device, an idle state, a server or a domain of a meter: `interrupts_hz:eth0`.
"""

from __future__ import annotations

import re
from typing import Literal

import msgspec

Better = Literal["less", "more"]
# The head of a noun ends here: "the wake-ups| of the thread per second".
_HEAD_NOUN = re.compile(r" (?:per|of|by|in|on|with|to|from|read|written|examined|outstanding)\b|,")


class MetricDefinition(msgspec.Struct, frozen=True):
    """A metric and its words. In names with a colon, `{}` is the part after it.

    Attributes:
        unit: of a value; `1` for a count.
        label: in tables.
        short: on a terminal, with the unit.
        noun: in a sentence.
        times: what B does if it has N times as much as A; by default with the noun.
        percent: what B does if it has N % more or less than A; by default with the noun.
        formula: how the value is computed, if the noun does not tell.
        basis: the name behind an answer about speed or power; by default the noun.
        better: None if neither direction is better.
        is_count: a count per query or per second; its resolution is one.
    """

    name: str
    unit: str
    label: str
    short: str
    noun: str
    times: str = ""
    percent: str = ""
    formula: str = ""
    basis: str = ""
    better: Better | None = "less"
    is_count: bool = False

    @property
    def thing(self) -> str:
        """The noun without its article."""
        return self.noun.removeprefix("the ")

    @property
    def per(self) -> str:
        """What a value is per: a query, an execution, a second, or a window."""
        name = self.name.partition(":")[0]
        rates = {"_per_query": "query", "_per_execution": "execution", "_hz": "second", "_per_s": "second"}
        return next((per for mark, per in rates.items() if mark in name), "window")

    @property
    def verb(self) -> str:
        """The verb of the noun: is, or are for wake-ups and other counts."""
        return "are" if _HEAD_NOUN.split(self.noun, maxsplit=1)[0].endswith("s") else "is"

    def word_times(self, times: str) -> str:
        """Return the phrase for N times as much: `uses 3 times as much energy per query as`."""
        return self.times.format(times) if self.times else f"has {times} times the {self.thing} of"

    def word_percent(self, percent: str, more: str) -> str:
        """Return the phrase for N % more or less: `uses 9.5 % less energy per query than`."""
        return self.percent.format(percent, more) if self.percent else f"has {percent} % {more} {self.thing} than"


def _word_use(thing: str, verb: str = "uses") -> tuple[str, str]:
    """Return the phrases of something that is used."""
    return f"{verb} {{}} times as much {thing} as", f"{verb} {{}} % {{}} {thing} than"


_M = MetricDefinition
_METRICS = (
    # The work of queries.
    _M(
        *("c0_ms_per_query_server", "ms", "C0 per query, server", "C0 ms/query, server"),
        *("the server's CPU time per query", *_word_use("server CPU time per query")),
        "CPU time of the servers / queries",
    ),
    _M(
        *("c0_ms_per_query", "ms", "C0 per query, all", "C0 ms/query, host"),
        *("the CPU time per query", *_word_use("CPU time per query")),
        "CPU time of the host / queries",
    ),
    _M(
        *("c0_ms_per_query_net", "ms", "C0 per query, net of idle", "C0 ms/query, net of idle"),
        *("the CPU time per query, net of idle", *_word_use("CPU time per query, net of idle,")),
        "CPU time of the host without that of the idle baseline in an equal time / queries",
    ),
    _M(
        "c0_ms_per_query_client", "ms", "C0 per query, client", "C0 ms/query, client", "the client's CPU time per query"
    ),
    _M(
        *("joules_per_query", "J", "energy per query", "joules/query"),
        *("the energy per query", *_word_use("energy per query")),
        "energy of the host / queries",
    ),
    _M(
        *("joules_per_query_net", "J", "energy per query, net of idle", "joules/query, net of idle"),
        *("the energy per query, net of idle", *_word_use("energy per query, net of idle,")),
        "energy of the host without that of the idle baseline in an equal time / queries",
    ),
    _M("energy_to_solution_joules", "J", "energy to solution", "joules to solution", "the energy to solution"),
    _M("time_to_solution_s", "s", "time to solution", "seconds to solution", "the time to solution"),
    _M(
        *("wakeups_per_query", "1", "wake-ups per query", "wake-ups/query", "the wake-ups per query"),
        "wakes a CPU {} times as often per query as",
        "wakes a CPU {} % {} often per query than",
        is_count=True,
    ),
    _M(
        *("latency_p50_ms", "ms", "latency, median", "p50 latency, ms", "the median latency"),
        formula="from the time at which a query was due",
    ),
    _M(
        *("latency_p95_ms", "ms", "latency, p95", "p95 latency, ms", "the p95 latency"),
        formula="from the time at which a query was due",
    ),
    _M(
        *("latency_p99_ms", "ms", "latency, p99", "p99 latency, ms", "the p99 latency"),
        formula="from the time at which a query was due",
    ),
    _M(
        *("edp_joule_seconds", "J·s", "energy-delay product", "EDP, J·s/query", "the energy-delay product"),
        formula="joules per query × mean latency",
    ),
    _M(
        "rows_examined_per_query",
        "rows",
        "rows examined per query",
        "rows read/query",
        "the rows examined per query",
        is_count=True,
    ),
    _M(
        "minor_faults_per_query",
        "1",
        "minor faults per query",
        "page faults/query",
        "the minor faults per query",
        is_count=True,
    ),
    _M(
        *("round_trips_per_query", "1", "round trips per query", "round trips/query", "the round trips per query"),
        formula="commands that the server answered / queries",
        is_count=True,
    ),
    _M("queries_hz", "1/s", "queries per second", "queries/s", "the queries per second", better="more", is_count=True),
    # The work of commands.
    _M(
        *("joules_per_execution", "J", "energy per execution", "joules/execution"),
        *("the energy of an execution", *_word_use("energy")),
    ),
    _M(
        *("joules_per_execution_net", "J", "energy per execution, net of idle", "joules/execution, net of idle"),
        *("the energy of an execution, net of idle", *_word_use("energy, net of idle,")),
    ),
    _M(
        *("cpu_s_per_execution", "s", "CPU time per execution", "CPU s/execution"),
        *("the CPU time of an execution", *_word_use("CPU time")),
        "CPU time of the command's processes / executions",
    ),
    _M(
        *("c0_s_per_execution", "s", "C0 per execution, all", "C0 s/execution, host"),
        "the CPU time of the host per execution",
    ),
    _M(
        *("time_s_per_execution", "s", "time per execution", "seconds/execution", "the time of an execution"),
        "takes {} times as long as",
        "takes {} % {} time than",
    ),
    _M("wakeups_per_execution", "1", "wake-ups per execution", "wake-ups/execution", "the wake-ups per execution"),
    # The host.
    _M(
        *("c0_percent", "%", "C0 (running)", "C0, %", "the time in C0"),
        "keeps the CPUs in C0 {} times as long as",
        "keeps the CPUs in C0 for {} % {} time than",
    ),
    _M("idle_percent", "%", "idle", "idle, %", "the idle time", better="more"),
    _M("polling_percent", "%", "polling", "polling, %", "the time in polling"),
    _M(
        *("wakeups_hz", "1/s", "wake-ups from idle", "wake-ups/s", "the wake-ups per second"),
        "wakes the CPUs {} times as often as",
        "wakes the CPUs {} % {} often than",
        is_count=True,
    ),
    _M("watts", "W", "power", "watts", "the power", *_word_use("power", "draws"), basis="watts"),
    # Servers and the load.
    _M(
        *("server_wakeups_hz", "1/s", "wake-ups by the server", "wake-ups/s, server"),
        "the server's wake-ups per second",
        "has a server that wakes a CPU {} times as often as that of",
        "has a server that wakes a CPU {} % {} often than that of",
    ),
    _M(
        *("server_wakings_hz", "1/s", "wakings of the server's threads", "its wakings/s"),
        "the wakings of the server's threads per second",
    ),
    _M(
        *("server_exits_hz", "1/s", "idle exits by the server's threads", "its idle exits/s"),
        "the idle exits by the server's threads per second",
    ),
    _M("server_cpu_ms_per_s", "ms/s", "CPU time of the server", "its CPU, ms/s", "the CPU time of the server"),
    _M("write_bytes_hz", "B/s", "written by the server", "written, B/s", "the bytes written by the server per second"),
    _M(
        *("write_bytes_peak_hz", "B/s", "written by the server, slice with most", "written, B/s, most"),
        "the bytes written by the server per second in the slice with most",
    ),
    _M(
        *("wakeups_peak_hz", "1/s", "wake-ups from idle, slice with most", "wake-ups/s, most"),
        "the wake-ups per second in the slice with most",
    ),
    _M(
        *("storm_raged_percent", "%", "storm active", "storm active, % of time", "the time with an active storm"),
        better=None,
    ),
    _M("storm_counter_hz", "1/s", "rate of the storm", "storm's counter/s", "the rate of the storm", better=None),
    # A cure.
    _M(
        *("thread_wakings_hz", "1/s", "wake-ups of the thread", "thread's wake-ups/s"),
        "the wake-ups of the thread per second",
    ),
    _M(
        *("thread_wakings_traced_hz", "1/s", "wake-ups of the thread, by the trace", "thread's wake-ups/s, traced"),
        "the traced wake-ups of the thread per second",
    ),
    _M(
        *("thread_idle_exits_hz", "1/s", "idle exits by the thread", "  its idle exits/s"),
        "the idle exits by the thread per second",
    ),
    _M(
        *("target_wakings_hz", "1/s", "wake-ups of the process", "process's wake-ups/s"),
        "the wake-ups of the process per second",
    ),
    _M(
        *("target_idle_exits_hz", "1/s", "idle exits by the process", "  its idle exits/s"),
        "the idle exits by the process per second",
    ),
    _M(
        *("host_idle_exits_hz", "1/s", "idle exits of the host", "host's idle exits/s"),
        "the idle exits of the host per second",
    ),
    _M("statements_hz", "1/s", "statements of the server", "statements/s", "the statements of the server per second"),
    _M(
        *("commit_p50_ms", "ms", "statements that commit, median", "p50 commits, ms"),
        "the median latency of statements that commit",
    ),
    _M(
        *("commit_p95_ms", "ms", "statements that commit, p95", "p95 commits, ms"),
        "the p95 latency of statements that commit",
    ),
    _M("replica_lag_s", "s", "seconds behind the source", "seconds behind", "the lag of the replica"),
    _M("replica_backlog_bytes", "B", "received and not applied", "backlog, bytes", "the backlog of the replica"),
    _M("replica_delay_ms", "ms", "delay of the replica", "replica's delay, ms", "the delay of the replica"),
    # The system below a load.
    _M("user_ms_per_query", "ms", "user time per query", "user ms/query", "the user time per query"),
    _M("system_ms_per_query", "ms", "kernel time per query", "kernel ms/query", "the kernel time per query"),
    _M("irq_ms_per_query", "ms", "interrupt time per query", "interrupts ms/query", "the interrupt time per query"),
    _M("user_percent", "%", "user time", "user, %", "the user time"),
    _M("system_percent", "%", "kernel time", "kernel, %", "the kernel time"),
    _M("irq_percent", "%", "interrupt time", "interrupts, %", "the interrupt time"),
    *(
        _M(f"{name}_{suffix}", unit + unit_per, f"{label}{per}", f"{short}/{each}{whole}", f"the {label} per {of}")
        for suffix, unit_per, per, each, of in (
            ("per_query", "", " per query", "query", "query"),
            ("hz", "/s", "", "s", "second"),
        )
        for name, unit, label, short, whole in (
            ("context_switches", "1", "context switches", "switches", ""),
            ("page_faults", "1", "page faults of the host", "faults", ", host"),
            ("major_faults", "1", "major faults of the host", "major faults", ""),
            ("network_packets", "1", "packets", "packets", ""),
            ("disk_reads", "1", "disk reads", "disk reads", ""),
            ("disk_writes", "1", "disk writes", "disk writes", ""),
            ("disk_read_bytes", "B", "bytes read from disk", "disk B read", ""),
            ("disk_write_bytes", "B", "bytes written to disk", "disk B written", ""),
            ("migrations", "1", "moves of tasks to another CPU", "migrations", ""),
        )
    ),
    _M(
        "waiting_tasks",
        "1",
        "tasks that waited for a CPU",
        "tasks waiting",
        "the number of tasks that waited for a CPU",
    ),
    _M(
        *("cpu_pressure_percent", "%", "time in which a task waited for a CPU", "CPU pressure, %"),
        "the time in which a task waited for a CPU",
    ),
    _M(
        *("io_pressure_percent", "%", "time in which a task waited for I/O", "I/O pressure, %"),
        "the time in which a task waited for I/O",
    ),
    _M("disk_busy_percent", "%", "disk busy", "disk busy, %", "the time in which a disk was busy"),
    _M("busiest_cpu_percent", "%", "busiest CPU", "busiest CPU, %", "the load of the busiest CPU"),
    _M("idlest_cpu_percent", "%", "least busy CPU", "least busy CPU, %", "the load of the least busy CPU"),
    _M("busy_mhz", "MHz", "frequency while running", "MHz while running", "the frequency while running"),
)
# The figures of one idle state, device, server or domain.
_OWNED = (
    _M("residency_percent", "%", "residency in {}", "{}, %", "the residency in {}", better=None),
    _M("pstate_percent", "%", "P-state {}", "P-state {}, %", "the time in the P-state {}"),
    _M("disk_service_ms", "ms", "service time of {}", "{}: service, ms", "the service time of {}"),
    _M("disk_read_ms", "ms", "time of a read on {}", "  {}: a read, ms", "the time of a read on {}"),
    _M("disk_write_ms", "ms", "time of a write on {}", "  {}: a write, ms", "the time of a write on {}"),
    _M("disk_queue_count", "1", "requests outstanding on {}", "  {}: queue", "the requests outstanding on {}"),
    _M("disk_busy_percent", "%", "{} busy", "  {}: busy, %", "the time in which {} was busy"),
    _M(
        *("interrupts_per_query", "1", "interrupts of {} per query", "{} interrupts/query"),
        "the interrupts of {} per query",
    ),
    _M("interrupts_hz", "1/s", "interrupts of {}", "{} interrupts/s", "the interrupts of {} per second"),
    _M("c0_percent", "%", "C0 (running) of {}", "  {}: C0, %", "the time of {} in C0"),
    _M("watts", "W", "{} watts", "  {}: watts", "the power of {}"),
    _M(
        *("connections_hz", "1/s", "connections of {}", "  {}: connections/s"),
        "the connections of {} per second",
        better=None,
    ),
    _M("commits_hz", "1/s", "commits of {}", "  {}: commits/s", "the commits of {} per second", better=None),
    _M(
        *("relay_log_bytes_hz", "B/s", "relay logs of {}", "  {}: relay logs, B/s"),
        "the bytes of {}'s relay logs per second",
        better=None,
    ),
)
METRICS = {metric.name: metric for metric in _METRICS}
OWNED_METRICS = {metric.name: metric for metric in _OWNED}


def find_metric(name: str) -> MetricDefinition | None:
    """Return the definition of a metric, with the part of its name after a colon in its words; None if unknown."""
    kind, colon, owner = name.partition(":")
    if not colon:
        return METRICS.get(name)
    if not owner or (of := OWNED_METRICS.get(kind)) is None:
        return None
    shown = owner.replace(":", " ")
    return MetricDefinition(
        *(name, of.unit, of.label.format(shown), of.short.format(owner), of.noun.format(shown)), better=of.better
    )


def unit_of(name: str) -> str:
    """Return the unit of a metric. Raise KeyError if the metric is not defined."""
    kind, colon, _ = name.partition(":")
    return (OWNED_METRICS if colon else METRICS)[kind].unit
