# SPDX-License-Identifier: Apache-2.0
"""Traces on and on, and says of each interval what a window says of itself: nothing stops, and no CPU is woken.

A window's edges move us onto every CPU. A monitor that did so every few seconds would be a waker itself; what it needs
of an edge is how long the CPUs that idle now have idled, and that the tracer knows. The counters of such a CPU are read
between two looks at it that agree.
"""

from __future__ import annotations

import os
import time
from dataclasses import replace

import numpy as np

from powerprof.measure.clock import CpuReading, Snapshot, kernel_ns
from powerprof.measure.cpuidle import CpuidleReader, online_cpus, read_edge
from powerprof.measure.procfs import compute_accounting, read_stat
from powerprof.measure.residency import compute_residency
from powerprof.measure.sampling import format_now
from powerprof.system.closeable import Closeable
from powerprof.tracing.bpf.shared_numbers import CpuPhase
from powerprof.tracing.captures import Array, CpuEdge
from powerprof.tracing.idle import TracedWindow
from powerprof.tracing.idle_data import CPU_TOTAL, compute_traced_residency
from powerprof.tracing.idle_tracer import IdleTracer

_LOOKS = 4


def add_open_period(reading: CpuReading, before: Array, after: Array) -> CpuReading:
    """A CPU's counters with the period that is open in them, from two looks at it (layout.CPU_STATE).

    Unresolved where the CPU left or entered idle between the looks.
    """
    if before["phase"] != after["phase"] or before["period"]["enter_ns"] != after["period"]["enter_ns"]:
        return reading
    if before["phase"] != CpuPhase.IDLE:
        # One that was not seen to idle yet has been running since the first edge, where it ran us.
        return replace(reading, resolved=True)
    state, enter_ns = int(before["period"]["state"]), int(before["period"]["enter_ns"])
    at_ns = reading.at_ns or 0
    times = list(reading.time_us)
    if state < len(times):
        times[state] += max(0, at_ns - enter_ns) // 1000
    return replace(reading, time_us=tuple(times), resolved=True)


def _not_before(old: CpuReading | None, new: CpuReading) -> CpuReading:
    # The driver's clock and the tracer's differ by some microseconds: no counter goes back for that.
    if old is None or len(old.time_us) != len(new.time_us):
        return new
    return replace(new, time_us=tuple(max(pair) for pair in zip(old.time_us, new.time_us, strict=True)))


def _since(before: Array, now: Array) -> Array:
    """What came between two readings of `CpuWindows.idle_until_now`."""
    since = now.copy()
    for name in ("count", "idle_ns"):
        # A period whose state was read in one look and its sum in another.
        since[name] -= np.minimum(before[name], now[name])
    return since


class TraceMonitor(Closeable):
    """Reads one tracer again and again. A context manager: the trace runs while it is open."""

    def __init__(self, tracer: IdleTracer) -> None:
        self._tracer = tracer
        self._reader = CpuidleReader()
        tracer.cpus.tell_polls(self._reader.polls())
        self._edges: dict[int, int] = {}
        self._snapshot = Snapshot({})
        self._stat, self._cpu_s = read_stat(), time.process_time()
        self._started_at, self._run_time_s = format_now(), 0.0
        self._read_ns = kernel_ns()

    def _open(self) -> None:
        """The only edge at which CPUs are woken: the first."""
        self._tracer.begin()
        self._tracer.start()
        edges = read_edge(
            self._reader, every_cpu=True, at_edge=lambda edge: self._tracer.cpus.open(edge.cpu, edge.at_ns or 0)
        )
        self._edges = {cpu: reading.at_ns or 0 for cpu, reading in edges.cpus.items()}
        self._snapshot = replace(edges, cpus={cpu: edge for cpu, edge in edges.cpus.items() if edge.states})
        # At a CPU's edge we run on it: nothing of it is open, and nothing summed.
        self._idle = np.zeros(len(self._tracer.cpus.states()), dtype=CPU_TOTAL)
        self._stat, self._cpu_s, self._started_at = read_stat(), time.process_time(), format_now()
        self._read_ns = kernel_ns()

    def close(self) -> None:
        self._reader.close()

    @property
    def switches_count(self) -> int:
        """The host's context switches since boot, at the last read."""
        return self._stat.context_switches_count

    def read(self) -> TracedWindow:
        """What came since the last read.

        The residency is exact on every CPU. A period that is not whole yet (its CPU has not idled again) is in the
        causes of a later read: over all reads the sums are those of one long window.
        """
        began, began_at, stat, cpu_s = self._snapshot, self._started_at, self._stat, self._cpu_s
        self._snapshot, self._started_at = self._now(), format_now()
        self._stat, self._cpu_s = read_stat(), time.process_time()
        trace = self._tracer.snapshot()
        spent = compute_accounting(stat, self._stat)
        idle_percent = None if spent is None else spent.idle_percent
        at_ns: Array | None = None
        if not self._reader.cpus:
            before, (self._idle, at_ns) = self._idle, self._tracer.cpus.idle_until_now()
        edges = self._interval(began, trace.totals, at_ns)
        if self._reader.cpus:
            residency = compute_residency(began, self._snapshot, started_at=began_at)
        else:
            residency = compute_traced_residency(
                _since(before, self._idle),
                edges,
                stat_idle_percent=idle_percent,
                own_pid=os.getpid(),
                started_at=began_at,
            )
        spans = [edge.end_ns - edge.start_ns for edge in edges.values()]
        read_ns, self._read_ns = self._read_ns, kernel_ns()
        # Where every CPU that counts went away meanwhile, other rates are over the time that passed.
        window_s = (sum(spans) / len(spans) if spans else self._read_ns - read_ns) / 1e9
        total_s = trace.run_time_s
        run_time_s = None if total_s is None else total_s - self._run_time_s
        self._run_time_s = total_s or 0.0
        return TracedWindow(
            replace(trace, run_time_s=run_time_s),
            edges,
            window_s,
            residency,
            self._reader.state_names(),
            self._cpu_s - cpu_s,
            stat_idle_percent=idle_percent,
            counters=(began, self._snapshot),
        )

    def _interval(self, began: Snapshot, totals: Array, at_ns: Array | None) -> dict[int, CpuEdge]:
        """`at_ns`: where no driver counts, when what was traced on each CPU was read."""
        edges, now_ns = {}, kernel_ns()
        online = set(began.cpus) & set(self._snapshot.cpus) if self._reader.cpus else set(online_cpus())
        for cpu, start_ns in self._edges.items():
            if cpu not in online:
                continue
            old, new = began.cpus.get(cpu), self._snapshot.cpus.get(cpu)
            end_ns = (new.at_ns if new is not None else None) or (now_ns if at_ns is None else int(at_ns[cpu]))
            usage = new.entries_count - old.entries_count if new is not None and old is not None else None
            edges[cpu] = CpuEdge(cpu, start_ns, end_ns, usage, None, int(totals[cpu]["count"].sum()))
            self._edges[cpu] = end_ns
        return edges

    def _now(self) -> Snapshot:
        """All CPUs' counters, with what is open in them."""
        readings: dict[int, CpuReading] = {}
        missing = set(self._reader.cpus)
        notes: tuple[str, ...] = ()
        for _ in range(_LOOKS):
            before = self._tracer.cpus.states()
            snapshot = self._reader.snapshot()
            after = self._tracer.cpus.states()
            notes = snapshot.notes
            missing &= set(snapshot.cpus)
            for cpu in sorted(missing):
                reading = add_open_period(snapshot.cpus[cpu], before[cpu], after[cpu])
                readings[cpu] = _not_before(self._snapshot.cpus.get(cpu), reading)
                if reading.resolved:
                    missing.discard(cpu)
            if not missing:
                break
        return Snapshot(dict(sorted(readings.items())), notes)
