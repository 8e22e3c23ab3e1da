# SPDX-License-Identifier: Apache-2.0
"""The loop of `watch` and `export`: one tracer and one interval after another.

The loop keeps running while processes, CPUs and servers come and go, logs rotate, and the host suspends.
"""

from __future__ import annotations

import ctypes
import gc
import math
import os
import resource
import time
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from powerprof.attribution import blame
from powerprof.attribution.capture import Capture
from powerprof.attribution.sites import SiteStacks, StackMemo
from powerprof.attribution.window import CaptureContext, build_capture
from powerprof.diagnosis.statement_window import join_windows
from powerprof.energy.request import DEFAULT_REQUEST, EnergyRequest
from powerprof.energy.total import HostMeters, host_meters
from powerprof.energy.windows import WindowEnergy
from powerprof.live import naming
from powerprof.live.intervals import CpuUse, LiveInterval, Span, build_interval, format_changed_cpus, measure_span
from powerprof.live.servers import ASK_EVERY_S, WatchedServers
from powerprof.live.statements import ServedServer, ServedServers
from powerprof.measure.clock import SuspendClock, format_now, kernel_ns
from powerprof.measure.cpuidle import online_cpus
from powerprof.measure.procfs import process_cpu_ns, reaped_cpu_ns
from powerprof.measure.target_life import TargetEndedError, TargetLife
from powerprof.measure.window import EnergySampler, WindowPart, wait_and_read
from powerprof.model.attribution import Attribution
from powerprof.model.records import Ended
from powerprof.model.text import Say
from powerprof.stacks.store import TableStore
from powerprof.system import capabilities
from powerprof.system.cgroups import Units
from powerprof.system.closeable import Closeable
from powerprof.system.errors import PowerprofError
from powerprof.system.processes import list_pids, name_of
from powerprof.system.server_names import is_server_program
from powerprof.system.targets import Target, refresh_target
from powerprof.system.tasks import Task, has_ended, look_up
from powerprof.tracing import monitor
from powerprof.tracing.bpf.cost_meter import CostMeter, EventCounter
from powerprof.tracing.bpf.shared_numbers import StackKind
from powerprof.tracing.budget import LEAST_CPUS_WITH_FIXED_COST, Budget
from powerprof.tracing.idle import TracedWindow, trace_on_demand
from powerprof.tracing.idle_stacks import StackTrace
from powerprof.tracing.kernel_symbols import InterruptNames
from powerprof.tracing.slices import Slicer, UseClock

# glibc, include/malloc.h
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8
_LARGE_BLOCK_BYTES = 128 << 10
# Growth of the resident memory before free memory is given back.
_MAX_GROWTH_BYTES = 1 << 20
# The clocks of processes are read if the CPUs ran for this share of the last interval.
BUSY_SHARE = 0.5
# Processes with a smaller share of one CPU are not named.
_MIN_CPU_SHARE = 0.002
# While tracing costs less than the bound, the cost is looked at in this interval. A storm is noticed at once, because
# the kernel wakes the reader after some thousand idle exits.
_LOOK_S = 5.0
# Servers are queried early if the rate of idle exits changes by this factor and by more than the noise of a tick.
_RATE_JUMP, _MIN_JUMP_HZ = 2.0, 15.0
# The weight of a new rate in the usual rate.
_RATE_WEIGHT = 0.2
# The named stacks that are kept: enough for hundreds of threads at dozens of sites.
_MAX_STACKS = 4000
# The threads with a cached name.
_MAX_THREADS = 1000
# Caches of programs and threads grow with every new one. They are cleared at this interval.
_CLEAR_CACHES_S = 3600.0


class IntervalClock:
    """A clock for ends of intervals at even distances, in seconds of a monotonic clock.

    Naming, blaming and querying after an interval use the time of the next one, which still ends on time. If it would
    be shorter than half an interval, the sequence of ends starts again.
    """

    def __init__(self, interval_s: float, now_s: float) -> None:
        self._interval_s, self._end_s = interval_s, now_s

    def next_end_s(self, now_s: float) -> float:
        """Return the end of the next interval, at least half an interval from now."""
        self._end_s += self._interval_s
        if self._end_s - now_s < self._interval_s / 2:
            self._end_s = now_s + self._interval_s / 2
        return self._end_s


class BusyProcesses:
    """The CPU time of processes on a busy host, from one end of an interval to the next.

    A busy host has few idle periods, so their causes do not show the work of the CPUs. Reading the clocks costs a
    system call per process. They are read only at the start and after a busy interval.
    """

    def __init__(self) -> None:
        self._clocks: dict[int, int] | None = _read_clocks()

    def measure(self, busy_share: float | None, window_s: float) -> dict[str, CpuUse] | None:
        """Return CPU time by process name in the interval that ends now; None if it or the one before was not busy.

        `busy_share` is the running time of all CPUs as a share of their time. powerprof and ended processes are left
        out.
        """
        if busy_share is None or busy_share < BUSY_SHARE:
            self._clocks = None
            return None
        before, self._clocks = self._clocks, _read_clocks()
        if before is None:
            return None
        by_name: dict[str, list[int]] = {}
        for pid, clock_ns in self._clocks.items():
            used_ns = clock_ns - before.get(pid, clock_ns + 1)
            if used_ns >= _MIN_CPU_SHARE * window_s * 1e9 and (name := name_of(pid)) is not None:
                by_name.setdefault(name, []).append(used_ns)
        return {name: CpuUse(len(used_ns), sum(used_ns) / 1e9) for name, used_ns in by_name.items()}


class TargetClock:
    """The CPU time of the target's processes, from one end of an interval to the next."""

    def __init__(self, target: Target) -> None:
        self._at_s, self._clocks = time.monotonic(), _read_target_clocks(target)

    def take_percent(self, target: Target) -> float | None:
        """Return the CPU use since the last call in percent of one CPU; None if all processes have ended.

        The time of a process that ended moves to its parent, if that belongs to the target.
        """
        before_s, before = self._at_s, self._clocks
        self._at_s, self._clocks = time.monotonic(), _read_target_clocks(target)
        if not self._clocks or self._at_s <= before_s:
            return None
        used_ns = sum(clock_ns - before[pid] for pid, clock_ns in self._clocks.items() if pid in before)
        if target.roots:
            # Their new processes began in this interval.
            used_ns = max(used_ns, sum(self._clocks.values()) - sum(before.values()))
        return max(0, used_ns) / (self._at_s - before_s) / 1e7


def _read_target_clocks(target: Target) -> dict[int, int]:
    """Return the CPU time of each process of the target and of its ended children, in nanoseconds."""
    clocks = {pid: process_cpu_ns(pid) for pid in target.members() or target.pids}
    return {pid: clock_ns + reaped_cpu_ns(pid) for pid, clock_ns in clocks.items() if clock_ns is not None}


def _read_clocks() -> dict[int, int]:
    """Return the CPU time of every process except this one, in nanoseconds."""
    clocks = {pid: process_cpu_ns(pid) for pid in list_pids() if pid != os.getpid()}
    return {pid: clock_ns for pid, clock_ns in clocks.items() if clock_ns is not None}


def limit_heap() -> None:
    """Keep the heap small from now on: one arena for all threads, and a separate mapping for each large block.

    By default glibc has an arena per thread that never shrinks, and raises both thresholds with each freed block.
    Present objects are frozen, so that Python's collector does not visit them again. Other C libraries are left alone.
    """
    gc.collect()
    gc.freeze()
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_ARENA_MAX, 1)
        mallopt(_M_MMAP_THRESHOLD, _LARGE_BLOCK_BYTES)
        mallopt(_M_TRIM_THRESHOLD, _LARGE_BLOCK_BYTES)


class HeapTrimmer:
    """Gives free heap memory back to the kernel after growth. A trim takes half a millisecond."""

    def __init__(self) -> None:
        self._malloc_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        self._least_bytes = _read_resident_bytes()

    def trim(self) -> int:
        """Return the resident memory of this process in bytes, after a trim if it has grown."""
        resident = _read_resident_bytes()
        self._least_bytes = min(self._least_bytes, resident)
        if self._malloc_trim is not None and resident - self._least_bytes > _MAX_GROWTH_BYTES:
            self._malloc_trim(ctypes.c_size_t(0))
            resident = self._least_bytes = _read_resident_bytes()
        return resident


def _read_resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _read_cpu_s() -> float:
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


class OwnCpuTime:
    """The CPU time of powerprof and of its programs, from one end of an interval to the next."""

    def __init__(self, meter: CostMeter) -> None:
        self._meter = meter

    def restart(self) -> None:
        """Begin the first interval. Earlier CPU time does not count."""
        self._meter.begin()
        self._cpu_s, self._programs_s = _read_cpu_s(), 0.0

    def take_cpu_s(self) -> float:
        """Return the CPU seconds since the last call."""
        before_s, self._cpu_s = self._cpu_s, _read_cpu_s()
        return self._cpu_s - before_s

    def take_programs_s(self) -> float | None:
        """Return the seconds in programs and to enter them since the last call; None if the kernel reports no time."""
        before_s, self._programs_s = self._programs_s, self._meter.spent().whole_s
        return self._programs_s - before_s if self._meter.is_known else None


class MonitorPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The choices of a monitor.

    Attributes:
        ask_servers: Whether the database servers of the target are queried, and not only judged by their processes.
        accounts: Option files with accounts of servers. Other servers are queried as the system user.
        settle: Whether capabilities are dropped after loading.
        keep_newest: Whether `HostMonitor.newest` is called, and intervals have the CPU time of processes.
        statements: Servers whose statements are measured: process ids or names, socket paths, or `all`.
        target_statements: Whether the statements of a server that is the target are measured, if this host allows it.
        max_cost: The bound of the cost of tracing, as a share of CPU time (`tracing.budget`); None: no bound.
        bounds_by_host: Whether that is the CPU time of the host, and not of the target.
    """

    target: Target
    interval_s: float = 5.0
    energy: EnergyRequest = DEFAULT_REQUEST
    ask_servers: bool = True
    ask_every_s: float = ASK_EVERY_S
    accounts: tuple[Path, ...] = ()
    settle: bool = True
    keep_newest: bool = False
    statements: tuple[str, ...] = ()
    target_statements: bool = False
    max_cost: float | None = None
    bounds_by_host: bool = False


class HostMonitor(Closeable):
    """A context that measures one interval after another."""

    def __init__(self, plan: MonitorPlan, say: Say) -> None:
        self._plan, self._say, self._target = plan, say, plan.target
        self._stack = ExitStack()
        pids = None if plan.target.system else plan.target.pids
        self._servers = WatchedServers(pids, plan.ask_every_s, plan.accounts, asks=plan.ask_servers)
        self._suspended = SuspendClock()
        self._usual_hz: float | None = None
        self._host_meters: HostMeters | None = None
        self._tasks: OrderedDict[int, Task] = OrderedDict()
        self._naming_budget = naming.TimeBudget()
        self._clear_caches()
        self._end: Ended | None = None
        self._is_gone = False
        self._newest: tuple[Capture, Attribution, SiteStacks] | None = None

    def _open(self) -> None:
        """Load the tracer and begin the first interval.

        Raises:
            CapabilityError: This host cannot be traced.
            PowerprofError: The target has ended.
        """
        from powerprof.host.describe import host_record

        plan, stack = self._plan, self._stack
        self._say("loading the tracer")
        self._host: dict[str, Any] = host_record()
        self._energy = stack.enter_context(WindowEnergy(plan.energy))
        self._tracer, self._looks = stack.enter_context(trace_on_demand(plan.target))
        self._looks.members.require_one()
        self._life = TargetLife(plan.target, math.inf)
        stack.callback(self._stop_watching)
        self._events = stack.enter_context(EventCounter())
        self._meter = stack.enter_context(CostMeter(self._tracer.program, self._events.read))
        self._own = OwnCpuTime(self._meter)
        self._used = UseClock(replace(self._target, system=True) if plan.bounds_by_host else self._target)
        stack.callback(self._servers.close)
        self._trouble = ""
        if plan.statements:
            self._say("loading the tracer of statements")
        self._served = stack.enter_context(ServedServers(plan.statements, ask=plan.ask_servers))
        if plan.target_statements and (server := _find_database_server(plan.target)) is not None:
            self._say("loading the tracer of statements")
            try:
                self._served.servers["target"] = ServedServer(str(server), ask=False, is_patient=True, rests=True)
            except PowerprofError as error:
                self._trouble = f"statements: {error.message}"
        capabilities.drop_privileges(plan.settle)
        limit_heap()
        self._heap = HeapTrimmer()
        # The time of loading counts in no interval.
        self._own.restart()
        self._start_tracing()
        stack.callback(self._stop_tracing)
        self._suspended.since_s()
        self._clock = IntervalClock(plan.interval_s, time.monotonic())
        self._busy = BusyProcesses() if plan.keep_newest else None
        self._target_clock = TargetClock(self._target) if plan.keep_newest and not self._target.system else None

    def close(self) -> None:
        self._stack.close()

    def _start_tracing(self) -> None:
        """Trace the CPUs that are online now."""
        self._cpus, self._ahead_count = online_cpus(), 0
        if not self._tracer.program.is_attached:
            self._tracer.program.attach()
            self._meter.resume()
        self._monitor = monitor.TraceMonitor(self._tracer).__enter__()
        self._slicer = self._make_slicer()
        self._slicer.begin()
        self._metered_s = time.monotonic()
        if self._energy.meters is not None:
            self._energy.meters.sample()

    def _make_slicer(self) -> WindowPart:
        if self._plan.max_cost is None:
            return WindowPart()
        self._tracer.report_storms()
        return Slicer(
            self._meter,
            self._used.read_s,
            self._events.read,
            Budget(self._plan.max_cost, LEAST_CPUS_WITH_FIXED_COST),
            math.inf,
            wake_descriptor=self._tracer.wake_descriptor,
            start_slice=self._monitor.start_slice,
            end_slice=self._monitor.end_slice,
            look_s=_LOOK_S,
        )

    def _stop_tracing(self) -> None:
        # A change of the CPUs replaces the monitor.
        self._monitor.close()

    def intervals(self) -> Iterator[LiveInterval]:
        """Yield intervals until a signal raises Interrupted."""
        while True:
            yield self.next()

    def next(self) -> LiveInterval:
        """Wait for the end of the next interval, or of the target, and return it.

        Raises:
            Interrupted: A signal arrived.
            TargetEndedError: The target ended in the interval before, and no name finds another process.
        """
        # Nothing of the last interval is in use now, so this is the memory of the monitor while it waits.
        memory_bytes = self._heap.trim()
        self._refresh_target()
        self._servers.begin_window()
        self._looks.measure(self._servers.queried_pids)
        self._served.find(self._servers.pids)
        for served in self._served.servers.values():
            served.begin()
        # The process wakes only if a buffer or table fills, or a meter's counter would wrap.
        now_s = time.monotonic()
        observers = (self._tracer, EnergySampler(self._energy.meters))
        self._life.begin()
        wait_and_read((*observers, self._life, self._slicer), self._clock.next_end_s(now_s) - now_s)
        self._look_at_target()
        for served in self._served.servers.values():
            served.end()
        percent = None if self._target_clock is None else self._target_clock.take_percent(self._target)
        window = self._monitor.read()
        # Read the time before naming and blaming, which take up to a second if programs are new.
        ended_at = format_now(_compute_age_s(window))
        window = self._add_energy(window)
        stacks = self._pending.add_earlier(_scale_wakings(self._looks.collect(), self._monitor.traced_share))
        sites = naming.rank_sites(window.trace.causes)
        self._naming_budget.earn(window.window_s)
        unnamed = self._list_unnamed(sites)
        if sum(sites[site] for site in unnamed) > naming.HOT_SHARE * int(window.trace.causes["count"].sum()):
            self._naming_budget.resume()
        naming.snapshot_processes(self._looks, unnamed, self._naming_budget)
        interrupts = self._interrupts.of(window.trace.causes)
        context = CaptureContext(
            self._target, self._host, interrupts, self._looks.members.notes(), self._units, self._look_up
        )
        capture = build_capture(context, window, stacks, self._energy, self._servers.thread_names())
        record = self._blame(capture, sites)
        online = online_cpus()
        interval = build_interval(
            record,
            _measure_counters(window),
            ended_at=ended_at,
            processes={task.pid: task.process for task in capture.tasks if task.pid is not None},
            meters=self._choose_host_meters(record),
            own_cpu_s=self._own.take_cpu_s(),
            own_bpf_s=self._own.take_programs_s(),
            own_memory_bytes=memory_bytes,
            suspended_s=self._suspended.since_s(),
            ahead_count=self._ahead_count,
        )
        self._ahead_count = interval.ahead_count
        interval = msgspec.structs.replace(
            interval,
            ended=self._end,
            traced_percent=100.0 * self._monitor.traced_share,
            max_cost_percent=None if self._plan.max_cost is None else 100.0 * self._plan.max_cost,
        )
        if self._monitor.traced_share < 1.0:
            # The trace was scaled to the kernel's count.
            interval = msgspec.structs.replace(interval, balance_error=None)
        if self._busy is not None:
            share = None if interval.c0_percent is None else interval.c0_percent / 100.0
            interval = msgspec.structs.replace(interval, used=self._busy.measure(share, interval.window_s))
        if self._target_clock is not None:
            interval = msgspec.structs.replace(interval, target=self._target.label, target_percent=percent)
        for served in self._served.servers.values():
            interval = self._add_statements(interval, served, window)
        if self._trouble:
            interval = msgspec.structs.replace(interval, notes=(*interval.notes, self._trouble))
        # The counters already have a note on removed CPUs. Without a cpuidle driver there are no counters.
        changed = set(online) - set(self._cpus) if _has_counters(window) else set(online) ^ set(self._cpus)
        if changed:
            interval = msgspec.structs.replace(interval, notes=(*interval.notes, format_changed_cpus(sorted(changed))))
        windows = {
            served.pid: join_windows(served.windows)
            for served in self._served.servers.values()
            if served.pid is not None
        }
        servers, findings = self._servers.end_window(record, windows)
        notes = (*interval.notes, *self._servers.notes)
        interval = msgspec.structs.replace(interval, servers=servers, findings=findings, notes=notes)
        self._react_to_rate(interval)
        self._adapt(stacks, online)
        return interval

    def _add_statements(self, interval: LiveInterval, served: ServedServer, window: TracedWindow) -> LiveInterval:
        if served.is_resting:
            served.windows.clear()
            return msgspec.structs.replace(interval, notes=(*interval.notes, f"statements: {served.trouble}"))
        statements = served.collect(window.residency, self._energy)
        if statements.by_cost is None:
            served.windows.clear()  # The server was away.
        else:
            served.windows.append(statements.by_cost)
        own = interval.own
        if statements.bpf_s is not None:
            own = msgspec.structs.replace(own, bpf_s=(own.bpf_s or 0.0) + statements.bpf_s)
        notes = (*interval.notes, f"statements: {served.trouble}") if served.trouble else interval.notes
        if interval.statements is not None:
            others = (*interval.other_statements, statements)
            return msgspec.structs.replace(interval, other_statements=others, own=own, notes=notes)
        return msgspec.structs.replace(interval, statements=statements, own=own, notes=notes)

    def _add_energy(self, window: TracedWindow) -> TracedWindow:
        meters = self._energy.meters
        if meters is None:
            return window
        meters.sample()
        began_s, self._metered_s = self._metered_s, time.monotonic()
        readings = meters.readings(began_s, self._metered_s)
        return replace(window, residency=msgspec.structs.replace(window.residency, energy=readings))

    def _list_unnamed(self, sites: Iterable[naming.ProcessSite]) -> list[naming.ProcessSite]:
        """Return the sites without a name, and those of processes without a snapshot."""
        images = self._looks.members.images
        return [
            (pid, key)
            for pid, key in sites
            if pid not in images or self._memo.get((StackKind.SLEEPER, pid, images[pid][0].started_ticks, key)) is None
        ]

    def _blame(self, capture: Capture, sites: Iterable[naming.ProcessSite]) -> Attribution:
        stacks = SiteStacks(capture, self._store, self._memo)
        naming.name_stacks(stacks, sites, self._store, self._naming_budget)
        unnamed = set(self._list_unnamed(sites))
        self._pending.drop_named(key for pid, key in sites if (pid, key) not in unnamed)
        self._pending.drop_ended()
        record = blame.build_attribution(capture, stacks)
        if self._plan.keep_newest:
            self._newest = capture, record, stacks
        return record

    def newest(self) -> tuple[Capture, Attribution] | None:
        """Return the newest capture and attribution, to be saved.

        The capture has the names of its stacks, because their bytes may be dropped.
        """
        if self._newest is None:
            return None
        capture, record, stacks = self._newest
        return msgspec.structs.replace(capture, named=stacks.export_names()), record

    def _look_up(self, tid: int, pid: int | None, comm: str, is_kernel: bool | None) -> Task:
        """Return the task of a thread, from the cache unless its process or name has changed."""
        task = self._tasks.get(tid)
        if task is None or (pid is not None and task.pid != pid) or (comm and task.comm != comm):
            task = look_up(tid, pid, comm, is_kernel)
            if not task.is_kernel and task.pid is not None:
                task = msgspec.structs.replace(task, unit=self._units.of(task.pid))
            self._tasks[tid] = task
        # Evict the least recently used, so that short-lived threads do not displace the regular ones.
        self._tasks.move_to_end(tid)
        if len(self._tasks) > _MAX_THREADS:
            self._tasks.popitem(last=False)
        return task

    def _look_at_target(self) -> None:
        """Note whether the target ended, was stopped or changed in the interval, and watch the remaining processes."""
        self._end = None
        if self._is_gone:
            return
        self._life.read()
        self._end = self._life.early_end
        if self._end is not None:
            left = [pid for pid in self._target.roots or self._target.pids if not has_ended(pid)]
            self._is_gone = not left
            self._watch(left)

    def _stop_watching(self) -> None:
        # The end of a process replaces it.
        self._life.close()

    def _watch(self, first: Sequence[int]) -> None:
        """Watch the life of these first processes of the target from now on."""
        self._life.close()
        pids = tuple(first)
        roots = pids if self._target.roots else ()
        self._life = TargetLife(replace(self._target, pids=pids, roots=roots), math.inf)

    def _refresh_target(self) -> None:
        target = refresh_target(self._target)
        if self._is_gone and not target.names:
            assert self._end is not None  # noqa: S101  in the last interval
            error = TargetEndedError(msgspec.structs.replace(self._end, after_s=None))
            error.hint = f"name it by --pid {target.label}: powerprof then waits for it"
            raise error
        if target is not self._target:
            self._target, self._is_gone = target, False
            self._watch(target.roots or target.pids)
            self._looks.members.follow(target)
            if not self._plan.bounds_by_host:
                self._used.follow(target)
            self._servers.restrict_to(target.pids)
            if (served := self._served.servers.get("target")) and (server := _find_database_server(target)) is not None:
                served.follow(str(server))

    def _adapt(self, stacks: StackTrace, online: list[int]) -> None:
        """Adapt to changed CPUs, full caches and stacks that the kernel did not send."""
        if online != self._cpus:
            self._stop_tracing()
            self._start_tracing()
        if time.monotonic() - self._cleared_s > _CLEAR_CACHES_S:
            self._clear_caches()
            self._looks.reset()
        elif stacks.unsent_count or stacks.lost_count:
            self._looks.send_again()

    def _clear_caches(self) -> None:
        self._store, self._memo = TableStore(), StackMemo(_MAX_STACKS)
        self._pending = naming.PendingStacks(lambda pid: process_cpu_ns(pid) is None)
        self._interrupts, self._units = InterruptNames(), Units()
        self._cleared_s = time.monotonic()
        self._tasks.clear()

    def _choose_host_meters(self, record: Attribution) -> HostMeters | None:
        """Return the meters of the host's sum. They are chosen once, so that all intervals sum the same domains."""
        if self._host_meters is None:
            self._host_meters = host_meters([record.energy])
        return self._host_meters

    def _react_to_rate(self, interval: LiveInterval) -> None:
        """Query the servers early if the rate of idle exits jumps, so that a storm is reported within two intervals."""
        hz = interval.exits_hz
        if hz is None:
            return
        usual = self._usual_hz
        if usual is not None and (hz > _RATE_JUMP * usual + _MIN_JUMP_HZ or usual > _RATE_JUMP * hz + _MIN_JUMP_HZ):
            self._servers.query_early()
            self._usual_hz = hz
        else:
            self._usual_hz = hz if usual is None else usual + _RATE_WEIGHT * (hz - usual)


def _scale_wakings(stacks: StackTrace, traced_share: float) -> StackTrace:
    """Return the wakings of the whole interval, of which this share was traced."""
    if traced_share == 1.0 or not traced_share:
        return stacks
    wakings = [replace(waking, count=round(waking.count / traced_share)) for waking in stacks.wakings]
    return replace(stacks, wakings=wakings)


def _find_database_server(target: Target) -> int | None:
    """Return the process of the database server, if exactly one process that started the others is one."""
    roots = [] if target.system else target.roots or target.pids
    servers = [pid for pid in roots if is_server_program(name_of(pid))]
    return servers[0] if len(servers) == 1 else None


def _compute_age_s(window: TracedWindow) -> float:
    """Return the seconds since the last reading of the counters of a window."""
    ends_ns = [edge.end_ns for edge in window.edges.values()]
    return (kernel_ns() - max(ends_ns)) / 1e9 if ends_ns else 0.0


def _has_counters(window: TracedWindow) -> bool:
    """Return whether a cpuidle driver counted in the window."""
    return window.counters is not None and bool(window.counters[1].cpus)


def _measure_counters(window: TracedWindow) -> Span:
    """Return the kernel's counters of the interval, or the traced idle time without a cpuidle driver."""
    if window.counters is not None and _has_counters(window):
        return measure_span(*window.counters)
    states = {(-1, state.name): state.time_us / 1e6 for state in window.residency.states}
    polling = frozenset(state.name for state in window.residency.states if state.polling)
    idle_s = sum(seconds for (_, name), seconds in states.items() if name not in polling)
    wall_s = window.window_s * len(window.edges)
    return Span(window.window_s, len(window.edges), states, polling, None, 0, max(0.0, wall_s - idle_s), ())
