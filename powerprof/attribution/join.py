# SPDX-License-Identifier: Apache-2.0
"""A capture's idle exits joined with stacks, wakers and names: one row per thread, stack, origin and mechanism."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import msgspec
import numpy as np

from powerprof.attribution.capture import Capture
from powerprof.attribution.causes import MECHANISMS, regular_period_ms
from powerprof.attribution.sites import NO_STACK, NamedStack, SiteStacks
from powerprof.attribution.slices import SliceEstimates
from powerprof.model.attribution import ExternalWakeup, Origin, Thread, Waker, Wakeup, Waking
from powerprof.model.records import Mechanism
from powerprof.system.tasks import ENDED, ENDED_IN_TARGET, OUTSIDE
from powerprof.tracing.bpf.shared_numbers import Flag, StackKind, WakerContext
from powerprof.tracing.captures import Array
from powerprof.tracing.idle_data import SOFTIRQS

# Timer callbacks that wake the thread that set the timer, by the kernel's file: time-outs of futex, poll, select,
# nanosleep, sigtimedwait and message queues (hrtimer.c); schedule_timeout (timer.c); timerfd.c; POSIX timers and
# setitimer (posix-timers.c, itimer.c); CLOCK_*_ALARM in all of these (alarmtimer.c); the wait for completions and the
# time-out requests of io_uring (io_uring.c, timeout.c); the timer of a KVM guest's CPU (lapic.c, arch_timer.c).
OWN_TIMERS = frozenset(
    {
        *("hrtimer_wakeup", "process_timeout", "timerfd_tmrproc", "posix_timer_fn", "it_real_fn"),
        *("alarmtimer_fired", "io_cqring_timer_wakeup", "io_cqring_min_timer_wakeup", "io_timeout_fn"),
        *("io_link_timeout_fn", "apic_timer_fn", "kvm_bg_timer_expire"),
    }
)
# Plain integers: `&` of an IntFlag creates another IntFlag, which takes a microsecond.
_SITE, _WAKER, _WAKER_SITE, _TASK = int(Flag.SITE), int(Flag.WAKER), int(Flag.WAKER_SITE), int(WakerContext.TASK)
_RUNNABLE = int(Flag.RUNNABLE)
_TIMER_SOFTIRQS = frozenset({"TIMER", "HRTIMER", "RCU", "SCHED"})
_BY_NOBODY: tuple[Origin, str | None] = ("kernel", None)
# The thread did not sleep: a CPU limit released it, or an idle CPU pulled it from a busy one's queue.
_DID_NOT_SLEEP: tuple[Origin, str | None] = ("runnable", "throttled or moved")
_GONE = NamedStack((), (), False, "the process is gone", False)


class _CauseEntry(msgspec.Struct, frozen=True):
    """The fields of `idle_data.CAUSE` that the join reads, as plain numbers.

    A numpy record takes 0.1 µs to read a field and 3 µs to add three of them.
    """

    next_tid: int
    next_tgid: int
    flags: int
    site_ip: int
    site_sp: int
    site_code: int
    waker_context: int
    waker_timer_function: int
    waker_irq: int
    waker_tid: int
    waker_tgid: int
    waker_ip: int
    waker_sp: int
    waker_code: int
    count: int
    idle_ns: int
    gaps: int
    fitting_gaps: int
    fitting_ns: int
    fitting_periods: int


class BlamedRow(msgspec.Struct):
    """The causes of one row of the result and their sums; `main` is the most frequent of them."""

    thread: int
    stack: NamedStack
    origin: Origin
    mechanism: Mechanism
    main: _CauseEntry
    rows: list[int] = msgspec.field(default_factory=list)
    count: int = 0
    after_exits_ns: float = 0.0
    kernel_ns: float = 0.0
    own_ns: float = 0.0
    idle_ns: int = 0
    wakers: Counter[tuple[int, int]] = msgspec.field(default_factory=Counter)
    waker_stacks: Counter[tuple[int, ...]] = msgspec.field(default_factory=Counter)
    details: Counter[str] = msgspec.field(default_factory=Counter)


class WokenAt(msgspec.Struct):
    """Wakings of one thread at one stack by one origin."""

    stack: NamedStack
    detail: str | None
    count: int = 0
    wakers: Counter[tuple[int, int]] = msgspec.field(default_factory=Counter)


WokenKey = tuple[int, tuple[int, ...], Origin]


def share_wakings(rows: list[BlamedRow], wakings: Mapping[WokenKey, WokenAt]) -> tuple[list[int], dict[WokenKey, int]]:
    """Return each row's wakings, and the counts of wakings that belong to no row; together all that were counted.

    Wakings that ended no idle period go to the most frequent of the rows that differ only by mechanism. An exit whose
    waker was not traced has another origin than its waking, so it replaces one of the most frequent wakings there.
    """
    main: dict[WokenKey, int] = {}
    shares = [0 if row.origin == "runnable" else row.count for row in rows]
    spare = {key: woken.count for key, woken in wakings.items()}
    owed: Counter[tuple[int, tuple[int, ...]]] = Counter()
    for number, row in enumerate(rows):
        if row.origin == "runnable":
            continue
        key: WokenKey = (row.thread, row.stack.pcs, row.origin)
        main.setdefault(key, number)
        matching = min(row.count, spare.get(key, 0))
        if key in spare:
            spare[key] -= matching
        owed[key[:2]] += row.count - matching
    for key in sorted(spare, key=lambda row: -spare[row]):
        replaced = min(spare[key], owed[key[:2]])
        spare[key] -= replaced
        owed[key[:2]] -= replaced
    for key, number in main.items():
        shares[number] += spare.pop(key, 0)
    return shares, {key: count for key, count in spare.items() if count}


def _period_ms(row: BlamedRow) -> float | None:
    main = row.main
    return regular_period_ms(main.count, row.count, main.gaps, main.fitting_gaps, main.fitting_ns, main.fitting_periods)


def _public_id(tid: int) -> int:
    return tid if tid < OUTSIDE else 0


class Blamer:
    """Joins the exits of one capture with stacks and names."""

    def __init__(self, capture: Capture, stacks: SiteStacks) -> None:
        self._capture = capture
        self._stacks = stacks
        self._tasks = {task.tid: task for task in capture.tasks}
        self._pids = set(capture.target.pids)
        self._own_pids = capture.own_pids()
        self._many = capture.target.system or len(self._pids) != 1
        self._counted_s = max(1, capture.counted_to_ns - capture.counted_from_ns) / 1e9
        self._named_wakers: dict[tuple[int, ...], NamedStack] = {}
        self._threads: dict[int, Thread] = {}

    def in_target(self, pid: int, tid: int) -> bool:
        """Return whether a thread belongs to the target."""
        if pid in self._own_pids:
            return False
        if self._capture.target.system:
            task = self._tasks.get(tid)
            return tid != 0 and not OUTSIDE <= tid < ENDED and not (task is not None and task.is_kernel)
        return pid in self._pids or pid >= ENDED_IN_TARGET

    def _origin(
        self, pid: int, context: int, timer: int, irq: int, waker: int, waker_pid: int
    ) -> tuple[Origin, str | None]:
        if context == WakerContext.TIMER:
            name = self._capture.functions.get(timer)
            return ("own_timer" if name in OWN_TIMERS else "kernel"), name
        if context == WakerContext.DEVICE:
            return "device", self._capture.interrupts.get(irq, f"irq {irq}")
        if context == WakerContext.SOFTIRQ:
            name = SOFTIRQS[irq] if irq < len(SOFTIRQS) else str(irq)
            return ("kernel" if name in _TIMER_SOFTIRQS else "device"), f"softirq {name}"
        if context in (WakerContext.INTERRUPT, WakerContext.UNSEEN):
            return "kernel", None
        task = self._tasks.get(waker)
        if waker == 0 or (task is not None and task.is_kernel):
            return "kernel", task.comm if task is not None and waker else None
        return ("other_thread" if waker_pid == pid else "other_process"), None

    def wakings(self) -> dict[WokenKey, WokenAt]:
        """Return every counted waking of the target's threads, by thread, stack and origin."""
        woken_at: dict[WokenKey, WokenAt] = {}
        unseen: list[tuple[int, NamedStack, int]] = []
        for waking in self._capture.wakings:
            stack = self._stacks.find(StackKind.SLEEPER, waking.pid, (waking.tid, waking.ip, waking.sp, waking.code))
            if waking.context == WakerContext.UNSEEN:
                unseen.append((waking.tid, stack, waking.count))
                continue
            origin, detail = self._origin(
                waking.pid, waking.context, waking.timer_function, waking.irq, waking.waker_tid, waking.waker_pid
            )
            woken = woken_at.setdefault((waking.tid, stack.pcs, origin), WokenAt(stack, detail))
            woken.count += waking.count
            if origin in ("other_thread", "other_process"):
                woken.wakers[(waking.waker_tid, waking.waker_pid)] += waking.count
        for tid, stack, count in unseen:
            # The cause of these few wakings was not traced: most likely it is the usual one of that stack.
            same = [key for key in woken_at if key[:2] == (tid, stack.pcs)]
            key = max(same, key=lambda key: woken_at[key].count, default=(tid, stack.pcs, "kernel"))
            woken_at.setdefault(key, WokenAt(stack, None)).count += count
        return woken_at

    def rows(self, exits: Array, ended_by: Array) -> list[BlamedRow]:
        """Return the target's exits, one row per thread, stack, origin and mechanism, most frequent first."""
        grouped: dict[tuple[int, tuple[int, ...], str, int], BlamedRow] = {}
        causes = (_CauseEntry(*values) for values in exits[list(_CauseEntry.__struct_fields__)].tolist())
        for number, (cause, mechanism) in enumerate(zip(causes, ended_by.tolist(), strict=True)):
            tid, pid = cause.next_tid, cause.next_tgid
            if not tid or not self.in_target(pid, tid):
                continue
            stack = NO_STACK if pid < ENDED else _GONE
            if cause.flags & _SITE:
                stack = self._stacks.find(StackKind.SLEEPER, pid, (tid, cause.site_ip, cause.site_sp, cause.site_code))
            origin, detail = _DID_NOT_SLEEP if cause.flags & _RUNNABLE else _BY_NOBODY
            if cause.flags & _WAKER:
                origin, detail = self._origin(
                    pid,
                    cause.waker_context,
                    cause.waker_timer_function,
                    cause.waker_irq,
                    cause.waker_tid,
                    cause.waker_tgid,
                )
            key = (tid, stack.pcs, origin, mechanism)
            row = grouped.get(key)
            if row is None:
                row = grouped[key] = BlamedRow(tid, stack, origin, MECHANISMS[mechanism], cause)
            row.rows.append(number)
            row.count += cause.count
            row.idle_ns += cause.idle_ns
            if cause.count > row.main.count:
                row.main = cause
            if detail:
                row.details[detail] += cause.count
            if origin in ("other_thread", "other_process") or cause.waker_context == _TASK:
                self._count_waker(row, cause)
        return sorted(grouped.values(), key=lambda row: (-row.count, row.thread, row.stack.pcs))

    def _count_waker(self, row: BlamedRow, cause: _CauseEntry) -> None:
        tid, pid = cause.waker_tid, cause.waker_tgid
        if not cause.flags & _WAKER or not tid:
            return
        row.wakers[(tid, pid)] += cause.count
        if cause.flags & _WAKER_SITE and self.in_target(pid, tid):
            stack = self._stacks.find(StackKind.WAKER, pid, (tid, cause.waker_ip, cause.waker_sp, cause.waker_code))
            self._named_wakers[(tid, *stack.pcs)] = stack
            row.waker_stacks[(tid, *stack.pcs)] += cause.count

    def wakeups(
        self,
        rows: Sequence[BlamedRow],
        shares: Sequence[int | None],
        exits: Array,
        estimates: SliceEstimates | None = None,
    ) -> list[Wakeup]:
        """Return the record of each row; `shares` are their wakings."""
        states, window_s = exits["states"].tolist(), self._capture.window_s
        ranges = [None if estimates is None else estimates.estimate(row.rows) for row in rows]
        return [
            Wakeup(
                mechanism=row.mechanism,
                origin=row.origin,
                count=row.count,
                rate_hz=row.count / self._capture.window_s,
                wakings_count=wakings,
                period_ms=_period_ms(row),
                c0_ms=(row.own_ns + row.kernel_ns) / 1e6,
                own_ms=row.own_ns / 1e6,
                thread=self.thread(row.thread),
                waker=self._waker(row.wakers, row.waker_stacks),
                stack=list(row.stack.frames),
                stack_complete=row.stack.complete,
                detail=row.details.most_common(1)[0][0] if row.details else None,
                idle_ms=row.idle_ns / row.count / 1e6,
                states=self._states([states[number] for number in row.rows]),
                rate_low_hz=None if estimate is None else min(estimate.low, row.count) / window_s,
                rate_high_hz=None if estimate is None else max(estimate.high, row.count) / window_s,
            )
            for row, wakings, estimate in zip(rows, shares, ranges, strict=True)
        ]

    def _states(self, counts: Sequence[Sequence[int]]) -> dict[str, int]:
        # CPUs of one host have the same states; with two kinds of cores the names are those of the first CPU.
        names = next(iter(self._capture.states.values()), [])
        counted: dict[str, int] = {}
        for state, count in enumerate(counts[0] if len(counts) == 1 else map(sum, zip(*counts, strict=True))):
            if count:
                name = names[state] if state < len(names) else f"state {state}"
                counted[name] = counted.get(name, 0) + count
        return dict(sorted(counted.items(), key=lambda item: -item[1]))

    def without_exit(self, key: WokenKey, woken: WokenAt, count: int, own_ns: float) -> Waking:
        """Return the record of `count` wakings that ended no idle period, with the thread's running time after them."""
        tid, _, origin = key
        return Waking(
            origin=origin,
            wakings_count=count,
            wakings_hz=count / self._counted_s,
            thread=self.thread(tid),
            waker=self._waker(woken.wakers, Counter()),
            stack=list(woken.stack.frames),
            stack_complete=woken.stack.complete,
            own_ms=own_ns / 1e6,
            detail=woken.detail,
        )

    def _waker(self, wakers: Counter[tuple[int, int]], waker_stacks: Counter[tuple[int, ...]]) -> Waker | None:
        if not wakers:
            return None
        (tid, pid), _ = wakers.most_common(1)[0]
        stacks = [key for key, _ in waker_stacks.most_common() if key[0] == tid]
        stack = self._named_wakers[stacks[0]] if stacks else None
        thread = self.thread(tid)
        return Waker(
            pid=_public_id(pid),
            tid=_public_id(tid),
            comm=thread.comm,
            server_name=thread.server_name,
            stack=list(stack.frames) if stack else [],
            stack_complete=stack.complete if stack else None,
        )

    def thread(self, tid: int) -> Thread:
        """Return a thread with its names; each is built once."""
        if tid not in self._threads:
            task = self._tasks.get(tid)
            self._threads[tid] = Thread(
                tid=_public_id(tid),
                comm=task.comm if task else f"thread {tid}",
                server_name=self._capture.server_names.get(tid),
                pid=task.pid if task else None,
                process=task.process if task and self._many else None,
                unit=task.unit if task else None,
            )
        return self._threads[tid]

    def woken_elsewhere(self, exits: Array) -> list[ExternalWakeup]:
        """Return the target's threads that ended idle periods by waking other processes."""
        counted: Counter[tuple[int, str]] = Counter()
        by_task = (exits["flags"] & np.uint32(_WAKER) != 0) & (exits["waker_context"] == _TASK)
        names = ["waker_tgid", "waker_tid", "next_tgid", "next_tid", "count"]
        for pid, tid, next_pid, next_tid, count in exits[by_task][names].tolist():
            if not tid or not self.in_target(pid, tid) or self.in_target(next_pid, next_tid):
                continue
            task = self._tasks.get(next_tid)
            counted[(tid, task.process if task else f"thread {next_tid}")] += count
        return [
            ExternalWakeup(
                thread=self.thread(tid), process=process, count=count, rate_hz=count / self._capture.window_s
            )
            for (tid, process), count in counted.most_common()
        ]
