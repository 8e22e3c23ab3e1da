# SPDX-License-Identifier: Apache-2.0
"""One traced window: edges that leave no idle period open, and everything that ended one in between."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from types import TracebackType

import msgspec

from powerprof import interrupts
from powerprof.errors import CapabilityError, Interrupted
from powerprof.records import Window
from powerprof.sources.base import Meters, Snapshot
from powerprof.sources.cpuidle import CpuidleReader, online_cpus
from powerprof.sources.edges import edge_snapshot
from powerprof.sources.idle_events import IdleEvents
from powerprof.sources.procfs import accounting, read_stat
from powerprof.tracing.edge import CpuEdge, in_window
from powerprof.tracing.idle import IdleTrace, IdleTracer
from powerprof.tracing.idle_time import traced_residency
from powerprof.windows.residency import compute
from powerprof.windows.sampling import now_text

# The ring buffer holds four seconds of 10,000 exits a second; each drain costs about one wake-up.
DRAIN_EVERY_S = 2.0


@dataclass(frozen=True)
class TracedWindow:
    """A trace with the window of each CPU. `tool_cpu_s` is powerprof's own CPU time in it.

    `stat_idle_percent`: how idle the CPUs were by /proc/stat.
    """

    trace: IdleTrace
    edges: dict[int, CpuEdge]
    window_s: float
    residency: Window
    tool_cpu_s: float
    interrupted: bool = False
    stat_idle_percent: float | None = None


@dataclass(frozen=True)
class _Edge:
    """All CPUs at one edge: their readings, and perf's count of idle exits where it is needed."""

    snapshot: Snapshot
    events: dict[int, int]


def _edges(before: _Edge, after: _Edge) -> dict[int, CpuEdge]:
    edges = {}
    for cpu, start in before.snapshot.cpus.items():
        end = after.snapshot.cpus.get(cpu)
        if end is None or start.at_ns is None or end.at_ns is None:
            continue
        usage = sum(end.usage) - sum(start.usage) if start.states else None
        both = cpu in before.events and cpu in after.events
        edges[cpu] = CpuEdge(start.at_ns, end.at_ns, usage, after.events[cpu] - before.events[cpu] if both else None)
    return edges


def _counted(snapshot: Snapshot) -> Snapshot:
    """The CPUs that have idle states."""
    return replace(snapshot, cpus={cpu: reading for cpu, reading in snapshot.cpus.items() if reading.states})


def _idle_events(cpus: Iterable[int]) -> IdleEvents | None:
    try:
        return IdleEvents(cpus)
    except CapabilityError:
        return None


class TraceWindow:
    """Measures traced windows with one tracer; the counters stay open between them. A context manager."""

    def __init__(self, tracer: IdleTracer, meters: Meters | None = None) -> None:
        self._tracer = tracer
        self._meters = meters
        self._reader = CpuidleReader()
        self._events = None if self._reader.cpus else _idle_events(online_cpus())

    def __enter__(self) -> TraceWindow:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._reader.close()
        if self._events is not None:
            self._events.close()

    def _edge(self) -> _Edge:
        counts: dict[int, int] = {}
        events = self._events

        def count(cpu: int) -> None:
            value = events.read_cpu(cpu) if events is not None else None
            if value is not None:
                counts[cpu] = value

        return _Edge(edge_snapshot(self._reader, every_cpu=True, at_edge=count), counts)

    def measure(
        self, duration_s: float, drain_every_s: float = DRAIN_EVERY_S, *, then_hold: bool = False
    ) -> TracedWindow:
        """Trace for `duration_s`. An interrupt ends the window early; the caller sees `interrupted`.

        `then_hold`: signals wait from the window's end on, until the caller has saved it (`interrupts.release`).
        """
        # Before the edge: exits between it and here would be forgotten.
        self._tracer.begin()
        started, started_at = time.process_time(), now_text()
        meters = self._meters
        if meters is not None:
            meters.sample()
            drain_every_s = min(drain_every_s, meters.max_interval_s or drain_every_s)
        start_s = time.monotonic()
        stat = read_stat()
        before = self._edge()
        self._tracer.start()
        interrupted = False
        try:
            deadline = time.monotonic() + duration_s
            while (left := deadline - time.monotonic()) > 0:
                time.sleep(min(left, drain_every_s))
                if left > drain_every_s:
                    self._tracer.drain()
                    if meters is not None:
                        meters.sample()
            if then_hold:
                interrupts.hold()
        except Interrupted:
            interrupted = True
        after = self._edge()
        self._tracer.end()
        spent = accounting(stat, read_stat())
        stat_idle_percent = None if spent is None else spent.idle_percent
        end_s = time.monotonic()
        if meters is not None:
            meters.sample()
        tool_cpu_s = time.process_time() - started
        trace = self._tracer.finish()
        edges = _edges(before, after)
        spans = [edge.end_ns - edge.start_ns for edge in edges.values()]
        window_s = sum(spans) / len(spans) / 1e9 if spans else duration_s
        if self._reader.cpus:
            residency = compute(_counted(before.snapshot), _counted(after.snapshot), started_at=started_at)
        else:
            residency = traced_residency(
                in_window(trace.exits, edges),
                edges,
                lost_count=trace.lost_count,
                stat_idle_percent=stat_idle_percent,
                own_pid=os.getpid(),
                started_at=started_at,
            )
        if meters is not None:
            residency = msgspec.structs.replace(residency, energy=meters.readings(start_s, end_s))
        return TracedWindow(trace, edges, window_s, residency, tool_cpu_s, interrupted, stat_idle_percent)
