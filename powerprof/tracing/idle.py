# SPDX-License-Identifier: Apache-2.0
"""One traced window: edges that leave no idle period open, and everything that ended one in between."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace

import msgspec

from powerprof.measure.clock import CpuReading, Meters, Snapshot
from powerprof.measure.cpuidle import CpuidleReader, format_cpu_list, online_cpus, read_edge
from powerprof.measure.perf_events import IdleEvents
from powerprof.measure.procfs import compute_accounting, count_unseen, read_stat, read_unseen_counts
from powerprof.measure.residency import compute_residency, find_inconsistency
from powerprof.measure.sampling import format_now
from powerprof.measure.window import EnergySampler, PassedWindow, WindowPart, run_window
from powerprof.model.records import Note, Window
from powerprof.model.text import join_words
from powerprof.stacks.registers import X86_64, Machine, this_machine
from powerprof.system.closeable import Closeable
from powerprof.system.errors import CapabilityError
from powerprof.system.paths import is_this_host
from powerprof.system.processes import Target
from powerprof.system.tasks import check_process_ids
from powerprof.tracing import idle_data
from powerprof.tracing.bpf import features
from powerprof.tracing.bpf.loaded import LoadedProgram
from powerprof.tracing.bpf.objects import TRACEPOINTS
from powerprof.tracing.bpf.shared_numbers import Shared
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
from powerprof.tracing.idle_data import compute_traced_residency, write_shared
from powerprof.tracing.idle_members import (
    ImageRetention,
    JoinedProcesses,
    TargetMembers,
    keep_every_program,
    keep_latest_program,
)
from powerprof.tracing.idle_stacks import DemandStacks, IdleSums, StackReader, StackTrace
from powerprof.tracing.idle_tracer import IdleTrace, IdleTracer, PeriodSample
from powerprof.tracing.symbols import find_tick_handler, name_kernel_functions

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
        if end is not None and start.states and not find_inconsistency(start, end):
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


class WindowTracer(Closeable, WindowPart):
    """Measures traced windows with one tracer; the counters stay open between them. A context manager."""

    def __init__(self, tracer: IdleTracer, meters: Meters | None = None) -> None:
        self._tracer, self._meters = tracer, EnergySampler(meters)
        # The tracer forgets before the edge: exits between them would be forgotten too.
        self.parts: tuple[WindowPart, ...] = (tracer, self._meters, self)
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

        return _Edge(read_edge(self._reader, every_cpu=True, at_edge=at_edge), counts)

    def begin(self) -> None:
        self._started_at, self._stat, self._interrupts = format_now(), read_stat(), read_unseen_counts()
        # Wakings from before the first CPU's edge: an exit in a CPU's own window has its waking among them.
        self._tracer.start()
        self._before = self._edge(self._tracer.cpus.open)

    def end(self) -> None:
        self._after = self._edge(self._tracer.cpus.close)
        spent = compute_accounting(self._stat, read_stat())
        self._stat_idle_percent = None if spent is None else spent.idle_percent
        self._unseen = count_unseen(self._interrupts, read_unseen_counts())

    def _unseen_notes(self, exits_count: int) -> list[Note]:
        """Interrupts without a tracepoint, where they could have ended one idle period in a hundred."""
        count = sum(self._unseen.values())
        if count < max(_UNSEEN_FEWEST, _UNSEEN_SHARE * exits_count):
            return []
        named = join_words([f"{number:,} {name}" for name, number in self._unseen.items()])
        return [Note("interrupts_unseen", {"count": count, "named": named})]

    def measure(self, duration_s: float) -> TracedWindow:
        """Trace for `duration_s`. An interrupt ends the window early; the caller sees `interrupted`."""
        return self.collect(run_window(duration_s, *self.parts))

    def collect(self, passed: PassedWindow) -> TracedWindow:
        """What was traced between the edges."""
        before, after, trace = self._before, self._after, self._tracer.finish()
        started_at, stat_idle = self._started_at, self._stat_idle_percent
        edges = _edges(before, after, trace.totals)
        spans = [edge.end_ns - edge.start_ns for edge in edges.values()]
        window_s = sum(spans) / len(spans) / 1e9 if spans else passed.window_s
        if self._reader.cpus:
            residency = compute_residency(_counted(before.snapshot), _counted(after.snapshot), started_at=started_at)
        else:
            # A CPU that went away idled longer than anything was traced there.
            stayed = {cpu: edge for cpu, edge in edges.items() if cpu in after.snapshot.cpus}
            residency = compute_traced_residency(
                trace.totals, stayed, stat_idle_percent=stat_idle, own_pid=os.getpid(), started_at=started_at
            )
        notes = [*residency.notes, *passed.notes, *self._unseen_notes(int(trace.totals["count"].sum()))]
        if alone := find_unchecked_cpus(edges):
            cpus = format_cpu_list(alone)
            notes.append(f"CPU {cpus}: its idle exits were counted by the trace alone, cpuidle's counters were reset")
        residency = msgspec.structs.replace(residency, energy=self._meters.collect()[0], notes=notes)
        names, cut_short, cost_s = self._reader.state_names(), passed.interrupted is not None, passed.tool_cpu_s
        return TracedWindow(trace, edges, window_s, residency, names, cost_s, cut_short, stat_idle)


# Stacks for one window: every sleep of the target counts, from before the first CPU's edge until after the last.

# Of a process that had no other beside it yet seldom: what it starts the kernel tells, and each look wakes a CPU.
_LOOK_FOR_MEMBERS_S, _LOOK_BESIDE_ONE_S = 2.0, 20.0


class WindowStacks:
    """Beside idle exits (`tracer.TracePart`): `members` are the target's processes."""

    def __init__(self, program: LoadedProgram, stacks: StackReader, members: TargetMembers) -> None:
        self.members = members
        self._program, self._stacks = program, stacks
        self._counted_from_ns = self._counted_to_ns = 0

    def begin(self, meanwhile: Callable[[], object]) -> None:
        self._stacks.begin(meanwhile)

    def start(self) -> None:
        """Wakings count from here."""
        write_shared(self._program, Shared.COUNTING, 1)
        self._counted_from_ns = time.monotonic_ns()

    def read(self) -> None:
        self.members.read()

    @property
    def read_interval_s(self) -> float:
        """A process that joins the target, where any may, is looked at when the buffers are read."""
        if not self.members.may_grow:
            return math.inf
        return _LOOK_BESIDE_ONE_S if self.members.is_one_program else _LOOK_FOR_MEMBERS_S

    def end(self) -> None:
        """Wakings from here on are not the window's."""
        write_shared(self._program, Shared.COUNTING, 0)
        self._counted_to_ns = time.monotonic_ns()

    def cut(self, counters: Sequence[int]) -> None:
        self._stacks.cut(counters)

    def collect(self) -> StackTrace:
        """Everything about stacks since `begin` or the call before; to be called after the tracer's `finish`."""
        sites = self._stacks.take_sites()
        # Libraries may have been loaded and programs executed since; processes of the system may be new.
        self.members.add({site.pid for site in sites} | set(self.members.images))
        return self._stacks.take_trace(sites, self._counted_from_ns, self._counted_to_ns)


# The one place where the idle-exit program is loaded and its parts are put together: alone, with stacks, on demand.

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
# Of periods, 2 MiB are 7,000: the reader is called when a quarter of that waits. One page where none is sent.
EXIT_PAGES, _NO_EXIT_PAGES = 512, 1
# Of stacks, 4 MiB: the reader is called when 64 of the largest wait, and there is room for 190 more until it comes.
# What finds none is sent at the thread's next sleep.
_STACK_PAGES = 1024
# On demand 2 MiB, 128 of the largest: those of a second in which all programs of a host are new. What does not fit is
# sent again.
ON_DEMAND: Definitions = {"STACK_PAGES": 512, "ON_DEMAND": 1, "EXIT_PAGES": _NO_EXIT_PAGES}
# Distinct causes in one window: some 300 on an idle server, some thousand with stacks under load.
CAUSES, _CAUSES_WITH_STACKS = 8192, 32768
# Up to 20,000 switch-outs and wakings a second and CPU all are looked at, or 8,000 where it idles less than a tenth of
# the time; above that one in SAMPLE_1_IN.
LOADED_PER_100MS = 2000
SAMPLE_1_IN = 64
# What one thread may send in a window: 256 sites.
THREAD_STACKS = 256


def build_idle_definitions(btf: Btf) -> Definitions:
    """What the program needs to know of the running kernel. Without stacks."""
    values: Definitions = {
        **build_cpu_definitions(count_possible_cpus()),
        "EXIT_PAGES": EXIT_PAGES,
        "STACKS": 0,
        "CAUSE_SLOTS": CAUSES,
    }
    values["DIRECT"] = int(features.can_read_directly(btf))
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
    """The same where stacks are copied: of a window, every sleep's."""
    return {
        **build_idle_definitions(btf),
        **joining.definitions(btf),
        **build_register_definitions(btf, machine),
        **_thread_pointer(btf, machine),
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


def _thread_pointer(btf: Btf, machine: Machine) -> Definitions:
    """By which an interpreter knows the thread (pthread_self): on x86-64 alone that is the thread pointer itself."""
    if machine is not X86_64:
        return {}
    offset = btf.field_offset("task_struct", "thread") + btf.field_offset("thread_struct", "fsbase")
    return {"OFFSET_task_struct_thread_pointer": offset}


def load_idle_program(btf: Btf, definitions: Mapping[str, int | str]) -> LoadedProgram:
    """The program, loaded and running. Raises CapabilityError where this host or user may not."""
    cpus = int(definitions["NR_CPUS"])
    # Beside the kernel's verifier, which takes as long: the kernel makes its list of names while it is read.
    with ThreadPoolExecutor(1) as beside:
        handler = beside.submit(find_tick_handler, btf)
        program = LoadedProgram("idle.bpf.c", {**definitions, **build_cpu_definitions(cpus)}, btf=btf)
    try:
        # Not a definition: the kernel lies elsewhere after each boot.
        write_shared(program, Shared.TICK_HANDLER, handler.result())
    except BaseException:
        program.close()
        raise
    return program


def _tracing_btf() -> Btf:
    """Of the running kernel. A recorded host cannot be traced."""
    if not is_this_host():
        raise CapabilityError("cannot trace a recorded host", "unset POWERPROF_SYSFS and POWERPROF_PROCFS")
    features.require(features.RING_BUFFER)
    check_process_ids()
    return read_kernel_btf()


@contextmanager
def trace_exits(more: Mapping[str, int | str] | None = None) -> Iterator[IdleTracer]:
    """Idle exits alone. `more`: definitions beside the kernel's. Raises CapabilityError, PowerprofError."""
    btf = _tracing_btf()
    with load_idle_program(btf, {**build_idle_definitions(btf), **(more or {})}) as program:
        yield IdleTracer(program, IdleSums(program), PeriodSample(program), name_kernel_functions)


@contextmanager
def trace_stacks(target: Target, stack_pages: int = _STACK_PAGES) -> Iterator[tuple[IdleTracer, WindowStacks]]:
    """Idle exits, and every sleep of a target's threads; its processes are looked at. For windows.

    Raises CapabilityError, PowerprofError.
    """
    with _with_stacks(target, keep_every_program, {"STACK_PAGES": stack_pages}) as (program, sums, stacks, members):
        looks = WindowStacks(program, stacks, members)
        members.add_all()
        yield IdleTracer(program, sums, PeriodSample(program), name_kernel_functions, looks), looks


@contextmanager
def trace_on_demand(target: Target) -> Iterator[tuple[IdleTracer, DemandStacks]]:
    """Idle exits without single periods, and the sleeps that idle exits are blamed on. For `TraceMonitor`.

    Raises CapabilityError, PowerprofError.
    """
    with _with_stacks(target, keep_latest_program, ON_DEMAND) as (program, sums, stacks, members):
        looks = DemandStacks(program, sums, stacks, members)
        if not target.system:
            members.add_all()
        yield IdleTracer(program, sums, PeriodSample(program, wanted=False), name_kernel_functions, looks), looks


@contextmanager
def _with_stacks(
    target: Target, remember: ImageRetention, more: Mapping[str, int | str]
) -> Iterator[tuple[LoadedProgram, IdleSums, StackReader, TargetMembers]]:
    """The program with stacks, and the parts that keep what it gives. No process is looked at yet."""
    btf, machine, joining = _tracing_btf(), this_machine(), JoinedProcesses(target)
    definitions = {**build_stack_definitions(btf, machine, joining, system=target.system), **more}
    with (
        load_idle_program(btf, definitions) as program,
        closing(TargetMembers(program, target, joining, remember)) as members,
    ):
        sums = IdleSums(program, members)
        stacks = StackReader(program, sums, members, machine, direct=bool(definitions["DIRECT"]))
        yield program, sums, stacks, members
