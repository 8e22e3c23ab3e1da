# SPDX-License-Identifier: Apache-2.0
"""The loop behind `watch` and `export`: one tracer for as long as it runs, and one interval after the other.

It outlives what it looks at: processes come and go, CPUs too, servers restart, logs rotate, the host sleeps.
"""

from __future__ import annotations

import ctypes
import gc
import os
import resource
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

from powerprof.attribution import blame
from powerprof.attribution.attribute import CaptureContext, build_capture
from powerprof.attribution.capture import Capture
from powerprof.attribution.sites import Key, SiteStacks, StackMemo
from powerprof.energy.domains import DEFAULT_REQUEST, EnergyRequest, host_meters
from powerprof.energy.windows import WindowEnergy
from powerprof.live import naming
from powerprof.live.intervals import CpuUse, LiveInterval, Span, build_interval, format_changed_cpus, measure_span
from powerprof.live.servers import ASK_EVERY_S, WatchedServers
from powerprof.live.statements import ServedServer
from powerprof.measure.clock import SuspendClock, format_now, kernel_ns
from powerprof.measure.cpuidle import online_cpus
from powerprof.measure.procfs import process_cpu_ns, read_stat
from powerprof.measure.window import EnergySampler, wait_and_read
from powerprof.model.attribution import Attribution
from powerprof.model.text import Say
from powerprof.stacks.store import TableStore
from powerprof.system import caller
from powerprof.system.cgroups import Units
from powerprof.system.closeable import Closeable
from powerprof.system.processes import Target, list_pids, name_of, refresh_target
from powerprof.system.tasks import Task, look_up
from powerprof.tracing import monitor
from powerprof.tracing.bpf.loaded import LoadedProgram
from powerprof.tracing.bpf.shared_numbers import StackKind
from powerprof.tracing.idle import TracedWindow, trace_on_demand
from powerprof.tracing.idle_data import SavedSite
from powerprof.tracing.idle_stacks import StackTrace
from powerprof.tracing.kernel_symbols import InterruptNames

# When intervals end: at even distances, whatever naming and asking took in between. Pure.


class IntervalClock:
    """Ends of intervals `interval_s` apart, in seconds of a clock that only rises.

    What is done after an interval's end (naming, blaming, asking) is in the time of the next one, which ends when it
    would have ended without. One that is late by half an interval or more begins a new row of ends.
    """

    def __init__(self, interval_s: float, now_s: float) -> None:
        self._interval_s, self._end_s = interval_s, now_s

    def next_end_s(self, now_s: float) -> float:
        """When the next interval ends; never less than half an interval from now."""
        self._end_s += self._interval_s
        if self._end_s - now_s < self._interval_s / 2:
            self._end_s = now_s + self._interval_s / 2
        return self._end_s


# Stacks that came and were not asked for yet: a thread's sleep may end many intervals after its stack was sent.
#
# Unwinding and naming is most of a monitor's cost. So the bytes wait until an idle exit is blamed on their place, which
# most never are.

# 16 KiB at most each.
MOST_BYTES = 2 << 20


class PendingStacks:
    """The sites of earlier intervals: those of processes that ended go, and the oldest where they take too much memory.

    `has_ended` tells whether a process has.
    """

    def __init__(self, has_ended: Callable[[int], bool], most_bytes: int = MOST_BYTES) -> None:
        self._has_ended = has_ended
        self._sites: OrderedDict[tuple[int, ...], SavedSite] = OrderedDict()
        self._most, self._bytes = most_bytes, 0

    def with_earlier(self, stacks: StackTrace) -> StackTrace:
        """The same with the sites of before."""
        for site in stacks.sites:
            self._put(site)
        return replace(stacks, sites=list(self._sites.values()))

    def drop(self, keys: Iterable[Key]) -> None:
        """These have been named: nobody will ask for their bytes again."""
        for key in keys:
            if (StackKind.SLEEPER, *key) in self._sites:
                self._drop((StackKind.SLEEPER, *key))

    def forget_ended(self) -> None:
        """Nobody will be able to name what a process did that is gone."""
        pids = {site.pid for site in self._sites.values()}
        ended = {pid for pid in pids if self._has_ended(pid)}
        for place in [place for place, site in self._sites.items() if site.pid in ended]:
            self._drop(place)

    def _put(self, site: SavedSite) -> None:
        place = (site.kind, site.tid, site.ip, site.sp, site.code)
        if place in self._sites:
            self._drop(place)
        self._sites[place] = site
        self._bytes += _size(site)
        while self._bytes > self._most:
            self._drop(next(iter(self._sites)))

    def _drop(self, place: tuple[int, ...]) -> None:
        self._bytes -= _size(self._sites.pop(place))


def _size(site: SavedSite) -> int:
    return len(site.stack) + len(site.registers) + 200


# Which processes use the CPUs of a busy host: their clocks, read at the ends of intervals.
#
# A busy host has few idle periods, so the causes that end them do not say what the CPUs do. The clocks cost a system
# call a process; they are read only where the last interval was busy (and at the first one's beginning).

# From this share of all CPUs' time on the clocks are read again.
BUSY_SHARE = 0.5
# Processes below this share of one CPU are not named.
_LEAST_SHARE = 0.002


class BusyProcesses:
    """The processes' clocks from one interval's end to the next."""

    def __init__(self) -> None:
        self._clocks: dict[int, int] | None = _clocks()

    def used(self, busy_share: float | None, window_s: float) -> dict[str, CpuUse] | None:
        """CPU time by name in the interval that ends now; None where it was idle, or the one before it was.

        `busy_share`: of all CPUs' time, in which they ran. powerprof itself is not in it, nor is what has ended.
        """
        if busy_share is None or busy_share < BUSY_SHARE:
            self._clocks = None
            return None
        before, self._clocks = self._clocks, _clocks()
        if before is None:
            return None
        spent = {pid: at_ns - before[pid] for pid, at_ns in self._clocks.items() if at_ns >= before.get(pid, at_ns + 1)}
        by_name: dict[str, list[int]] = {}
        for pid, used_ns in spent.items():
            if used_ns >= _LEAST_SHARE * window_s * 1e9 and (name := name_of(pid)) is not None:
                by_name.setdefault(name, []).append(used_ns)
        return {name: CpuUse(len(used_ns), sum(used_ns) / 1e9) for name, used_ns in by_name.items()}


def _clocks() -> dict[int, int]:
    """CPU time of every process but this one, in nanoseconds."""
    found = {pid: process_cpu_ns(pid) for pid in list_pids() if pid != os.getpid()}
    return {pid: at_ns for pid, at_ns in found.items() if at_ns is not None}


# What an interval needed and freed goes back to the system, so that the memory that is kept says what is in use.

# include/malloc.h of glibc.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8
_SMALL_BYTES = 128 << 10
_SLACK_BYTES = 1 << 20


def limit_heap() -> None:
    """From now on: one arena for all threads, and big blocks of their own.

    Glibc gives each thread an arena that never shrinks below what it once held, and raises the size from which a block
    is mapped apart, and the size of what it keeps, with each block that is freed. Does nothing with another C library.
    What is there stays: Python's collector need not look at it again and again.
    """
    gc.collect()
    gc.freeze()
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        for name, value in ((_M_ARENA_MAX, 1), (_M_MMAP_THRESHOLD, _SMALL_BYTES), (_M_TRIM_THRESHOLD, _SMALL_BYTES)):
            mallopt(name, value)


class HeapTrimmer:
    """Gives back what lies free between what is in use, where memory has grown: looking for it takes half a
    millisecond."""

    def __init__(self) -> None:
        self._call = getattr(ctypes.CDLL(None), "malloc_trim", None)
        self._least = _resident_bytes()

    def resident_bytes(self) -> int:
        """The memory that this process holds between two intervals."""
        resident = _resident_bytes()
        self._least = min(self._least, resident)
        if self._call is not None and resident - self._least > _SLACK_BYTES:
            self._call(ctypes.c_size_t(0))
            resident = self._least = _resident_bytes()
        return resident


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


# What the monitor itself uses: its CPU time, and that of its BPF programs.

# Reading the clock twice for each run of a program costs as much again as the cheap ones do, and only CAP_SYS_ADMIN may
# switch it on. So it runs for the first intervals, and what a context switch cost in the last of them stands for later.
COUNTED_INTERVALS = 4


def _cpu_s() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in used)


class OwnCpuTime:
    """CPU time from interval to interval. What came before `begin` is in none."""

    def __init__(self, program: LoadedProgram) -> None:
        """While there still is the privilege to switch the programs' clock on."""
        self._program = program
        program.count_run_time()
        self.begin()

    def begin(self) -> None:
        """All is loaded."""
        self._cpu_s, self._switches = _cpu_s(), read_stat().context_switches_count
        self._number, self._per_switch_s = 0, 0.0

    def cpu_since(self) -> float:
        """Seconds since the call before."""
        now_s = _cpu_s()
        used, self._cpu_s = now_s - self._cpu_s, now_s
        return used

    def bpf_of(self, counted_s: float | None, switches_count: int) -> float | None:
        """Seconds in an interval's BPF programs: `counted_s` while the kernel counts them, an estimate afterwards.

        `switches_count`: the host's context switches since boot, at the interval's end.
        """
        if counted_s is None:
            return None
        switches, self._switches = switches_count - self._switches, switches_count
        self._number += 1
        if self._number > COUNTED_INTERVALS:
            return self._per_switch_s * switches
        self._per_switch_s = counted_s / max(1, switches)
        if self._number == COUNTED_INTERVALS:
            self._program.stop_counting()
        return counted_s


# A change that is worth asking the servers for: so many times the usual rate, and more than a tick's noise.
_SUDDENLY, _AT_LEAST_HZ = 2.0, 15.0
# The share of a new rate in what is usual.
_SMOOTH = 0.2
# Of stacks that were named, the latest: those of hundreds of threads in dozens of places.
_STACKS = 4000
# Of threads whose names were looked up, the latest.
_THREADS = 1000
# What is remembered of programs and threads grows with each that ever ran: cleared from time to time.
_FORGET_EVERY_S = 3600.0


@dataclass(frozen=True, kw_only=True)
class MonitorPlan:
    """What to watch, and how often to say so. `ask_servers`: database servers of the target are asked for their state
    every `ask_every_s`, by their own sockets or by the option files in `accounts`. `keep_newest`: `HostMonitor.newest`
    will be called, and intervals say which processes used busy CPUs. `statements`: those of this server (a process id
    or name, or a socket's path) are measured one by one."""

    target: Target
    interval_s: float = 5.0
    energy: EnergyRequest = DEFAULT_REQUEST
    ask_servers: bool = True
    ask_every_s: float = ASK_EVERY_S
    accounts: tuple[Path, ...] = ()
    settle: bool = True
    keep_newest: bool = False
    statements: str | None = None


class HostMonitor(Closeable):
    """Measures interval after interval while its context is open."""

    def __init__(self, plan: MonitorPlan, say: Say) -> None:
        self._plan, self._say, self._target = plan, say, plan.target
        self._stack = ExitStack()
        self._servers = WatchedServers(
            None if plan.target.system else plan.target.pids, plan.ask_every_s, plan.accounts
        )
        self._suspended = SuspendClock()
        self._usual_hz: float | None = None
        self._host_set: Sequence[tuple[str, str]] = ()
        self._tasks: OrderedDict[int, Task] = OrderedDict()
        self._purse = naming.TimeBudget()
        self._remember()
        self._newest: tuple[Capture, Attribution, SiteStacks] | None = None

    def _open(self) -> None:
        """Raises CapabilityError where this host cannot be traced, PowerprofError where the target has gone."""
        from powerprof.host.describe import host_record

        plan, stack = self._plan, self._stack
        self._say("loading the tracer")
        self._host: dict[str, Any] = host_record()
        self._energy = stack.enter_context(WindowEnergy(plan.energy))
        self._tracer, self._looks = stack.enter_context(trace_on_demand(plan.target))
        self._looks.members.require_one()
        self._own = OwnCpuTime(self._tracer.program)
        stack.callback(self._servers.close)
        self._served: ServedServer | None = None
        if plan.statements is not None:
            self._say("loading the tracer of statements")
            self._served = stack.enter_context(ServedServer(plan.statements, ask=plan.ask_servers))
        caller.drop_privileges(plan.settle, plan.energy.source)
        limit_heap()
        self._trim = HeapTrimmer()
        self._begin()
        stack.callback(self._end)
        # What loading took is in no interval.
        self._own.begin()
        self._suspended.since_s()
        self._pace = IntervalClock(plan.interval_s, time.monotonic())
        self._busy = BusyProcesses() if plan.keep_newest else None

    def close(self) -> None:
        self._stack.close()

    def _begin(self) -> None:
        """Begin to trace, on the CPUs that are online now."""
        self._cpus, self._ahead_count = online_cpus(), 0
        self._monitor = monitor.TraceMonitor(self._tracer).__enter__()
        self._metered_s = time.monotonic()
        if self._energy.meters is not None:
            self._energy.meters.sample()

    def _end(self) -> None:
        self._monitor.close()

    def intervals(self) -> Iterator[LiveInterval]:
        """One interval after the other, until an interrupt, which is raised."""
        while True:
            yield self.next()

    def next(self) -> LiveInterval:
        """The next interval: from the end of the last one to now. Raises Interrupted where a signal cuts it short."""
        # Here, where nothing of the interval before is in use any more: so much it holds while it waits.
        memory_bytes = self._trim.resident_bytes()
        self._find_target()
        if self._plan.ask_servers:
            self._servers.before()
            self._looks.judge(self._servers.asked_pids)
        # It wakes only where a buffer or a table fills or a meter's counter would wrap.
        if self._served is not None:
            self._served.begin()
        now_s = time.monotonic()
        wait_and_read((self._tracer, EnergySampler(self._energy.meters)), self._pace.next_end_s(now_s) - now_s)
        if self._served is not None:
            self._served.end()
        window = self._monitor.read()
        # What it takes to name and to blame, a second where programs are new, is the next interval's.
        ended_at = format_now(_age_s(window))
        window = self._with_energy(window)
        stacks = self._pending.with_earlier(self._looks.collect())
        places = naming.rank_sites(window.trace.causes)
        self._purse.earn(window.window_s)
        unknown = self._unknown(places)
        if sum(places[place] for place in unknown) > naming.MUCH * int(window.trace.causes["count"].sum()):
            self._purse.wake()
        naming.snapshot_processes(self._looks, unknown, self._purse)
        interrupts = self._interrupts.of(window.trace.causes)
        context = CaptureContext(
            self._target, self._host, interrupts, self._looks.members.notes(), self._units, self._look_up
        )
        capture = build_capture(context, window, stacks, self._energy, self._servers.thread_names())
        record = self._analyse(capture, places)
        online = online_cpus()
        interval = build_interval(
            record,
            _span(window),
            ended_at=ended_at,
            processes={task.pid: task.process for task in capture.tasks if task.pid is not None},
            host_domains=self._host_domains(record),
            own_cpu_s=self._own.cpu_since(),
            own_bpf_s=self._own.bpf_of(window.trace.run_time_s, self._monitor.switches_count),
            own_memory_bytes=memory_bytes,
            suspended_s=self._suspended.since_s(),
            ahead_count=self._ahead_count,
        )
        self._ahead_count = interval.ahead_count
        if self._busy is not None:
            share = None if interval.c0_percent is None else interval.c0_percent / 100.0
            interval = msgspec.structs.replace(interval, used=self._busy.used(share, interval.window_s))
        if self._served is not None:
            interval = self._with_statements(interval, self._served, window)
        # Of CPUs that went, their counters tell; without a cpuidle driver nothing else does.
        changed = set(online) - set(self._cpus) if _has_counters(window) else set(online) ^ set(self._cpus)
        if changed:
            interval = msgspec.structs.replace(interval, notes=(*interval.notes, format_changed_cpus(sorted(changed))))
        if self._plan.ask_servers:
            servers, findings = self._servers.after(record)
            notes = (*interval.notes, *self._servers.notes)
            interval = msgspec.structs.replace(interval, servers=servers, findings=findings, notes=notes)
            self._hurry(interval)
        self._follow(stacks, online)
        return interval

    def _with_statements(self, interval: LiveInterval, served: ServedServer, window: TracedWindow) -> LiveInterval:
        statements = served.collect(window.residency, self._energy)
        own = interval.own
        if statements.bpf_s is not None:
            own = msgspec.structs.replace(own, bpf_s=(own.bpf_s or 0.0) + statements.bpf_s)
        notes = (*interval.notes, f"statements: {served.trouble}") if served.trouble else interval.notes
        return msgspec.structs.replace(interval, statements=statements, own=own, notes=notes)

    def _with_energy(self, window: TracedWindow) -> TracedWindow:
        meters = self._energy.meters
        if meters is None:
            return window
        meters.sample()
        began_s, self._metered_s = self._metered_s, time.monotonic()
        readings = meters.readings(began_s, self._metered_s)
        return replace(window, residency=msgspec.structs.replace(window.residency, energy=readings))

    def _unknown(self, places: Iterable[naming.ProcessSite]) -> list[naming.ProcessSite]:
        """Those without a name, and those of processes that were not looked at."""
        images = self._looks.members.images
        return [
            (pid, key)
            for pid, key in places
            if pid not in images or self._memo.get((StackKind.SLEEPER, pid, images[pid][0].started_ticks, key)) is None
        ]

    def _analyse(self, capture: Capture, places: Iterable[naming.ProcessSite]) -> Attribution:
        stacks = SiteStacks(capture, self._store, self._memo)
        naming.name_stacks(stacks, places, self._store, self._purse)
        unnamed = set(self._unknown(places))
        self._pending.drop(key for pid, key in places if (pid, key) not in unnamed)
        self._pending.forget_ended()
        record = blame.build_attribution(capture, stacks)
        if self._plan.keep_newest:
            self._newest = capture, record, stacks
        return record

    def newest(self) -> tuple[Capture, Attribution] | None:
        """What came last, to be saved: the capture has the names of its stacks, whose bytes may be gone."""
        if self._newest is None:
            return None
        capture, record, stacks = self._newest
        return msgspec.structs.replace(capture, named=stacks.export_names()), record

    def _look_up(self, tid: int, pid: int | None, comm: str, is_kernel: bool | None) -> Task:
        """As `look_up`, of threads that are known from memory: their names seldom change."""
        known = self._tasks.get(tid)
        if known is None or (pid is not None and known.pid != pid) or (comm and known.comm != comm):
            known = look_up(tid, pid, comm, is_kernel)
            if not known.is_kernel and known.pid is not None:
                known = msgspec.structs.replace(known, unit=self._units.of(known.pid))
            self._tasks[tid] = known
        # Threads that live for an instant would stand beside those that are asked for again and again.
        self._tasks.move_to_end(tid)
        if len(self._tasks) > _THREADS:
            self._tasks.popitem(last=False)
        return known

    def _find_target(self) -> None:
        found = refresh_target(self._target)
        if found is not self._target:
            self._target = found
            self._looks.members.follow(found)
            self._servers.only(found.pids)

    def _follow(self, stacks: StackTrace, online: list[int]) -> None:
        """What changed around us: CPUs, programs that are gone, more stacks than the kernel keeps."""
        if online != self._cpus:
            self._end()
            self._begin()
        if time.monotonic() - self._remembered_s > _FORGET_EVERY_S:
            self._remember()
            self._looks.reset()
        elif stacks.unsent_count or stacks.lost_count:
            self._looks.send_again()

    def _remember(self) -> None:
        self._store, self._memo = TableStore(), StackMemo(_STACKS)
        self._pending = PendingStacks(lambda pid: process_cpu_ns(pid) is None)
        self._interrupts, self._units = InterruptNames(), Units()
        self._remembered_s = time.monotonic()
        self._tasks.clear()

    def _host_domains(self, record: Attribution) -> Sequence[tuple[str, str]]:
        """The set of meters that stands for the host: chosen once, so that its sum is of the same domains always."""
        if not self._host_set:
            meter = host_meters([record.energy])
            self._host_set = [] if meter is None else [(meter.source, domain) for domain in meter.domains]
        return self._host_set

    def _hurry(self, interval: LiveInterval) -> None:
        """A storm is reported within two intervals: servers are asked as soon as the host wakes far more than usual."""
        hz = interval.exits_hz
        if hz is None:
            return
        usual = self._usual_hz
        if usual is not None and (hz > _SUDDENLY * usual + _AT_LEAST_HZ or usual > _SUDDENLY * hz + _AT_LEAST_HZ):
            self._servers.hurry()
            self._usual_hz = hz
        else:
            self._usual_hz = hz if usual is None else usual + _SMOOTH * (hz - usual)


def _age_s(window: TracedWindow) -> float:
    """How long ago the counters were read that end a window."""
    ends_ns = [edge.end_ns for edge in window.edges.values()]
    return (kernel_ns() - max(ends_ns)) / 1e9 if ends_ns else 0.0


def _has_counters(window: TracedWindow) -> bool:
    """Did the kernel's cpuidle driver count in it?"""
    return window.counters is not None and bool(window.counters[1].cpus)


def _span(window: TracedWindow) -> Span:
    """The kernel's own counters over the interval; without a cpuidle driver, what was traced of idle time."""
    if window.counters is not None and _has_counters(window):
        return measure_span(*window.counters)
    states = {(-1, state.name): state.time_us / 1e6 for state in window.residency.states}
    polling = frozenset(state.name for state in window.residency.states if state.polling)
    idle_s = sum(seconds for (_, name), seconds in states.items() if name not in polling)
    wall_s = window.window_s * len(window.edges)
    return Span(window.window_s, len(window.edges), states, polling, None, 0, max(0.0, wall_s - idle_s), ())
