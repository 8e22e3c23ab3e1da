# SPDX-License-Identifier: Apache-2.0
"""Read a tracer that runs all day. Each interval gives the same figures as a window, and no CPU is woken for it.

The edges of a window move powerprof onto every CPU. A monitor that did so every few seconds would be a waker itself.
It needs the idle time of CPUs that idle now, and the tracer knows it: the idle counters of such a CPU are valid if the
CPU's state is the same before and after they are read.
"""

from __future__ import annotations

import os

import numpy as np
from msgspec.structs import replace

from powerprof.measure.clock import format_now, kernel_ns
from powerprof.measure.cpuidle import CpuidleReader, online_cpus
from powerprof.measure.idle_counters import CpuReading, Snapshot
from powerprof.measure.idle_edges import read_edge
from powerprof.measure.procfs import compute_accounting, read_stat
from powerprof.measure.residency import compute_residency, find_inconsistency
from powerprof.system.closeable import Closeable
from powerprof.system.own_processes import own_pids, read_own_cost
from powerprof.tracing.bpf.shared_numbers import CpuPhase
from powerprof.tracing.captures import Array, CpuEdge
from powerprof.tracing.idle import IdleTrace, IdleTracer, TracedWindow
from powerprof.tracing.idle_data import CPU_TOTAL, compute_traced_residency
from powerprof.tracing.pieces import Piece, sum_pieces
from powerprof.tracing.slices import prepare_slice

_MAX_TRIES = 4


def add_open_period(reading: CpuReading, before: Array, after: Array) -> CpuReading:
    """Return a CPU's counters with the period that is open in them, from two readings of its state (CPU_STATE).

    The result is unresolved if the CPU left or entered idle between the readings.
    """
    if before["phase"] != after["phase"] or before["period"]["enter_ns"] != after["period"]["enter_ns"]:
        return reading
    if before["phase"] != CpuPhase.IDLE:
        # A CPU of unknown phase has been running since the first edge, when powerprof ran on it.
        return replace(reading, resolved=True)
    state, enter_ns = int(before["period"]["state"]), int(before["period"]["enter_ns"])
    at_ns = reading.at_ns or 0
    times = list(reading.time_us)
    if state < len(times):
        times[state] += max(0, at_ns - enter_ns) // 1000
    return replace(reading, time_us=tuple(times), resolved=True)


def _prevent_decrease(old: CpuReading | None, new: CpuReading) -> CpuReading:
    """Return `new` with no counter below `old`: the clocks of driver and tracer differ by some microseconds."""
    if old is None or old.life != new.life or len(old.time_us) != len(new.time_us):
        return new
    return replace(new, time_us=tuple(max(pair) for pair in zip(old.time_us, new.time_us, strict=True)))


def _count_exits(before: Snapshot, after: Snapshot) -> int | None:
    """Return the kernel's count of idle exits between two readings; None without idle counters."""
    pairs = [(before.cpus[cpu], after.cpus[cpu]) for cpu in before.cpus.keys() & after.cpus.keys()]
    if not pairs or any(find_inconsistency(old, new) for old, new in pairs):
        return None
    return sum(new.entries_count - old.entries_count for old, new in pairs)


class TraceMonitor(Closeable):
    """Reads one tracer repeatedly. A context manager: the trace runs while it is open."""

    def __init__(self, tracer: IdleTracer) -> None:
        self._tracer = tracer
        self._reader = CpuidleReader()
        tracer.cpus.set_polling_states(self._reader.polls())
        self._edges: dict[int, int] = {}
        self._snapshot = Snapshot({})
        self._stat, self._cost = read_stat(), read_own_cost()
        self._started_at, self._run_time_s = format_now(), 0.0
        self._read_ns = self._on_ns = kernel_ns()
        self._pieces: list[Piece] = []
        # The part of the last interval that was traced, if it was not all.
        self.traced_share = 1.0

    def _open(self) -> None:
        """Read the first edge, the only one at which CPUs are woken."""
        self._tracer.prepare()
        self._tracer.begin()
        edges = read_edge(
            self._reader, every_cpu=True, at_edge=lambda edge: self._tracer.cpus.open(edge.cpu, edge.at_ns or 0)
        )
        self._edges = {cpu: reading.at_ns or 0 for cpu, reading in edges.cpus.items()}
        self._snapshot = replace(edges, cpus={cpu: edge for cpu, edge in edges.cpus.items() if edge.states})
        # powerprof runs on a CPU at its edge, so no period is open and nothing is summed.
        self._idle = np.zeros(len(self._tracer.cpus.states()), dtype=CPU_TOTAL)
        self._stat, self._cost, self._started_at = read_stat(), read_own_cost(), format_now()
        self._read_ns = self._on_ns = kernel_ns()

    def end_slice(self) -> None:
        """Detach the programs and keep what they traced in this interval."""
        self._tracer.program.detach()
        self._keep_piece(self._tracer.snapshot())

    def start_slice(self) -> None:
        """Attach the programs again."""
        prepare_slice(self._tracer.program, sorted(self._edges))
        # Processes that joined the target while nothing reported them.
        self._tracer.stacks.read()
        self._tracer.program.attach()
        self._on_ns = kernel_ns()

    def _keep_piece(self, trace: IdleTrace) -> None:
        self._pieces.append(Piece(self._on_ns, kernel_ns(), trace.causes, trace.totals, trace.ran))

    def _take_trace(self, began: Snapshot) -> IdleTrace:
        """Return the trace of the interval that ends now; of slices, the estimate of the whole interval."""
        trace = self._tracer.snapshot()
        pieces, start_ns = self._pieces, self._read_ns
        if self._tracer.program.is_attached and not pieces and self._on_ns <= start_ns:
            self.traced_share, self._on_ns = 1.0, kernel_ns()
            return trace
        if self._tracer.program.is_attached:
            self._keep_piece(trace)
            self._on_ns = kernel_ns()
        self._pieces = []
        if not pieces:
            self.traced_share = 0.0
            return trace
        whole = sum_pieces(pieces, start_ns, kernel_ns(), _count_exits(began, self._snapshot), own_pids())
        self.traced_share = whole.traced_share
        return replace(trace, causes=whole.causes, totals=whole.totals, ran=whole.ran)

    def close(self) -> None:
        self._reader.close()

    @property
    def switches_count(self) -> int:
        """The host's context switches since boot, at the last read."""
        return self._stat.context_switches_count

    def read(self) -> TracedWindow:
        """Return the interval since the last read.

        The residency is exact on every CPU. A period that is not complete (its CPU has not idled again) is in the
        causes of a later read. Over all reads the sums are those of one long window.
        """
        began, started_at, stat, cost = self._snapshot, self._started_at, self._stat, self._cost
        self._snapshot, self._started_at = self._read_counters(), format_now()
        self._stat, self._cost = read_stat(), read_own_cost()
        trace = self._take_trace(began)
        spent = compute_accounting(stat, self._stat)
        stat_idle_percent = None if spent is None else spent.idle_percent
        if self._reader.cpus:
            edges = self._compute_edges(began, trace.totals, None)
            residency = compute_residency(began, self._snapshot, started_at=started_at)
        else:
            before, (self._idle, at_ns) = self._idle, self._tracer.cpus.read_idle_until_now()
            edges = self._compute_edges(began, trace.totals, at_ns)
            # Between slices only /proc/stat counts.
            growth = self._idle.copy() if self.traced_share == 1.0 else np.zeros_like(self._idle)
            for name in ("count", "idle_ns"):
                # The state of a period may have been read at one try and its sum at another.
                growth[name] -= np.minimum(before[name], growth[name])
            residency = compute_traced_residency(
                growth, edges, stat_idle_percent=stat_idle_percent, own_pid=os.getpid(), started_at=started_at
            )
        spans = [edge.end_ns - edge.start_ns for edge in edges.values()]
        last_read_ns, self._read_ns = self._read_ns, kernel_ns()
        # If every counted CPU went offline, other rates are over the time that passed.
        window_s = (sum(spans) / len(spans) if spans else self._read_ns - last_read_ns) / 1e9
        total_s = trace.run_time_s
        run_time_s = None if total_s is None else total_s - self._run_time_s
        self._run_time_s = total_s or 0.0
        return TracedWindow(
            replace(trace, run_time_s=run_time_s),
            edges,
            window_s,
            residency,
            self._reader.state_names(),
            self._cost.since(cost)[0],
            stat_idle_percent=stat_idle_percent,
            counters=(began, self._snapshot),
        )

    def _compute_edges(self, began: Snapshot, totals: Array, at_ns: Array | None) -> dict[int, CpuEdge]:
        """Return each CPU's interval. `at_ns`: times of reading the trace of each CPU, if no driver counts."""
        edges, now_ns = {}, kernel_ns()
        online = set(began.cpus) & set(self._snapshot.cpus) if self._reader.cpus else set(online_cpus())
        for cpu, start_ns in self._edges.items():
            if cpu not in online:
                continue
            old, new = began.cpus.get(cpu), self._snapshot.cpus.get(cpu)
            end_ns = (new.at_ns if new is not None else None) or (now_ns if at_ns is None else int(at_ns[cpu]))
            has_counted = new is not None and old is not None and not find_inconsistency(old, new)
            usage = new.entries_count - old.entries_count if new and old and has_counted else None
            edges[cpu] = CpuEdge(cpu, start_ns, end_ns, usage, None, int(totals[cpu]["count"].sum()))
            self._edges[cpu] = end_ns
        return edges

    def _read_counters(self) -> Snapshot:
        """Return the idle counters of all CPUs with their open periods; between slices without these."""
        if not self._tracer.program.is_attached:
            snapshot = self._reader.snapshot()
            counted = {
                cpu: _prevent_decrease(self._snapshot.cpus.get(cpu), reading) for cpu, reading in snapshot.cpus.items()
            }
            return Snapshot(dict(sorted(counted.items())), snapshot.notes)
        readings: dict[int, CpuReading] = {}
        missing = set(self._reader.cpus)
        notes: tuple[str, ...] = ()
        for _ in range(_MAX_TRIES):
            before = self._tracer.cpus.states()
            snapshot = self._reader.snapshot()
            after = self._tracer.cpus.states()
            notes = snapshot.notes
            missing &= set(snapshot.cpus)
            for cpu in sorted(missing):
                reading = add_open_period(snapshot.cpus[cpu], before[cpu], after[cpu])
                readings[cpu] = _prevent_decrease(self._snapshot.cpus.get(cpu), reading)
                if reading.resolved:
                    missing.discard(cpu)
            if not missing:
                break
        return Snapshot(dict(sorted(readings.items())), notes)
