# SPDX-License-Identifier: Apache-2.0
"""Pure: a capture's idle exits joined with stacks, wakers and names: a row per thread, stack, origin, mechanism."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from powerprof.attribution.capture import Capture
from powerprof.attribution.idle import MECHANISMS, Array
from powerprof.attribution.records import Origin, Thread, Waker, Wakeup, Waking, Woken
from powerprof.attribution.rhythm import period_ms
from powerprof.attribution.sites import SLEEPER, WAKER, NamedStack, SiteStacks
from powerprof.records import Mechanism
from powerprof.tracing.layout import SOFTIRQS, Flag, WakerContext

# Timer callbacks that wake the thread which waits on that timer: nanosleep, futex and poll time-outs; schedule_timeout;
# timerfd; POSIX timers; setitimer (kernel: kernel/time/{hrtimer,sleep_timeout,posix-timers,itimer}.c, fs/timerfd.c).
OWN_TIMERS = frozenset(
    {
        "hrtimer_wakeup",
        "process_timeout",
        "timerfd_tmrproc",
        "timerfd_alarmproc",
        "posix_timer_fn",
        "it_real_fn",
        "alarm_handle_timer",
        "alarmtimer_nsleep_wakeup",
    }
)
_TIMER_SOFTIRQS = frozenset({"TIMER", "HRTIMER", "RCU", "SCHED"})
NO_STACK = NamedStack((), (), False, "no user stack", False)


@dataclass
class Row:
    """The causes of one row of the result, and how many exits they are."""

    thread: int
    stack: NamedStack
    origin: Origin
    mechanism: Mechanism
    rows: list[int] = field(default_factory=list)
    count: int = 0
    wakers: Counter[tuple[int, int]] = field(default_factory=Counter)
    waker_stacks: Counter[tuple[int, ...]] = field(default_factory=Counter)
    details: Counter[str] = field(default_factory=Counter)


@dataclass
class WokenAt:
    """Wakings of one thread at one stack by one origin."""

    stack: NamedStack
    detail: str | None
    count: int = 0
    wakers: Counter[tuple[int, int]] = field(default_factory=Counter)


WokenKey = tuple[int, tuple[int, ...], Origin]


def shares_of(rows: list[Row], wakings: Mapping[WokenKey, WokenAt]) -> list[int]:
    """Each row's wakings; those that ended no idle period: in the most frequent of rows that differ by mechanism."""
    main: dict[WokenKey, int] = {}
    shares = [row.count for row in rows]
    ended: Counter[WokenKey] = Counter()
    for number, row in enumerate(rows):
        key = (row.thread, row.stack.pcs, row.origin)
        main.setdefault(key, number)
        ended[key] += row.count
    for key, number in main.items():
        counted = wakings[key].count if key in wakings else 0
        shares[number] += max(0, counted - ended[key])
    return shares


# Exits that are equal in these belong to one row.
_SAME_ROW = (
    "next_tid",
    "next_tgid",
    "flags",
    "site_ip",
    "site_sp",
    "site_code",
    "waker_context",
    "waker_timer_function",
    "waker_irq",
    "waker_tid",
    "waker_tgid",
    "waker_ip",
    "waker_sp",
    "waker_code",
)
_DECIDING_FLAGS = Flag.WAKER | Flag.SITE | Flag.WAKER_SITE


def _alike(exits: Array, names: tuple[str, ...], *more: Array) -> list[Array]:
    """Numbers of the exits that are equal in `names` and `more`, the group that came first first."""
    if not len(exits):
        return []
    columns = [exits[name] & _DECIDING_FLAGS if name == "flags" else exits[name] for name in names]
    table = np.stack([column.astype(np.uint64) for column in (*columns, *more)], axis=1)
    # One opaque value a row: compared as bytes, which sorting by column after column is many times slower than.
    whole = np.ascontiguousarray(table).view(f"V{table.shape[1] * 8}").ravel()
    _, first, group = np.unique(whole, return_index=True, return_inverse=True)
    order = np.argsort(group, kind="stable")
    parts = np.split(order, np.cumsum(np.bincount(group))[:-1])
    return [parts[number] for number in np.argsort(first, kind="stable")]


class Blamer:
    """Joins the exits of one capture with stacks and names."""

    def __init__(self, capture: Capture, stacks: SiteStacks) -> None:
        self._capture = capture
        self._stacks = stacks
        self._tasks = {task.tid: task for task in capture.tasks}
        self._pids = set(capture.target.pids)
        self._counted_s = max(1, capture.counted_to_ns - capture.counted_from_ns) / 1e9
        self._named_wakers: dict[tuple[int, ...], NamedStack] = {}

    def _in_target(self, pid: int, tid: int) -> bool:
        if self._capture.target.system:
            task = self._tasks.get(tid)
            return pid != self._capture.own_pid and tid != 0 and not (task is not None and task.is_kernel)
        return pid in self._pids

    def origin(self, exit_: Any) -> tuple[Origin, str | None]:
        """What is behind a wake-up of a thread, and the name of the timer or device."""
        if not int(exit_["flags"]) & Flag.WAKER:
            return "kernel", None
        fields = ("next_tgid", "waker_context", "waker_timer_function", "waker_irq", "waker_tid", "waker_tgid")
        return self._origin(*(int(exit_[name]) for name in fields))

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
        """Every counted waking of the target's threads, by thread, stack and origin."""
        found: dict[WokenKey, WokenAt] = {}
        unseen: list[tuple[int, NamedStack, int]] = []
        for one in self._capture.wakings:
            stack = self._stacks.find(SLEEPER, one.pid, (one.tid, one.ip, one.sp, one.code))
            if one.context == WakerContext.UNSEEN:
                unseen.append((one.tid, stack, one.count))
                continue
            origin, detail = self._origin(
                one.pid, one.context, one.timer_function, one.irq, one.waker_tid, one.waker_pid
            )
            woken = found.setdefault((one.tid, stack.pcs, origin), WokenAt(stack, detail))
            woken.count += one.count
            if origin in ("other_thread", "other_process"):
                woken.wakers[(one.waker_tid, one.waker_pid)] += one.count
        for tid, stack, count in unseen:
            # What ended those few sleeps is most likely what ends the others there.
            same = [key for key in found if key[:2] == (tid, stack.pcs)]
            key = max(same, key=lambda one: found[one].count, default=(tid, stack.pcs, "kernel"))
            found.setdefault(key, WokenAt(stack, None)).count += count
        return found

    def rows(self, exits: Array, found: Array) -> list[Row]:
        """The target's exits, one row per (thread, stack, origin, mechanism)."""
        grouped: dict[tuple[int, tuple[int, ...], str, int], Row] = {}
        for numbers in _alike(exits, _SAME_ROW, found):
            exit_ = exits[numbers[0]]
            tid, pid = int(exit_["next_tid"]), int(exit_["next_tgid"])
            if not tid or not self._in_target(pid, tid):
                continue
            stack, key = NO_STACK, (tid, int(exit_["site_ip"]), int(exit_["site_sp"]), int(exit_["site_code"]))
            if int(exit_["flags"]) & Flag.SITE:
                stack = self._stacks.find(SLEEPER, pid, key)
            origin, detail = self.origin(exit_)
            mechanism = int(found[numbers[0]])
            row = grouped.setdefault(
                (tid, stack.pcs, origin, mechanism), Row(tid, stack, origin, MECHANISMS[mechanism])
            )
            count = int(exits["count"][numbers].sum())
            row.rows += numbers.tolist()
            row.count += count
            if detail:
                row.details[detail] += count
            if origin in ("other_thread", "other_process") or int(exit_["waker_context"]) == WakerContext.TASK:
                self._note_waker(row, exit_, count)
        return sorted(grouped.values(), key=lambda row: (-row.count, row.thread, row.stack.pcs))

    def _note_waker(self, row: Row, exit_: Any, count: int) -> None:
        flags = int(exit_["flags"])
        if not flags & Flag.WAKER or not int(exit_["waker_tid"]):
            return
        tid, pid = int(exit_["waker_tid"]), int(exit_["waker_tgid"])
        row.wakers[(tid, pid)] += count
        if flags & Flag.WAKER_SITE and self._in_target(pid, tid):
            key = (tid, int(exit_["waker_ip"]), int(exit_["waker_sp"]), int(exit_["waker_code"]))
            stack = self._stacks.find(WAKER, pid, key)
            self._named_wakers[(tid, *stack.pcs)] = stack
            row.waker_stacks[(tid, *stack.pcs)] += count

    def wakeup(self, row: Row, exits: Array, wakings: int | None) -> Wakeup:
        """The record of a row."""
        capture = self._capture
        own, count = exits[row.rows], row.count
        return Wakeup(
            mechanism=row.mechanism,
            origin=row.origin,
            count=count,
            rate_hz=count / capture.window_s,
            wakings_count=wakings,
            period_ms=period_ms(own),
            c0_ms=float(own["running_ns"].sum()) / 1e6,
            thread=self.thread(row.thread),
            waker=self._waker(row.wakers, row.waker_stacks),
            stack=list(row.stack.frames),
            stack_complete=row.stack.complete,
            detail=row.details.most_common(1)[0][0] if row.details else None,
            idle_ms=float(own["idle_ns"].sum()) / count / 1e6,
            states=self._states(own),
        )

    def _states(self, own: Array) -> dict[str, int]:
        # CPUs of one host have the same states, but for some with two kinds of cores: then the first one's names.
        names = next(iter(self._capture.states.values()), [])
        counted: Counter[str] = Counter()
        for state, count in enumerate(own["states"].sum(axis=0).tolist()):
            if count:
                counted[names[state] if state < len(names) else f"state {state}"] += count
        return dict(counted.most_common())

    def without_exit(self, key: WokenKey, woken: WokenAt) -> Waking:
        """The record of wakings of which none ended an idle period."""
        tid, _, origin = key
        return Waking(
            origin=origin,
            wakings_count=woken.count,
            wakings_hz=woken.count / self._counted_s,
            thread=self.thread(tid),
            waker=self._waker(woken.wakers, Counter()),
            stack=list(woken.stack.frames),
            stack_complete=woken.stack.complete,
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
            pid=pid,
            tid=tid,
            comm=thread.comm,
            server_name=thread.server_name,
            stack=list(stack.frames) if stack else [],
            stack_complete=stack.complete if stack else None,
        )

    def thread(self, tid: int) -> Thread:
        """A thread by its names."""
        task = self._tasks.get(tid)
        return Thread(
            tid=tid,
            comm=task.comm if task else f"thread {tid}",
            server_name=self._capture.server_names.get(tid),
            pid=task.pid if task else None,
        )

    def woken_elsewhere(self, exits: Array) -> list[Woken]:
        """Threads of the target that ended idle periods by waking other processes."""
        counted: Counter[tuple[int, str]] = Counter()
        mine = exits[(exits["flags"] & Flag.WAKER != 0) & (exits["waker_context"] == WakerContext.TASK)]
        for numbers in _alike(mine, ("waker_tgid", "waker_tid", "next_tgid", "next_tid")):
            exit_ = mine[numbers[0]]
            pid, tid, next_tid = int(exit_["waker_tgid"]), int(exit_["waker_tid"]), int(exit_["next_tid"])
            if not tid or not self._in_target(pid, tid) or self._in_target(int(exit_["next_tgid"]), next_tid):
                continue
            task = self._tasks.get(next_tid)
            counted[(tid, task.process if task else f"thread {next_tid}")] += int(mine["count"][numbers].sum())
        return [
            Woken(thread=self.thread(tid), process=process, count=count, rate_hz=count / self._capture.window_s)
            for (tid, process), count in counted.most_common()
        ]
