# SPDX-License-Identifier: Apache-2.0
"""Trace idle exits: load the idle-exit program, run windows with it and collect their traces.

`trace_exits`, `trace_stacks` and `trace_on_demand` load the program and put the parts of a tracer together.
`WindowTracer` runs windows with a tracer; `TraceMonitor` (monitor.py) reads a tracer that runs all day.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace

import msgspec

from powerprof.measure.cpuidle import CpuidleReader, format_cpu_list, online_cpus, read_edge
from powerprof.measure.perf_events import IdleEvents
from powerprof.measure.procfs import compute_accounting, count_unseen, read_stat, read_unseen_counts
from powerprof.measure.residency import compute_residency, find_inconsistency
from powerprof.measure.window import (
    CpuReading,
    EnergySampler,
    Meters,
    PassedWindow,
    Snapshot,
    WindowPart,
    format_now,
    run_window,
)
from powerprof.model.records import Note, Window
from powerprof.model.text import join_words
from powerprof.stacks.registers import X86_64, Machine, this_machine
from powerprof.system.closeable import Closeable
from powerprof.system.errors import CapabilityError
from powerprof.system.paths import is_this_host
from powerprof.system.targets import Target
from powerprof.system.tasks import check_process_ids
from powerprof.tracing import idle_data
from powerprof.tracing.bpf import features
from powerprof.tracing.bpf.loaded import LoadedProgram
from powerprof.tracing.bpf.objects import TRACEPOINTS
from powerprof.tracing.bpf.shared_numbers import Count, Shared
from powerprof.tracing.bpf.types import (
    Btf,
    build_argument_definitions,
    build_cpu_definitions,
    build_register_definitions,
    build_struct_definitions,
    count_possible_cpus,
    read_kernel_btf,
)
from powerprof.tracing.captures import Array, CpuEdge, find_unchecked_cpus
from powerprof.tracing.idle_data import RunTimes, aggregate_exits, compute_traced_residency, write_shared
from powerprof.tracing.idle_stacks import (
    DemandStacks,
    ImageRetention,
    JoinedProcesses,
    TargetMembers,
    WindowStacks,
    keep_every_program,
    keep_latest_program,
)
from powerprof.tracing.idle_tables import CpuWindows, FillLimits, IdleSums, PeriodSample, RunTimeReader
from powerprof.tracing.kernel_symbols import find_tick_handler, name_kernel_functions

# Interrupts without a tracepoint are reported if there are ten, and one in a hundred idle exits.
_MIN_UNSEEN, _MIN_UNSEEN_SHARE = 10, 0.01


@dataclass(frozen=True)
class IdleTrace:
    """A collected trace: `causes` are the sums of all idle exits of the window (CAUSE).

    `lost_count`: exits that found no place in the table of causes. `sample`: an even sample of one in `sample_1_in`
    single periods (IDLE_EXIT) by time, open ones last, less `sample_lost_count` that did not fit into the ring buffer.
    `totals`: each CPU's own sums (CPU_TOTAL). `ran`: running time of threads. `run_time_s`: CPU time of the program.
    `addresses`: names of kernel functions by address.
    """

    causes: Array
    lost_count: int
    sample: Array
    sample_1_in: int
    sample_lost_count: int
    totals: Array
    ran: RunTimes
    run_time_s: float | None = None
    addresses: dict[int, str] = field(default_factory=dict)


class IdleTracer(WindowPart):
    """The running idle-exit program with the readers of its tables. `stacks` is a part that follows its windows."""

    def __init__(self, program: LoadedProgram, sums: IdleSums, sample: PeriodSample) -> None:
        self.program, self.cpus = program, CpuWindows(program)
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
        """Read the ring buffers and the tables that fill."""
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

    def drain_if_woken(self) -> None:
        """Read the ring buffers and the tables that fill, if the kernel has asked for it."""
        if self.program.waits("calls"):
            self._drain()

    def _drain(self) -> None:
        self.program.consume()
        self._sample.limit()
        self._fill_limits.drain(self._sums.gather)

    def _take(self, *, with_open: bool) -> IdleTrace:
        self.read()
        # Causes and CPUs' sums are compared with each other, so they are read at the same moment.
        causes = self._sums.take_causes(self.cpus.read_totals)
        totals, open_periods = self.cpus.take(with_open=with_open)
        ran = self._run_times.since(totals)
        if len(open_periods):
            causes = aggregate_exits(open_periods, causes)
        sample, sample_1_in = self._sample.take(open_periods)
        before, self._counters = self._counters, self.program.per_cpu_sum("counters")
        addresses = self._sums.functions_in(causes)
        if unknown := addresses - self._functions.keys():
            self._functions.update(dict.fromkeys(unknown, "") | name_kernel_functions(unknown))
        return IdleTrace(
            causes=causes,
            lost_count=self._counters[Count.LOST_EXITS] - before[Count.LOST_EXITS],
            sample=sample,
            sample_1_in=sample_1_in,
            sample_lost_count=self._counters[Count.LOST_SAMPLES] - before[Count.LOST_SAMPLES],
            totals=totals,
            ran=ran,
            run_time_s=self.program.run_time_s(),
            addresses={address: self._functions[address] for address in addresses if self._functions[address]},
        )


@dataclass(frozen=True)
class TracedWindow:
    """A trace with the window of each CPU.

    `tool_cpu_s`: powerprof's own CPU time in it. `state_names`: names of each CPU's idle states, by number.
    `stat_idle_percent`: idle time by /proc/stat. `counters`: the idle counters at both edges, from a monitor only.
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
        self.before = self._read(self._cpus.open)

    def end(self) -> None:
        self.after = self._read(self._cpus.close)
        spent = compute_accounting(self._stat, read_stat())
        self.stat_idle_percent = None if spent is None else spent.idle_percent
        self.unseen = count_unseen(self._interrupts, read_unseen_counts())

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


class WindowTracer(Closeable):
    """Measures traced windows with one tracer. Counters stay open between windows. A context manager.

    `parts` are the parts of such a window, for callers that run it with others.
    """

    def __init__(self, tracer: IdleTracer, meters: Meters | None = None) -> None:
        self._tracer, self._meters, self._edges = tracer, EnergySampler(meters), _CpuEdges(tracer)
        # The edges come last, so wakings count from before the first CPU's edge until after the last one's.
        self.parts: tuple[WindowPart, ...] = (self._meters, tracer, self._edges)

    def close(self) -> None:
        self._edges.close()

    def measure(self, duration_s: float) -> TracedWindow:
        """Trace for `duration_s`. An interrupt ends the window early and sets `interrupted`."""
        return self.collect(run_window(duration_s, *self.parts))

    def collect(self, passed: PassedWindow) -> TracedWindow:
        """Return the trace between the edges."""
        trace, before, after = self._tracer.finish(), self._edges.before.snapshot, self._edges.after.snapshot
        started_at, stat_idle_percent = self._edges.started_at, self._edges.stat_idle_percent
        edges = _compute_edges(self._edges.before, self._edges.after, trace.totals)
        spans = [edge.end_ns - edge.start_ns for edge in edges.values()]
        window_s = sum(spans) / len(spans) / 1e9 if spans else passed.window_s
        if self._edges.reader.cpus:
            residency = compute_residency(_with_states(before), _with_states(after), started_at=started_at)
        else:
            # A CPU that went offline idled longer than its trace.
            stayed = {cpu: edge for cpu, edge in edges.items() if cpu in after.cpus}
            residency = compute_traced_residency(
                trace.totals, stayed, stat_idle_percent=stat_idle_percent, own_pid=os.getpid(), started_at=started_at
            )
        notes = [*residency.notes, *passed.notes, *self._unseen_notes(int(trace.totals["count"].sum()))]
        if unchecked := find_unchecked_cpus(edges):
            cpus = format_cpu_list(unchecked)
            notes.append(f"CPU {cpus}: its idle exits were counted by the trace alone, cpuidle's counters were reset")
        return TracedWindow(
            trace,
            edges,
            window_s,
            msgspec.structs.replace(residency, energy=self._meters.collect()[0], notes=notes),
            self._edges.reader.state_names(),
            passed.tool_cpu_s,
            interrupted=passed.interrupted is not None,
            stat_idle_percent=stat_idle_percent,
        )

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


Definitions = dict[str, int | str]
_FIELDS = {
    "task_struct_pid": ("task_struct", "pid"),
    "task_struct_tgid": ("task_struct", "tgid"),
    "task_struct_comm": ("task_struct", "comm"),
    "task_struct_stack": ("task_struct", "stack"),
    "task_struct_nvcsw": ("task_struct", "nvcsw"),
    "task_struct_nivcsw": ("task_struct", "nivcsw"),
    "task_struct_flags": ("task_struct", "flags"),
    "task_struct_start_time": ("task_struct", "start_time"),
    "hrtimer_function": ("hrtimer", "function"),
    "timer_list_function": ("timer_list", "function"),
    "work_struct_func": ("work_struct", "func"),
}
_STACK_FIELDS = {"task_struct_mm": ("task_struct", "mm"), "mm_struct_start_stack": ("mm_struct", "start_stack")}
# 2 MiB hold 7,000 periods. The reader is woken when a quarter of the buffer is full.
EXIT_PAGES, _NO_EXIT_PAGES = 512, 1
# 4 MiB of stacks: the reader is woken when 64 of the largest stacks are waiting, and 190 more fit until it reads them.
# A stack that does not fit is sent at the thread's next sleep.
_STACK_PAGES = 1024
# 2 MiB on demand: 128 of the largest stacks, as many as in a second in which all programs of a host are new. A stack
# that does not fit is sent again.
ON_DEMAND: Definitions = {"STACK_PAGES": 512, "ON_DEMAND": 1, "EXIT_PAGES": _NO_EXIT_PAGES}
# Distinct causes of one window: about 300 on an idle server, some thousand with stacks under load.
CAUSES, _CAUSES_WITH_STACKS = 8192, 32768
# Every switch-out and waking is examined up to 20,000 per second and CPU, or 8,000 if the CPU idles less than a tenth
# of the time. Above that rate, one in SAMPLE_1_IN is examined.
LOADED_PER_100MS = 2000
SAMPLE_1_IN = 64
# Sites that one thread may send in a window.
THREAD_STACKS = 256


def build_idle_definitions(btf: Btf) -> Definitions:
    """Return the definitions of the idle-exit program for this kernel, without stacks."""
    values: Definitions = {
        **build_cpu_definitions(count_possible_cpus()),
        "EXIT_PAGES": EXIT_PAGES,
        "STACKS": 0,
        "CAUSE_SLOTS": CAUSES,
    }
    values["DIRECT"] = int(features.can_read_directly(btf))
    on_rq = values["OFFSET_task_struct_on_rq"] = btf.field_offset("task_struct", "on_rq")
    # Before 6.12 no sleeper stays in a run queue: the highest byte of `on_rq` is always 0.
    values["OFFSET_task_struct_sched_delayed"] = (
        btf.field_offset("task_struct", "se") + btf.field_offset("sched_entity", "sched_delayed")
        if btf.has_field("sched_entity", "sched_delayed")
        else on_rq + 3
    )
    values.update(build_struct_definitions(btf, _FIELDS))
    values.update(idle_data.run_time_definitions(btf))
    if btf.has_field("task_struct", "on_cpu"):
        values["OFFSET_task_struct_on_cpu"] = btf.field_offset("task_struct", "on_cpu")
    values.update(features.build_interrupt_definitions(btf))
    values["COARSE_CLOCK"] = features.choose_coarse_clock()
    values.update(build_argument_definitions(btf, "sched_switch", ("preempt", "prev", "next"), "prev_state"))
    values.update({f"HAVE_{name}": 1 for name in TRACEPOINTS if btf.has_tracepoint(name)})
    return values


def build_stack_definitions(btf: Btf, machine: Machine, joining: JoinedProcesses, *, system: bool) -> Definitions:
    """Return the definitions of the idle-exit program with stacks: of a window, at every sleep."""
    # An interpreter knows a thread by pthread_self. Only on x86-64 that is the thread pointer itself.
    thread_pointer: Definitions = {}
    if machine is X86_64:
        offset = btf.field_offset("task_struct", "thread") + btf.field_offset("thread_struct", "fsbase")
        thread_pointer = {"OFFSET_task_struct_thread_pointer": offset}
    return {
        **build_idle_definitions(btf),
        **joining.definitions(btf),
        **build_register_definitions(btf, machine),
        **thread_pointer,
        **build_struct_definitions(btf, _STACK_FIELDS),
        "STACKS": 1,
        "CAUSE_SLOTS": _CAUSES_WITH_STACKS,
        "LOADED_PER_100MS": LOADED_PER_100MS,
        "SATURATED_PER_100MS": LOADED_PER_100MS * 2 // 5,
        "SAMPLE_1_IN": SAMPLE_1_IN,
        "THREAD_STACKS": THREAD_STACKS,
        "TARGET_ALL": int(system),
        "ON_DEMAND": 0,
        "STACK_PAGES": _STACK_PAGES,
    }


def load_idle_program(btf: Btf, definitions: Mapping[str, int | str]) -> LoadedProgram:
    """Load and attach the idle-exit program. Raises CapabilityError if this host or user may not."""
    cpus = int(definitions["NR_CPUS"])
    # Next to the kernel's verifier, which takes as long: the kernel makes its list of names while it is read.
    with ThreadPoolExecutor(1) as executor:
        handler = executor.submit(find_tick_handler, btf)
        program = LoadedProgram("idle.bpf.c", {**definitions, **build_cpu_definitions(cpus)}, btf=btf)
    try:
        # Not a definition, because the kernel's addresses change with each boot.
        write_shared(program, Shared.TICK_HANDLER, handler.result())
    except BaseException:
        program.close()
        raise
    return program


def _tracing_btf() -> Btf:
    """Return the types of the running kernel. Raises CapabilityError if it cannot be traced."""
    if not is_this_host():
        raise CapabilityError("cannot trace a recorded host", "unset POWERPROF_SYSFS and POWERPROF_PROCFS")
    features.require(features.RING_BUFFER)
    check_process_ids()
    return read_kernel_btf()


@contextmanager
def trace_exits(more: Mapping[str, int | str] | None = None) -> Iterator[IdleTracer]:
    """Trace idle exits without stacks. `more`: further definitions. Raises CapabilityError, PowerprofError."""
    btf = _tracing_btf()
    with load_idle_program(btf, {**build_idle_definitions(btf), **(more or {})}) as program:
        yield IdleTracer(program, IdleSums(program), PeriodSample(program))


@contextmanager
def trace_stacks(target: Target, stack_pages: int = _STACK_PAGES) -> Iterator[tuple[IdleTracer, WindowStacks]]:
    """Trace idle exits and every sleep of a target's threads, for windows. Raises CapabilityError, PowerprofError."""
    with _load_with_stacks(target, keep_every_program, {"STACK_PAGES": stack_pages}) as loaded:
        program, members, machine, direct = loaded
        sums = IdleSums(program, members)
        tracer = IdleTracer(program, sums, PeriodSample(program))
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
    target: Target, retain: ImageRetention, more: Mapping[str, int | str]
) -> Iterator[tuple[LoadedProgram, TargetMembers, Machine, bool]]:
    """Load the program with stacks. Yield it, an empty set of members, the machine and `direct` of StackReader."""
    btf, machine, joining = _tracing_btf(), this_machine(), JoinedProcesses(target)
    definitions = {**build_stack_definitions(btf, machine, joining, system=target.system), **more}
    with (
        load_idle_program(btf, definitions) as program,
        closing(TargetMembers(program, target, joining, retain)) as members,
    ):
        yield program, members, machine, bool(definitions["DIRECT"])
