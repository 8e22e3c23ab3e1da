# SPDX-License-Identifier: Apache-2.0
"""The loop behind `watch` and `export`: one tracer for as long as it runs, and one interval after the other.

It outlives what it looks at: processes come and go, CPUs too, servers restart, logs rotate, the host sleeps.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

from powerprof import privileges
from powerprof.attribution import blame
from powerprof.attribution.capture import Capture
from powerprof.attribution.live import CaptureContext, captured
from powerprof.attribution.records import Attribution
from powerprof.attribution.sites import SiteStacks, StackMemo
from powerprof.closeable import Closeable
from powerprof.energy.domains import host_meters
from powerprof.energy.request import AS_SEEN, EnergyRequest
from powerprof.energy.windows import WindowEnergy
from powerprof.live import heap, naming
from powerprof.live.accounts import Span, changed_note, interval_of, span_between
from powerprof.live.busy import BusyProcesses
from powerprof.live.cost import OwnTime
from powerprof.live.intervals import LiveInterval
from powerprof.live.pace import IntervalClock
from powerprof.live.pending import Pending
from powerprof.live.served import ServedServer
from powerprof.live.servers import ASK_EVERY_S, Servers
from powerprof.processes.targets import Target, found_again
from powerprof.processes.tasks import Task, look_up
from powerprof.processes.units import Units
from powerprof.sources.clock import Suspended, kernel_ns
from powerprof.sources.cpuidle import online_cpus
from powerprof.sources.procfs import process_cpu_ns
from powerprof.stacks.store import TableStore
from powerprof.text import Say
from powerprof.tracing.bpf.shared_numbers import StackKind
from powerprof.tracing.idle import monitor as tracing
from powerprof.tracing.idle.build import trace_on_demand
from powerprof.tracing.idle.stacks import StackTrace
from powerprof.tracing.idle.window import TracedWindow
from powerprof.tracing.symbols.kernel import Interrupts
from powerprof.windows.runner import Metered, wait_out
from powerprof.windows.sampling import now_text

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
    energy: EnergyRequest = AS_SEEN
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
        self._servers = Servers(None if plan.target.system else plan.target.pids, plan.ask_every_s, plan.accounts)
        self._suspended = Suspended()
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
        self._looks.members.need_one()
        self._own = OwnTime(self._tracer.program)
        stack.callback(self._servers.close)
        self._served: ServedServer | None = None
        if plan.statements is not None:
            self._say("loading the tracer of statements")
            self._served = stack.enter_context(ServedServer(plan.statements, ask=plan.ask_servers))
        privileges.settle(plan.settle, plan.energy.source)
        heap.settle()
        self._trim = heap.Trim()
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
        self._monitor = tracing.TraceMonitor(self._tracer).__enter__()
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
        wait_out((self._tracer, Metered(self._energy.meters)), self._pace.next_end_s(now_s) - now_s)
        if self._served is not None:
            self._served.end()
        window = self._monitor.read()
        # What it takes to name and to blame, a second where programs are new, is the next interval's.
        ended_at = now_text(_age_s(window))
        window = self._with_energy(window)
        stacks = self._pending.with_earlier(self._looks.collect())
        places = naming.costliest(window.trace.causes)
        self._purse.earn(window.window_s)
        unknown = self._unknown(places)
        if sum(places[place] for place in unknown) > naming.MUCH * int(window.trace.causes["count"].sum()):
            self._purse.wake()
        naming.look_at(self._looks, unknown, self._purse)
        interrupts = self._interrupts.of(window.trace.causes)
        context = CaptureContext(
            self._target, self._host, interrupts, self._looks.members.notes(), self._units, self._look_up
        )
        capture = captured(context, window, stacks, self._energy, self._servers.thread_names())
        record = self._analyse(capture, places)
        online = online_cpus()
        interval = interval_of(
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
            interval = msgspec.structs.replace(interval, notes=(*interval.notes, changed_note(sorted(changed))))
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

    def _unknown(self, places: Iterable[naming.Place]) -> list[naming.Place]:
        """Those without a name, and those of processes that were not looked at."""
        images = self._looks.members.images
        return [
            (pid, key)
            for pid, key in places
            if pid not in images or self._memo.get((StackKind.SLEEPER, pid, images[pid][0].started_ticks, key)) is None
        ]

    def _analyse(self, capture: Capture, places: Iterable[naming.Place]) -> Attribution:
        stacks = SiteStacks(capture, self._store, self._memo)
        naming.name(stacks, places, self._store, self._purse)
        unnamed = set(self._unknown(places))
        self._pending.drop(key for pid, key in places if (pid, key) not in unnamed)
        self._pending.forget_ended()
        record = blame.attribute(capture, stacks)
        if self._plan.keep_newest:
            self._newest = capture, record, stacks
        return record

    def newest(self) -> tuple[Capture, Attribution] | None:
        """What came last, to be saved: the capture has the names of its stacks, whose bytes may be gone."""
        if self._newest is None:
            return None
        capture, record, stacks = self._newest
        return msgspec.structs.replace(capture, named=stacks.named()), record

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
        found = found_again(self._target)
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
            self._looks.forget()
        elif stacks.unsent_count or stacks.lost_count:
            self._looks.send_again()

    def _remember(self) -> None:
        self._store, self._memo = TableStore(), StackMemo(_STACKS)
        self._pending = Pending(lambda pid: process_cpu_ns(pid) is None)
        self._interrupts, self._units = Interrupts(), Units()
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
        return span_between(*window.counters)
    states = {(-1, state.name): state.time_us / 1e6 for state in window.residency.states}
    polling = frozenset(state.name for state in window.residency.states if state.polling)
    idle_s = sum(seconds for (_, name), seconds in states.items() if name not in polling)
    wall_s = window.window_s * len(window.edges)
    return Span(window.window_s, len(window.edges), states, polling, None, 0, max(0.0, wall_s - idle_s), ())
