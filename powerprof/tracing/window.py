"""One traced window: edges that leave no idle period open, and everything that ended one in between."""

from __future__ import annotations

import time
from dataclasses import dataclass
from types import TracebackType

import msgspec

from powerprof import interrupts
from powerprof.errors import Interrupted
from powerprof.records import Window
from powerprof.sources.base import Meters, Snapshot
from powerprof.sources.cpuidle import CpuidleReader
from powerprof.sources.edges import edge_snapshot
from powerprof.tracing.edge import CpuEdge
from powerprof.tracing.idle import IdleTrace, IdleTracer
from powerprof.windows.residency import compute
from powerprof.windows.sampling import now_text

# The ring buffer holds four seconds of 10,000 exits a second; each drain costs about one wake-up.
DRAIN_EVERY_S = 2.0


@dataclass(frozen=True)
class TracedWindow:
    """A trace with the window of each CPU. `tool_cpu_s` is powerprof's own CPU time in it."""

    trace: IdleTrace
    edges: dict[int, CpuEdge]
    window_s: float
    residency: Window
    tool_cpu_s: float
    interrupted: bool = False


def _edges(before: Snapshot, after: Snapshot) -> dict[int, CpuEdge]:
    edges = {}
    for cpu, start in before.cpus.items():
        end = after.cpus.get(cpu)
        if end is None or start.at_ns is None or end.at_ns is None:
            continue
        delta = sum(end.usage) - sum(start.usage) if start.states else None
        edges[cpu] = CpuEdge(start.at_ns, end.at_ns, delta)
    return edges


class TraceWindow:
    """Measures traced windows with one tracer; the counters stay open between them. A context manager."""

    def __init__(self, tracer: IdleTracer, meters: Meters | None = None) -> None:
        self._tracer = tracer
        self._meters = meters
        self._reader = CpuidleReader()

    def __enter__(self) -> TraceWindow:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._reader.close()

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
        before = edge_snapshot(self._reader)
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
        after = edge_snapshot(self._reader)
        self._tracer.end()
        end_s = time.monotonic()
        if meters is not None:
            meters.sample()
        tool_cpu_s = time.process_time() - started
        trace = self._tracer.finish()
        edges = _edges(before, after)
        spans = [edge.end_ns - edge.start_ns for edge in edges.values()]
        window_s = sum(spans) / len(spans) / 1e9 if spans else duration_s
        residency = compute(before, after, started_at=started_at)
        if meters is not None:
            residency = msgspec.structs.replace(residency, energy=meters.readings(start_s, end_s))
        return TracedWindow(trace, edges, window_s, residency, tool_cpu_s, interrupted)
