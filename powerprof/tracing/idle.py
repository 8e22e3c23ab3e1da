# SPDX-License-Identifier: Apache-2.0
"""Trace idle exits: load the idle-exit program, run windows with it and collect their traces.

`trace_exits`, `trace_stacks` and `trace_on_demand` load the program and put the parts of a tracer together.
`WindowTracer` runs windows with a tracer; `TraceMonitor` (monitor.py) reads a tracer that runs all day.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager

import msgspec
import numpy as np
from msgspec.structs import replace

from powerprof.measure.clock import format_now
from powerprof.measure.cpuidle import CpuidleReader, format_cpu_list, online_cpus
from powerprof.measure.idle_counters import CpuReading, Snapshot
from powerprof.measure.idle_edges import read_edge
from powerprof.measure.idle_events import IdleEvents
from powerprof.measure.procfs import compute_accounting, read_stat
from powerprof.measure.residency import compute_residency, find_inconsistency
from powerprof.measure.unseen_interrupts import count_unseen, read_unseen_counts
from powerprof.measure.window import EnergySampler, Meters, PassedWindow, WindowPart, run_window
from powerprof.model.records import Ended, Note, Window
from powerprof.model.text import join_words
from powerprof.stacks.registers import Machine
from powerprof.system.closeable import Closeable
from powerprof.system.errors import CapabilityError
from powerprof.system.targets import Target
from powerprof.tracing.bpf.cost_meter import CostMeter, EventCounter
from powerprof.tracing.bpf.loaded import LoadedProgram
from powerprof.tracing.bpf.shared_numbers import Count, Shared
from powerprof.tracing.budget import Budget
from powerprof.tracing.captures import Array, CpuEdge, count_reference_exits, find_unchecked_cpus
from powerprof.tracing.idle_data import RunTimes, aggregate_exits, compute_traced_residency, set_last_names
from powerprof.tracing.idle_program import (
    ON_DEMAND,
    EarlyLoad,
    build_idle_definitions,
    load_idle_program,
    load_stack_program,
    read_shared,
    read_tracing_btf,
)
from powerprof.tracing.idle_stacks import (
    DemandStacks,
    ImageRetention,
    JoinedProcesses,
    TargetMembers,
    WindowStacks,
    keep_every_program,
    keep_latest_program,
)
from powerprof.tracing.idle_tables import CpuWindows, FillLimits, IdleSums, PeriodSample, RunTimeReader, select_sample
from powerprof.tracing.kernel_symbols import name_kernel_functions
from powerprof.tracing.slices import (
    CAUSE_NAMES,
    CAUSE_SUMS,
    WOKEN_NAMES,
    SlicedTrace,
    Slicer,
    SliceSums,
    make_slice,
    prepare_slice,
    sum_edges,
)

# Interrupts without a tracepoint are reported if there are ten, and one in a hundred idle exits.
_MIN_UNSEEN, _MIN_UNSEEN_SHARE = 10, 0.01


class IdleTrace(msgspec.Struct, frozen=True):
    """A collected trace: `causes` are the sums of all idle exits of the window (CAUSE).

    `lost_count`: exits that found no place in the table of causes. `sample`: an even sample of one in `sample_1_in`
    single periods (IDLE_EXIT) by time, open ones last, less `sample_lost_count` that did not fit into the ring buffer.
    `totals`: each CPU's own sums (CPU_TOTAL). `ran`: running time of threads. `run_time_s`: CPU time of the program.
    `addresses`: names of kernel functions by address. `last_names`: names of exited threads by process and thread id.
    """

    causes: Array
    lost_count: int
    sample: Array
    sample_1_in: int
    sample_lost_count: int
    totals: Array
    ran: RunTimes
    run_time_s: float | None = None
    addresses: dict[int, str] = msgspec.field(default_factory=dict)
    last_names: dict[tuple[int, int], bytes] = msgspec.field(default_factory=dict)


class IdleTracer(WindowPart):
    """The running idle-exit program with the readers of its tables. `stacks` is a part that follows its windows."""

    def __init__(self, program: LoadedProgram, sums: IdleSums, sample: PeriodSample) -> None:
        self.program, self.cpus = program, CpuWindows(program)
        self.knows_tick = bool(read_shared(program, Shared.TICK_HANDLER))
        self.stacks = WindowPart()
        self._sums, self._sample = sums, sample
        self._run_times = RunTimeReader(program)
        self._fill_limits = FillLimits(program, sums.count_living)
        self._functions: dict[int, str] = {}
        self._counters = program.per_cpu_sum("counters")
        program.ring("calls", lambda table: None)

    @property
    def wake_descriptor(self) -> int | None:
        """A descriptor that is readable when a ring buffer or a table fills."""
        return self.program.map_descriptor("calls")

    @property
    def read_interval_s(self) -> float:
        return self.stacks.read_interval_s

    def prepare(self) -> None:
        """Drop all earlier data. Nothing is counted before the window of the first CPU opens."""
        self.cpus.reset()
        self._sample.reset_rate()
        self._sums.drop_kept()
        self._fill_limits.reset()
        self._drain()
        self._sample.clear()
        self._sums.clear()
        self._run_times.clear()
        self._counters = self.program.per_cpu_sum("counters")
        self.stacks.prepare()

    def begin(self) -> None:
        """Start counting wakings. The edge of the first CPU follows."""
        self.stacks.begin()

    def read(self) -> None:
        """Read the ring buffers and the tables that fill. Between slices nothing changes in them."""
        if self.program.is_attached:
            self._read()

    def _read(self) -> None:
        self._drain()
        self.stacks.read()

    def end(self) -> None:
        """Stop counting wakings, after the edge of the last CPU. `finish` collects the trace."""
        self.stacks.end()

    def finish(self) -> IdleTrace:
        """Return the trace since `prepare` or the last `snapshot`, with the periods open at the CPUs' last edges."""
        return self._take(with_open=True)

    def snapshot(self) -> IdleTrace:
        """Return the trace since `prepare` or the last snapshot. Tracing continues.

        Each period is in exactly one snapshot: the one during which its CPU idled again. Regularity (`period_ns` and
        its companions) continues over snapshots. `totals` have the start of the CPUs' windows and the sums since the
        last snapshot.
        """
        return self._take(with_open=False)

    def report_storms(self) -> None:
        """Let the kernel wake the reader after some thousand idle exits, although no single period is wanted."""
        self._sample.select_few()

    def drain_if_woken(self) -> None:
        """Read the ring buffers and the tables that fill, if the kernel has asked for it."""
        if self.program.waits("calls"):
            self._drain()

    def _drain(self) -> None:
        self.program.consume()
        self._sample.limit()
        self._fill_limits.drain(self._sums.gather)

    def finish_slice(self) -> IdleTrace:
        """Return the trace of a slice after its last edge and the detachment, without names of kernel functions.

        The next slice begins without open periods and regularity.
        """
        trace = self._take(with_open=True, is_named=False)
        self.cpus.reset()
        self._sums.clear_causes()
        return trace

    def take_wakings(self) -> Array:
        """Return the wakings by place (WOKEN) since the last call, up to the last trace; none without stacks."""
        return self._sums.take_wakings()

    def name_functions(self, causes: Array, wakings: Array) -> dict[int, str]:
        """Return the names of the kernel functions in causes and wakings by address."""
        return self._name(self._sums.functions_in(causes, wakings))

    def _name(self, addresses: set[int]) -> dict[int, str]:
        if unknown := addresses - self._functions.keys():
            self._functions.update(dict.fromkeys(unknown, "") | name_kernel_functions(unknown))
        return {address: self._functions[address] for address in addresses if self._functions[address]}

    def _take(self, *, with_open: bool, is_named: bool = True) -> IdleTrace:
        self._read()
        # Causes and CPUs' sums are compared with each other, so they are read at the same moment.
        causes = self._sums.take_causes(self.cpus.read_totals)
        totals, open_periods = self.cpus.take(with_open=with_open)
        ran = self._run_times.since(totals)
        if len(open_periods):
            causes = aggregate_exits(open_periods, causes)
            set_last_names(causes, self._sums.exited)  # an open period has the name that its thread had then
        sample, sample_1_in = self._sample.take(open_periods)
        before, self._counters = self._counters, self.program.per_cpu_sum("counters")
        return IdleTrace(
            causes=causes,
            lost_count=self._counters[Count.LOST_EXITS] - before[Count.LOST_EXITS],
            sample=sample,
            sample_1_in=sample_1_in,
            sample_lost_count=(
                self._counters[Count.LOST_SAMPLES] - before[Count.LOST_SAMPLES] + self._sample.dropped_count
            ),
            totals=totals,
            ran=ran,
            run_time_s=self.program.run_time_s(),
            addresses=self._name(self._sums.functions_in(causes)) if is_named else {},
            last_names=self._sums.last_names(),
        )


class TracedWindow(msgspec.Struct, frozen=True):
    """A trace with the window of each CPU.

    `tool_cpu_s`: powerprof's own CPU time in it. `state_names`: names of each CPU's idle states, by number.
    `stat_idle_percent`: idle time by /proc/stat. `counters`: the idle counters at both edges. `sliced`: the slices of
    the window if only a part was traced; `edges` and `trace` are then the sums over the slices, `wakings` the wakings
    in them by place (WOKEN), and `slice_runs` the running times in each.
    """

    trace: IdleTrace
    edges: dict[int, CpuEdge]
    window_s: float
    residency: Window
    state_names: dict[int, list[str]]
    tool_cpu_s: float
    ended: Ended | None = None
    stat_idle_percent: float | None = None
    counters: tuple[Snapshot, Snapshot] | None = None
    sliced: SlicedTrace | None = None
    wakings: Array | None = None
    slice_runs: list[RunTimes] = []


class _Edge(msgspec.Struct, frozen=True):
    """The readings of all CPUs at one edge, and perf's counts of idle exits if they are needed."""

    snapshot: Snapshot
    events: dict[int, int]


class _CpuEdges(Closeable, WindowPart):
    """The part of a window that reads the idle counters of each CPU at its own exact edges."""

    def __init__(self, tracer: IdleTracer) -> None:
        self.reader = CpuidleReader()
        self._cpus = tracer.cpus
        self._cpus.set_polling_states(self.reader.polls())
        self._events: IdleEvents | None = None
        self.before = self.after = _Edge(Snapshot({}), {})
        self.stat_idle_percent: float | None = None
        self.unseen: dict[str, int] = {}
        if not self.reader.cpus:
            try:
                self._events = IdleEvents(online_cpus())
            except CapabilityError:
                self._events = None

    def close(self) -> None:
        self.reader.close()
        if self._events is not None:
            self._events.close()

    def begin(self) -> None:
        self.started_at, self._stat, self._interrupts = format_now(), read_stat(), read_unseen_counts()
        self.before = self.slice_before = self._read(self._cpus.open)

    def end(self) -> None:
        # Between slices no CPU's window is open, and `close` has no effect.
        self.after = self._read(self._cpus.close)
        spent = compute_accounting(self._stat, read_stat())
        self.stat_idle_percent = None if spent is None else spent.idle_percent
        self.unseen = count_unseen(self._interrupts, read_unseen_counts())

    def start_slice(self) -> None:
        """Open the window of each CPU again."""
        self.slice_before = self._read(self._cpus.open)

    def end_slice(self) -> tuple[_Edge, _Edge]:
        """Close the window of each CPU. Return the edges of the slice."""
        return self.slice_before, self._read(self._cpus.close)

    def _read(self, mark: Callable[[int, int], None]) -> _Edge:
        """Read every CPU. `mark` gets each CPU's number and time while powerprof runs on it."""
        counts: dict[int, int] = {}
        events = self._events

        def at_edge(reading: CpuReading) -> None:
            value = events.read_cpu(reading.cpu) if events is not None else None
            if value is not None:
                counts[reading.cpu] = value
            mark(reading.cpu, reading.at_ns or 0)

        return _Edge(read_edge(self.reader, every_cpu=True, at_edge=at_edge), counts)


class _Slice(msgspec.Struct, frozen=True):
    """The trace of a slice, the window of each CPU, and the wakings by place (WOKEN)."""

    trace: IdleTrace
    edges: dict[int, CpuEdge]
    wakings: Array


class WindowTracer(Closeable):
    """Measures traced windows with one tracer. Counters stay open between windows. A context manager.

    `parts` are the parts of such a window, for callers that run it with others.
    """

    def __init__(self, tracer: IdleTracer, meters: Meters | None = None) -> None:
        self._tracer, self._meters, self._edges = tracer, EnergySampler(meters), _CpuEdges(tracer)
        # The edges come last, so wakings count from before the first CPU's edge until after the last one's.
        self.parts: tuple[WindowPart, ...] = (self._meters, tracer, self._edges)
        self._slicer: Slicer | None = None
        self._slices: list[_Slice] = []

    def bound_cost(
        self, budget: Budget, duration_s: float, meter: CostMeter, used: Callable[[], float], events: EventCounter
    ) -> None:
        """Trace only slices of the next window if tracing all of it would exceed the budget. Call it once.

        `used`: the clock of the target.
        """
        self._slicer = Slicer(
            meter,
            used,
            events.read,
            budget,
            duration_s,
            wake_descriptor=self._tracer.wake_descriptor,
            start_slice=self._start_slice,
            end_slice=self._end_slice,
        )
        self.parts = (*self.parts, self._slicer)
        # The first collection takes three times as long, and no slice is to wait for it.
        self._tracer.finish_slice()

    def _start_slice(self) -> None:
        prepare_slice(self._tracer.program, sorted(self._edges.before.snapshot.cpus))
        # Processes that joined the target while nothing reported them.
        self._tracer.stacks.read()
        self._tracer.program.attach()
        self._edges.start_slice()

    def _end_slice(self) -> None:
        before, after = self._edges.end_slice()
        self._tracer.program.detach()
        self._keep_slice(before, after)

    def _keep_slice(self, before: _Edge, after: _Edge) -> None:
        trace = self._tracer.finish_slice()
        self._slices.append(_Slice(trace, _compute_edges(before, after, trace.totals), self._tracer.take_wakings()))

    def close(self) -> None:
        self._edges.close()

    def measure(self, duration_s: float) -> TracedWindow:
        """Trace for `duration_s`."""
        return self.collect(run_window(duration_s, *self.parts))

    def collect(self, passed: PassedWindow) -> TracedWindow:
        """Return the trace between the edges."""
        before, after = self._edges.before.snapshot, self._edges.after.snapshot
        started_at, stat_idle_percent = self._edges.started_at, self._edges.stat_idle_percent
        sliced, wakings = None, None
        if self._slicer is not None and self._slices:
            trace, traced_edges, edges, sliced, wakings = self._sum_slices(self._slicer)
        else:
            trace = self._tracer.finish()
            edges = traced_edges = _compute_edges(self._edges.before, self._edges.after, trace.totals)
        spans = [edge.end_ns - edge.start_ns for edge in edges.values()]
        window_s = sum(spans) / len(spans) / 1e9 if spans else passed.window_s
        if self._edges.reader.cpus:
            residency = compute_residency(_with_states(before), _with_states(after), started_at=started_at)
        else:
            # A CPU that went offline idled longer than its trace.
            stayed = {cpu: edge for cpu, edge in traced_edges.items() if cpu in after.cpus}
            residency = compute_traced_residency(
                trace.totals, stayed, stat_idle_percent=stat_idle_percent, own_pid=os.getpid(), started_at=started_at
            )
        notes = [*residency.notes, *passed.notes, *self._unseen_notes(int(trace.totals["count"].sum()))]
        notes += [] if self._tracer.knows_tick else [Note("tick_hidden")]
        if unchecked := find_unchecked_cpus(traced_edges):
            cpus = format_cpu_list(unchecked)
            notes.append(f"CPU {cpus}: its idle exits were counted by the trace alone, cpuidle's counters were reset")
        return TracedWindow(
            trace,
            traced_edges,
            window_s,
            msgspec.structs.replace(residency, energy=self._meters.collect()[0], notes=notes),
            self._edges.reader.state_names(),
            passed.tool_cpu_s,
            ended=passed.ended,
            stat_idle_percent=stat_idle_percent,
            counters=(before, after),
            sliced=sliced,
            wakings=wakings,
            slice_runs=[part.trace.ran for part in self._slices],
        )

    def _sum_slices(
        self, slicer: Slicer
    ) -> tuple[IdleTrace, dict[int, CpuEdge], dict[int, CpuEdge], SlicedTrace, Array]:
        """Return the sums over the slices: the trace, each CPU's edges, those of the whole window, slices, wakings."""
        if slicer.is_tracing:
            self._keep_slice(self._edges.slice_before, self._edges.after)
        slices = self._slices
        causes, wakings = SliceSums(CAUSE_NAMES, CAUSE_SUMS, "gaps"), SliceSums(WOKEN_NAMES, ("count",), "count")
        for part in slices:
            causes.add(part.trace.causes)
            wakings.add(part.wakings)
        (all_causes, of_causes), (all_wakings, of_wakings) = causes.finish(), wakings.finish()
        totals = slices[-1].trace.totals.copy()
        for name in ("count", "idle_ns", "unplaced_ns"):
            totals[name] = sum(part.trace.totals[name] for part in slices)
        mask = max(part.trace.sample_1_in for part in slices) - 1
        sample = select_sample(np.concatenate([part.trace.sample for part in slices]), mask)
        trace = replace(
            slices[-1].trace,
            causes=all_causes,
            lost_count=sum(part.trace.lost_count for part in slices),
            sample=sample,
            sample_1_in=mask + 1,
            sample_lost_count=sum(part.trace.sample_lost_count for part in slices),
            totals=totals,
            addresses=self._tracer.name_functions(all_causes, all_wakings),
            last_names={who: name for part in slices for who, name in part.trace.last_names.items()},
        )
        whole = _compute_edges(self._edges.before, self._edges.after, totals)
        reference = count_reference_exits(whole)
        sliced = SlicedTrace(
            slices=[
                make_slice(stratum, part.edges, int(part.trace.totals["count"].sum()))
                for stratum, part in zip(slicer.strata(), slices, strict=True)
            ],
            whole_count=None if reference is None else reference[1],
            used_s=slicer.used_s,
            causes=of_causes.tobytes(),
            wakings=of_wakings.tobytes(),
        )
        return trace, sum_edges([part.edges for part in slices]), whole, sliced, all_wakings

    def _unseen_notes(self, exits_count: int) -> list[Note]:
        """Return a note about interrupts without a tracepoint, if they could have ended one idle period in 100."""
        unseen = self._edges.unseen
        count = sum(unseen.values())
        if count < max(_MIN_UNSEEN, _MIN_UNSEEN_SHARE * exits_count):
            return []
        named = join_words([f"{number:,} {name}" for name, number in unseen.items()])
        return [Note("interrupts_unseen", {"count": count, "named": named})]


def _with_states(snapshot: Snapshot) -> Snapshot:
    """Return the snapshot of the CPUs that have idle states."""
    return replace(snapshot, cpus={cpu: reading for cpu, reading in snapshot.cpus.items() if reading.states})


def _compute_edges(before: _Edge, after: _Edge, totals: Array) -> dict[int, CpuEdge]:
    """Return each CPU's window. A CPU that went offline or whose counters were reset has no counter."""
    edges = {}
    last_ns = max((reading.at_ns for reading in after.snapshot.cpus.values() if reading.at_ns is not None), default=0)
    for cpu, start in before.snapshot.cpus.items():
        end = after.snapshot.cpus.get(cpu)
        if start.at_ns is None:
            continue
        end_ns = last_ns if end is None or end.at_ns is None else end.at_ns
        usage = events = None
        if end is not None and start.states and not find_inconsistency(start, end):
            usage = end.entries_count - start.entries_count
        if end is not None and cpu in before.events and cpu in after.events:
            events = after.events[cpu] - before.events[cpu]
        edges[cpu] = CpuEdge(cpu, start.at_ns, end_ns, usage, events, int(totals[cpu]["count"].sum()))
    return edges


@contextmanager
def trace_exits(more: Mapping[str, int | str] | None = None) -> Iterator[IdleTracer]:
    """Trace idle exits without stacks. `more`: further definitions. Raises CapabilityError, PowerprofError."""
    btf = read_tracing_btf()
    with load_idle_program(btf, {**build_idle_definitions(btf), **(more or {})}) as program:
        yield IdleTracer(program, IdleSums(program), PeriodSample(program))


@contextmanager
def trace_stacks(
    target: Target, early: EarlyLoad | None = None, *, every_period: bool = False
) -> Iterator[tuple[IdleTracer, WindowStacks]]:
    """Trace idle exits and every sleep of a target's threads, for windows. `early`: the program of this target.

    `every_period`: keep every single period instead of a sample, up to a limit. Raises CapabilityError, PowerprofError.
    """
    with _load_with_stacks(target, keep_every_program, {}, early) as loaded:
        program, members, machine, direct = loaded
        sums = IdleSums(program, members)
        tracer = IdleTracer(program, sums, PeriodSample(program, keeps_all=every_period))
        tracer.stacks = stacks = WindowStacks(
            program, members, machine, direct=direct, take_wakings=sums.take_wakings, drain=tracer.drain_if_woken
        )
        members.add_all()
        yield tracer, stacks


@contextmanager
def trace_on_demand(target: Target) -> Iterator[tuple[IdleTracer, DemandStacks]]:
    """Trace idle exits without single periods, and the sleeps that idle exits are blamed on, for `TraceMonitor`.

    Raises CapabilityError, PowerprofError.
    """
    with _load_with_stacks(target, keep_latest_program, ON_DEMAND) as (program, members, machine, direct):
        members.counts_wakings = False
        sums = IdleSums(program, members)
        tracer = IdleTracer(program, sums, PeriodSample(program, wanted=False))
        tracer.stacks = stacks = DemandStacks(
            program, members, machine, direct=direct, take_wakings=sums.take_wakings, drain=tracer.drain_if_woken
        )
        if not target.system:
            members.add_all()
        yield tracer, stacks


@contextmanager
def _load_with_stacks(
    target: Target, retain: ImageRetention, more: Mapping[str, int | str], early: EarlyLoad | None = None
) -> Iterator[tuple[LoadedProgram, TargetMembers, Machine, bool]]:
    """Load the program with stacks. Yield it, an empty set of members, the machine and `direct` of StackReader."""
    taken = early.take() if early is not None else None
    loaded = taken or load_stack_program(target, early.more if early is not None else more)
    with loaded.program as program, closing(TargetMembers(program, target, JoinedProcesses(target), retain)) as members:
        yield program, members, loaded.machine, loaded.is_direct
