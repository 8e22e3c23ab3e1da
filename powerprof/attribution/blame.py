"""Pure: a capture → who is to blame for the idle exits of its target, with nothing left out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np

from powerprof.attribution import causes, idle
from powerprof.attribution.capture import Capture
from powerprof.attribution.idle import MECHANISMS, Array
from powerprof.attribution.records import Attribution, Origin, StackCounts, Thread, Waker, Wakeup, Waking, Woken
from powerprof.attribution.sites import SLEEPER, WAKER, NamedStack, SiteStacks
from powerprof.energy.domains import total
from powerprof.energy.split import Consumer, split_energy
from powerprof.records import EnergySplit, Mechanism
from powerprof.tracing.layout import SOFTIRQS, Flag, WakerContext
from powerprof.tracing.tasks import Task

# Timer callbacks that wake the thread which waits on that timer: nanosleep, futex and poll time-outs; schedule_timeout;
# timerfd; POSIX timers; setitimer (kernel: kernel/time/{hrtimer,sleep_timeout,posix-timers,itimer}.c, fs/timerfd.c).
OWN_TIMERS = frozenset({
    "hrtimer_wakeup", "process_timeout", "timerfd_tmrproc", "timerfd_alarmproc", "posix_timer_fn", "it_real_fn",
    "alarm_handle_timer", "alarmtimer_nsleep_wakeup",
})  # fmt: skip
_TIMER_SOFTIRQS = frozenset({"TIMER", "HRTIMER", "RCU", "SCHED"})
_NO_STACK = NamedStack((), (), False, "no user stack", False)


@dataclass
class _Row:
    """The exits of one row of the result."""

    thread: int
    stack: NamedStack
    origin: Origin
    mechanism: Mechanism
    rows: list[int] = field(default_factory=list)
    wakers: Counter[tuple[int, int]] = field(default_factory=Counter)
    waker_stacks: Counter[tuple[int, ...]] = field(default_factory=Counter)
    details: Counter[str] = field(default_factory=Counter)


@dataclass
class _Woken:
    """Wakings of one thread at one stack by one origin."""

    stack: NamedStack
    detail: str | None
    count: int = 0
    wakers: Counter[tuple[int, int]] = field(default_factory=Counter)


_WokenKey = tuple[int, tuple[int, ...], Origin]


def _shares(rows: list[_Row], wakings: Mapping[_WokenKey, _Woken]) -> list[int]:
    """Each row's wakings; those that ended no idle period: in the most frequent of rows that differ by mechanism."""
    main: dict[_WokenKey, int] = {}
    shares = [len(row.rows) for row in rows]
    ended: Counter[_WokenKey] = Counter()
    for number, row in enumerate(rows):
        key = (row.thread, row.stack.pcs, row.origin)
        main.setdefault(key, number)
        ended[key] += len(row.rows)
    for key, number in main.items():
        counted = wakings[key].count if key in wakings else 0
        shares[number] += max(0, counted - ended[key])
    return shares


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

    def wakings(self) -> dict[_WokenKey, _Woken]:
        """Every counted waking of the target's threads, by thread, stack and origin."""
        found: dict[_WokenKey, _Woken] = {}
        unseen: list[tuple[int, NamedStack, int]] = []
        for one in self._capture.wakings:
            stack = self._stacks.find(SLEEPER, one.pid, (one.tid, one.ip, one.sp, one.code))
            if one.context == WakerContext.UNSEEN:
                unseen.append((one.tid, stack, one.count))
                continue
            origin, detail = self._origin(
                one.pid, one.context, one.timer_function, one.irq, one.waker_tid, one.waker_pid
            )
            woken = found.setdefault((one.tid, stack.pcs, origin), _Woken(stack, detail))
            woken.count += one.count
            if origin in ("other_thread", "other_process"):
                woken.wakers[(one.waker_tid, one.waker_pid)] += one.count
        for tid, stack, count in unseen:
            # What ended those few sleeps is most likely what ends the others there.
            same = [key for key in found if key[:2] == (tid, stack.pcs)]
            key = max(same, key=lambda one: found[one].count, default=(tid, stack.pcs, "kernel"))
            found.setdefault(key, _Woken(stack, None)).count += count
        return found

    def rows(self, exits: Array, found: Array) -> list[_Row]:
        """The target's exits, one row per (thread, stack, origin, mechanism)."""
        grouped: dict[tuple[int, tuple[int, ...], str, int], _Row] = {}
        for number, exit_ in enumerate(exits):
            tid, pid = int(exit_["next_tid"]), int(exit_["next_tgid"])
            if not tid or not self._in_target(pid, tid):
                continue
            stack, key = _NO_STACK, (tid, int(exit_["site_ip"]), int(exit_["site_sp"]), int(exit_["site_code"]))
            if int(exit_["flags"]) & Flag.SITE:
                stack = self._stacks.find(SLEEPER, pid, key)
            origin, detail = self.origin(exit_)
            mechanism = int(found[number])
            row = grouped.setdefault(
                (tid, stack.pcs, origin, mechanism), _Row(tid, stack, origin, MECHANISMS[mechanism])
            )
            row.rows.append(number)
            if detail:
                row.details[detail] += 1
            if origin in ("other_thread", "other_process") or int(exit_["waker_context"]) == WakerContext.TASK:
                self._note_waker(row, exit_)
        return sorted(grouped.values(), key=lambda row: (-len(row.rows), row.thread, row.stack.pcs))

    def _note_waker(self, row: _Row, exit_: Any) -> None:
        flags = int(exit_["flags"])
        if not flags & Flag.WAKER or not int(exit_["waker_tid"]):
            return
        tid, pid = int(exit_["waker_tid"]), int(exit_["waker_tgid"])
        row.wakers[(tid, pid)] += 1
        if flags & Flag.WAKER_SITE and self._in_target(pid, tid):
            key = (tid, int(exit_["waker_ip"]), int(exit_["waker_sp"]), int(exit_["waker_code"]))
            stack = self._stacks.find(WAKER, pid, key)
            self._named_wakers[(tid, *stack.pcs)] = stack
            row.waker_stacks[(tid, *stack.pcs)] += 1

    def wakeup(self, row: _Row, exits: Array, wakings: int | None) -> Wakeup:
        """The record of a row."""
        capture = self._capture
        own = exits[row.rows]
        count = len(own)
        times = np.where(own["waking_ns"] > 0, own["waking_ns"], own["exit_ns"])
        running = np.where(own["next_ns"] > own["exit_ns"], own["next_ns"] - own["exit_ns"], 0)
        slept = (own["exit_ns"] - own["enter_ns"]).astype(np.float64)
        return Wakeup(
            mechanism=row.mechanism, origin=row.origin, count=count, rate_hz=count / capture.window_s,
            wakings_count=wakings, period_ms=causes.period_ms(times), c0_ms=float(running.sum()) / 1e6,
            thread=self.thread(row.thread), waker=self._waker(row.wakers, row.waker_stacks),
            stack=list(row.stack.frames), stack_complete=row.stack.complete,
            detail=row.details.most_common(1)[0][0] if row.details else None,
            idle_ms=float(slept.mean()) / 1e6, states=self._states(own),
        )  # fmt: skip

    def _states(self, own: Array) -> dict[str, int]:
        counted: Counter[str] = Counter()
        for cpu, state in zip(own["cpu"].tolist(), own["state"].tolist(), strict=True):
            names = self._capture.states.get(cpu, [])
            counted[names[state] if state < len(names) else f"state {state}"] += 1
        return dict(counted.most_common())

    def without_exit(self, key: _WokenKey, woken: _Woken) -> Waking:
        """The record of wakings of which none ended an idle period."""
        tid, _, origin = key
        return Waking(
            origin=origin, wakings_count=woken.count, wakings_hz=woken.count / self._counted_s,
            thread=self.thread(tid), waker=self._waker(woken.wakers, Counter()), stack=list(woken.stack.frames),
            stack_complete=woken.stack.complete, detail=woken.detail,
        )  # fmt: skip

    def _waker(self, wakers: Counter[tuple[int, int]], waker_stacks: Counter[tuple[int, ...]]) -> Waker | None:
        if not wakers:
            return None
        (tid, pid), _ = wakers.most_common(1)[0]
        stacks = [key for key, _ in waker_stacks.most_common() if key[0] == tid]
        stack = self._named_wakers[stacks[0]] if stacks else None
        thread = self.thread(tid)
        return Waker(
            pid=pid, tid=tid, comm=thread.comm, server_name=thread.server_name,
            stack=list(stack.frames) if stack else [], stack_complete=stack.complete if stack else None,
        )  # fmt: skip

    def thread(self, tid: int) -> Thread:
        """A thread by its names."""
        task = self._tasks.get(tid)
        return Thread(
            tid=tid, comm=task.comm if task else f"thread {tid}", server_name=self._capture.server_names.get(tid),
            pid=task.pid if task else None,
        )  # fmt: skip

    def woken_elsewhere(self, exits: Array) -> list[Woken]:
        """Threads of the target that ended idle periods by waking other processes."""
        counted: Counter[tuple[int, str]] = Counter()
        mine = exits[(exits["flags"] & Flag.WAKER != 0) & (exits["waker_context"] == WakerContext.TASK)]
        for exit_ in mine:
            pid, tid, next_tid = int(exit_["waker_tgid"]), int(exit_["waker_tid"]), int(exit_["next_tid"])
            if not tid or not self._in_target(pid, tid) or self._in_target(int(exit_["next_tgid"]), next_tid):
                continue
            task = self._tasks.get(next_tid)
            counted[(tid, task.process if task else f"thread {next_tid}")] += 1
        return [
            Woken(thread=self.thread(tid), process=process, count=count, rate_hz=count / self._capture.window_s)
            for (tid, process), count in counted.most_common()
        ]


def _stack_counts(stacks: SiteStacks, rows: list[_Row], lost: int) -> StackCounts:
    # Threads that the kernel runs for a process (io_uring's workers) have no user stack to be complete.
    rows = [row for row in rows if row.stack is not _NO_STACK]
    blamed = sum(len(row.rows) for row in rows)
    with_stack = sum(len(row.rows) for row in rows if row.stack.captured)
    complete = sum(len(row.rows) for row in rows if row.stack.complete)
    frames = [frame for row in rows for frame in row.stack.frames]
    unnamed = sum(frame.function is None for frame in frames)
    tally = stacks.tally
    return StackCounts(
        captured_count=tally.captured, complete_count=tally.complete, truncated_count=tally.truncated,
        failed_count=tally.failed, lost_count=lost,
        exits_with_stack_percent=100.0 * with_stack / blamed if blamed else None,
        exits_complete_percent=100.0 * complete / blamed if blamed else None,
        unnamed_frames_percent=100.0 * unnamed / len(frames) if frames else None,
    )  # fmt: skip


def _energy(capture: Capture, wakeups: list[Wakeup], others: Array, cpus: int) -> EnergySplit | None:
    """The host's energy in the window onto the target's rows, powerprof and the rest, by the C0 time that followed."""
    whole = total(capture.energy)
    if whole.joules is None or whole.kind is None or whole.source is None or capture.c0_percent is None:
        return None
    own = others["next_tgid"] == capture.own_pid
    rows = tuple(
        Consumer(
            name=f"{row.thread.label} · {row.stack[0].label if row.stack else row.origin}",
            c0_s=row.c0_ms / 1e3, wakeups_count=row.count,
        )
        for row in wakeups
    )  # fmt: skip
    target = Consumer(
        name=capture.target.label, c0_s=sum(row.c0_s for row in rows),
        wakeups_count=sum(row.wakeups_count for row in rows), children=rows,
    )  # fmt: skip
    rest = tuple(
        Consumer(name=name, c0_s=_running_s(exits), wakeups_count=len(exits))
        for name, exits in (("powerprof", others[own]), ("other wake-ups", others[~own]))
    )
    return split_energy(
        whole.joules, capture.window_s, idle_watts=capture.idle_watts,
        c0_s=capture.c0_percent / 100 * cpus * capture.window_s, consumers=(target, *rest), kind=whole.kind,
        source=whole.source, wakeups_count=float(len(others) + sum(row.count for row in wakeups)),
        wakeup_joules=capture.wakeup_joules,
    )  # fmt: skip


def _running_s(exits: Array) -> float:
    ended = exits[exits["next_ns"] > exits["exit_ns"]]
    return float((ended["next_ns"] - ended["exit_ns"]).sum()) / 1e9


def _task_of(capture: Capture) -> Callable[[int, int | None, str], Task]:
    known = {one.tid: Task(one.tid, one.pid, one.comm, one.process, one.is_kernel) for one in capture.tasks}
    known[0] = Task(0, 0, "idle", "kernel", True)

    def look_up(tid: int, pid: int | None, comm: str) -> Task:
        return known.get(tid) or Task(tid, pid, comm or f"thread {tid}", comm or f"thread {tid}", False)

    return look_up


def attribute(capture: Capture, stacks: SiteStacks) -> Attribution:
    """The whole attribution of a capture. Conservation is over every idle exit of the host in the window."""
    edges = capture.cpu_edges()
    exits = idle.in_window(capture.exit_records(), edges)
    found = idle.mechanisms(exits)
    blamer = Blamer(capture, stacks)
    rows = blamer.rows(exits, found)
    mine = np.zeros(len(exits), dtype=bool)
    for row in rows:
        mine[row.rows] = True
    others = exits[~mine]
    other_causes = causes.summarise(
        others, found[~mine], capture.window_s, _task_of(capture), functions=capture.functions,
        interrupts=capture.interrupts, own_pid=capture.own_pid,
    ) if len(others) else []  # fmt: skip
    counted, without_exit = not capture.loaded_count and not capture.uncounted_count, []
    shares: list[int | None] = [None] * len(rows)
    if counted:
        wakings = blamer.wakings()
        shares = [*_shares(rows, wakings)]
        ended = {(row.thread, row.stack.pcs, row.origin) for row in rows}
        without_exit = [blamer.without_exit(key, woken) for key, woken in wakings.items() if key not in ended]
        without_exit.sort(key=lambda one: (-one.wakings_count, one.thread.tid, [frame.address for frame in one.stack]))
    wakeups = [blamer.wakeup(row, exits, share) for row, share in zip(rows, shares, strict=True)]
    split = _energy(capture, wakeups, others, len(edges))
    if split is not None and split.rate_watts is not None:
        parts = split.parts[0].children
        wakeups = [
            msgspec.structs.replace(wakeup, joules=part.joules, joules_kind=split.kind)
            for wakeup, part in zip(wakeups, parts, strict=True)
        ]
    notes = [*capture.notes, *stacks.notes()]
    if capture.loaded_count:
        notes.append(
            f"under load {capture.loaded_count} sleeps and wakings of the target were not looked at: "
            f"wakings_count is unknown"
        )
    if capture.uncounted_count:
        notes.append(f"too many call sites to count wakings at: {capture.uncounted_count} were left out")
    if capture.stacks_lost_count:
        notes.append(
            f"{capture.stacks_lost_count} stacks were lost to a full buffer: those exits have no complete stack "
            f"(a larger --stack-buffer)"
        )
    if capture.unsent_count:
        notes.append(f"{capture.unsent_count} more call paths than are kept were seen: their stacks were not copied")
    return Attribution(
        id=None, started_at=capture.started_at, target=capture.target, window_s=capture.window_s,
        cpus=len(edges), conservation=idle.conserve(exits, found, capture.lost_count, edges), wakeups=wakeups,
        stacks=_stack_counts(stacks, rows, capture.stacks_lost_count), tool=capture.tool, host=capture.host,
        wakings_window_s=(capture.counted_to_ns - capture.counted_from_ns) / 1e9 if counted else None,
        wakings_without_exit=without_exit, woken_elsewhere=blamer.woken_elsewhere(exits), other_causes=other_causes,
        c0_percent=capture.c0_percent, energy=capture.energy, energy_split=split,
        notes=notes, interrupted=capture.interrupted,
    )  # fmt: skip
