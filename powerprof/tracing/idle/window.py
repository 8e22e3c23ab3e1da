# SPDX-License-Identifier: Apache-2.0
"""One traced window: edges that leave no idle period open, and everything that ended one in between."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import msgspec

from powerprof.closeable import Closeable
from powerprof.errors import CapabilityError
from powerprof.records import Note, Window
from powerprof.sources.base import CpuReading, Meters, Snapshot
from powerprof.sources.cpuidle import CpuidleReader, list_of, online_cpus
from powerprof.sources.edges import edge_snapshot
from powerprof.sources.idle_events import IdleEvents
from powerprof.sources.interrupts import unseen_between, unseen_counts
from powerprof.sources.procfs import accounting, read_stat
from powerprof.text import listed
from powerprof.tracing.captures.edges import Array, CpuEdge, unchecked
from powerprof.tracing.idle.idle_time import traced_residency
from powerprof.tracing.idle.tracer import IdleTrace, IdleTracer
from powerprof.windows.residency import compute, went_back
from powerprof.windows.runner import Metered, Part, Passed, pass_window
from powerprof.windows.sampling import now_text

_UNSEEN_FEWEST, _UNSEEN_SHARE = 10, 0.01


@dataclass(frozen=True)
class TracedWindow:
    """A trace with the window of each CPU. `tool_cpu_s` is powerprof's own CPU time in it.

    `state_names`: of each CPU's idle states, by number. `stat_idle_percent`: how idle the CPUs were by /proc/stat.
    `counters`: those of idle at both edges, of a monitor.
    """

    trace: IdleTrace
    edges: dict[int, CpuEdge]
    window_s: float
    residency: Window
    state_names: dict[int, list[str]]
    tool_cpu_s: float
    interrupted: bool = False
    stat_idle_percent: float | None = None
    counters: tuple[Snapshot, Snapshot] | None = None


@dataclass(frozen=True)
class _Edge:
    """All CPUs at one edge: their readings, and perf's count of idle exits where it is needed."""

    snapshot: Snapshot
    events: dict[int, int]


def _edges(before: _Edge, after: _Edge, totals: Array) -> dict[int, CpuEdge]:
    """Each CPU's window. One that went away, or whose counters were reset, has what was traced on it and no counter."""
    edges = {}
    last_ns = max((reading.at_ns for reading in after.snapshot.cpus.values() if reading.at_ns is not None), default=0)
    for cpu, start in before.snapshot.cpus.items():
        end = after.snapshot.cpus.get(cpu)
        if start.at_ns is None:
            continue
        end_ns = last_ns if end is None or end.at_ns is None else end.at_ns
        usage = events = None
        if end is not None and start.states and not went_back(start, end):
            usage = end.entries_count - start.entries_count
        if end is not None and cpu in before.events and cpu in after.events:
            events = after.events[cpu] - before.events[cpu]
        edges[cpu] = CpuEdge(cpu, start.at_ns, end_ns, usage, events, int(totals[cpu]["count"].sum()))
    return edges


def _counted(snapshot: Snapshot) -> Snapshot:
    """The CPUs that have idle states."""
    return replace(snapshot, cpus={cpu: reading for cpu, reading in snapshot.cpus.items() if reading.states})


def _idle_events(cpus: Iterable[int]) -> IdleEvents | None:
    try:
        return IdleEvents(cpus)
    except CapabilityError:
        return None


class TraceWindow(Closeable, Part):
    """Measures traced windows with one tracer; the counters stay open between them. A context manager."""

    def __init__(self, tracer: IdleTracer, meters: Meters | None = None) -> None:
        self._tracer, self._meters = tracer, Metered(meters)
        # The tracer forgets before the edge: exits between them would be forgotten too.
        self.parts: tuple[Part, ...] = (tracer, self._meters, self)
        self._reader = CpuidleReader()
        tracer.cpus.tell_polls(self._reader.polls())
        self._events = None if self._reader.cpus else _idle_events(online_cpus())

    def close(self) -> None:
        self._reader.close()
        if self._events is not None:
            self._events.close()

    def _edge(self, tell: Callable[[int, int], None]) -> _Edge:
        counts: dict[int, int] = {}
        events = self._events

        def at_edge(reading: CpuReading) -> None:
            value = events.read_cpu(reading.cpu) if events is not None else None
            if value is not None:
                counts[reading.cpu] = value
            tell(reading.cpu, reading.at_ns or 0)

        return _Edge(edge_snapshot(self._reader, every_cpu=True, at_edge=at_edge), counts)

    def begin(self) -> None:
        self._started_at, self._stat, self._interrupts = now_text(), read_stat(), unseen_counts()
        # Wakings from before the first CPU's edge: an exit in a CPU's own window has its waking among them.
        self._tracer.start()
        self._before = self._edge(self._tracer.cpus.open)

    def end(self) -> None:
        self._after = self._edge(self._tracer.cpus.close)
        spent = accounting(self._stat, read_stat())
        self._stat_idle_percent = None if spent is None else spent.idle_percent
        self._unseen = unseen_between(self._interrupts, unseen_counts())

    def _unseen_notes(self, exits_count: int) -> list[Note]:
        """Interrupts without a tracepoint, where they could have ended one idle period in a hundred."""
        count = sum(self._unseen.values())
        if count < max(_UNSEEN_FEWEST, _UNSEEN_SHARE * exits_count):
            return []
        named = listed([f"{number:,} {name}" for name, number in self._unseen.items()])
        return [Note("interrupts_unseen", {"count": count, "named": named})]

    def measure(self, duration_s: float) -> TracedWindow:
        """Trace for `duration_s`. An interrupt ends the window early; the caller sees `interrupted`."""
        return self.collect(pass_window(duration_s, *self.parts))

    def collect(self, passed: Passed) -> TracedWindow:
        """What was traced between the edges."""
        before, after, trace = self._before, self._after, self._tracer.finish()
        started_at, stat_idle = self._started_at, self._stat_idle_percent
        edges = _edges(before, after, trace.totals)
        spans = [edge.end_ns - edge.start_ns for edge in edges.values()]
        window_s = sum(spans) / len(spans) / 1e9 if spans else passed.window_s
        if self._reader.cpus:
            residency = compute(_counted(before.snapshot), _counted(after.snapshot), started_at=started_at)
        else:
            # A CPU that went away idled longer than anything was traced there.
            stayed = {cpu: edge for cpu, edge in edges.items() if cpu in after.snapshot.cpus}
            residency = traced_residency(
                trace.totals, stayed, stat_idle_percent=stat_idle, own_pid=os.getpid(), started_at=started_at
            )
        notes = [*residency.notes, *passed.notes, *self._unseen_notes(int(trace.totals["count"].sum()))]
        if alone := unchecked(edges):
            cpus = list_of(alone)
            notes.append(f"CPU {cpus}: its idle exits were counted by the trace alone, cpuidle's counters were reset")
        residency = msgspec.structs.replace(residency, energy=self._meters.collect()[0], notes=notes)
        names, cut_short, cost_s = self._reader.state_names(), passed.interrupted is not None, passed.tool_cpu_s
        return TracedWindow(trace, edges, window_s, residency, names, cost_s, cut_short, stat_idle)
