# SPDX-License-Identifier: Apache-2.0
"""Weighted stacks of attributions, profiles and queries, flame graphs made of them, and timelines of captures."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

import msgspec

from powerprof.attribution import causes
from powerprof.attribution.capture import Capture
from powerprof.attribution.profile import OnCpuProfile, OnCpuStack
from powerprof.model.attribution import Attribution, Wakeup
from powerprof.queries.records import Queries
from powerprof.system.errors import UsageError
from powerprof.system.next_steps import command_line
from powerprof.system.tasks import Task, clean
from powerprof.tracing.bpf.shared_numbers import Flag, WakerContext
from powerprof.tracing.captures import select_in_window
from powerprof.tracing.idle_data import SOFTIRQS, build_cause_keys

# Weighted stacks and the idle exits of a timeline, as plain values.

Frames = tuple[str, ...]
WeightedStack = tuple[Frames, float]
"""Frames outermost first, and a weight: idle exits, milliseconds of C0, or another count."""


class TimelineExit(msgspec.Struct, frozen=True):
    """One idle period of a CPU and its end; times are in ns.

    Attributes:
        next_ns: The time at which the CPU idled again; `None` if it did not in the window.
        cause: The program, thread or timer to blame, in words.
        thread: The thread that ran after the period.
    """

    cpu: int
    enter_ns: int
    exit_ns: int
    next_ns: int | None
    state: str
    mechanism: str
    cause: str
    thread: str | None


def merge_stacks(stacks: Iterable[WeightedStack]) -> list[WeightedStack]:
    """Return the sum of equal stacks, in the order of their frames; stacks without weight are left out."""
    sums: dict[Frames, float] = {}
    for frames, value in stacks:
        if value > 0:
            sums[frames] = sums.get(frames, 0) + value
    return sorted(sums.items())


Weight = Literal["count", "rate_hz", "c0_ms"]
NO_STACK = "[no user stack]"
INCOMPLETE = "[incomplete]"
Owner = dict[str, str | int]


class StackSet(msgspec.Struct, frozen=True):
    """The stacks of a record and their weights.

    Attributes:
        stacks: Frames and their counts, in `unit`.
        c0_ms: Frames and their C0 time in ms; `None` if it was not measured.
        modules: The file of each frame.
        owners: The attributes of the owner of each stack.
        states: The exits of each stack by idle state, if they are known.
    """

    title: str
    root: str
    unit: str
    stacks: list[WeightedStack]
    c0_ms: list[WeightedStack] | None
    modules: dict[str, str]
    window_s: float
    owners: list[Owner]
    states: list[dict[str, int]] | None = None


def _owner(known: Mapping[str, str | int | None]) -> Owner:
    """Return the known attributes of an owner.

    Names are those of OpenTelemetry's conventions; other names begin with `powerprof.`.
    """
    return {name: value for name, value in known.items() if value is not None and value != ""}


def frames_of(wakeup: Wakeup) -> Frames:
    """Return the frames of a wake-up, outermost first, below the name of its thread; an incomplete stack is marked."""
    frames = [frame.label for frame in reversed(wakeup.stack)]
    if not frames:
        frames = [NO_STACK]
    elif not wakeup.stack_complete:
        frames.insert(0, INCOMPLETE)
    return (wakeup.thread.label, *frames)


def stacks_of(wakeups: Iterable[Wakeup], by: Weight = "count") -> list[WeightedStack]:
    """Return one weighted stack per row."""
    return [(frames_of(wakeup), getattr(wakeup, by)) for wakeup in wakeups]


def modules_of(wakeups: Sequence[Wakeup]) -> dict[str, str]:
    """Return the file of each frame, by the label of the frame."""
    return {frame.label: frame.module for wakeup in wakeups for frame in wakeup.stack}


def _on_cpu_frames(row: OnCpuStack) -> Frames:
    # flamegraph.pl colours functions of the kernel by this suffix.
    frames = [f"{frame.label}_[k]" if frame.kernel else frame.label for frame in reversed(row.stack)]
    if row.stack_state in ("truncated", "failed", "lost"):
        frames.insert(0, INCOMPLETE)
    thread = row.server_name.removeprefix("thread/") if row.server_name else row.comm
    return (thread, *frames)


def attribution_stacks(record: Attribution) -> StackSet:
    """Return idle exits by thread and stack."""
    rows = record.wakeups
    return StackSet(
        f"Idle exits caused by {record.target.label}",
        record.target.label,
        "idle exits",
        stacks_of(rows),
        stacks_of(rows, "c0_ms"),
        modules_of(rows),
        record.window_s,
        [_owner_of(row, record) for row in rows],
        [row.states for row in rows],
    )


def _owner_of(row: Wakeup, record: Attribution) -> Owner:
    return _owner(
        {
            "thread.name": row.thread.label,
            "thread.id": row.thread.tid or None,
            "process.pid": row.thread.pid or record.target.pid,
            "process.executable.name": row.thread.process or (None if record.target.system else record.target.label),
            "powerprof.unit": row.thread.unit,
            "powerprof.mechanism": row.mechanism,
            "powerprof.origin": row.origin,
            "powerprof.detail": row.detail,
            "powerprof.waker": row.waker.comm if row.waker else None,
        }
    )


def profile_stacks(record: OnCpuProfile) -> StackSet:
    """Return samples of C0, or page faults, by thread and stack."""
    faults = record.percent_of == "page_faults"
    paths = [(_on_cpu_frames(row), row) for row in record.stacks]
    frames = [frame for row in record.stacks for frame in row.stack]
    return StackSet(
        "Page faults by function" if faults else "C0 time by function",
        "all",
        "page faults" if faults else "samples of C0",
        [(path, float(row.count)) for path, row in paths],
        None if faults else [(path, row.c0_ms or 0.0) for path, row in paths],
        {f"{frame.label}_[k]" if frame.kernel else frame.label: frame.module for frame in frames},
        record.window_s,
        [
            _owner(
                {
                    "thread.name": path[0],
                    "thread.id": row.tid or None,
                    "process.pid": row.pid or None,
                    "powerprof.stack_state": row.stack_state,
                }
            )
            for path, row in paths
        ],
    )


def query_stacks(record: Queries) -> StackSet:
    """Return samples by statement and stack. Raises UsageError if none were taken."""
    if not any(statement.stacks for statement in record.statements):
        raise UsageError("this run has no stacks", f"to record them: {command_line('queries --stacks')}")
    return StackSet(
        f"C0 time of {record.server.label} by statement",
        "all",
        "samples of C0",
        [
            ((statement.text, *stack.frames), float(stack.count))
            for statement in record.statements
            for stack in statement.stacks
        ],
        None,
        record.modules,
        record.window_s,
        [{"db.query.text": statement.text} for statement in record.statements for _ in statement.stacks],
    )


# Flame graphs as values: weighted stacks become placed frames.
# The root is at the top: the reader begins with the thread and ends at the function that waited. In a difference each
# frame is as wide as the larger of its two sides. With the widths of B, frames that only A has would be lost.

MAX_FRAMES = 4000
MAX_DEPTH = 256
_SMALLEST = 1 / 2000  # of the width, less than a pixel on any screen


class FlameFrame(msgspec.Struct, frozen=True):
    """A frame of a flame graph.

    Attributes:
        start: The left end, as a fraction of the width of the root.
        width: The width, as a fraction of the width of the root.
        value: The weight with all callees.
        own: The weight without callees.
        a: The value of the other side of a difference.
    """

    label: str
    depth: int
    start: float
    width: float
    value: float
    own: float
    a: float | None = None


class Flame(msgspec.Struct, frozen=True):
    """Frames in pre-order, the root first.

    Attributes:
        depth: The number of rows.
        hidden_count: The number of frames that are too narrow or too deep to be drawn.
        difference: Whether it compares two sides.
    """

    frames: tuple[FlameFrame, ...]
    unit: str
    depth: int
    hidden_count: int
    difference: bool = False


class _FlameNode(msgspec.Struct):
    label: str
    value: float = 0.0
    own: float = 0.0
    a: float = 0.0
    width: float = 0.0
    children: dict[str, _FlameNode] = msgspec.field(default_factory=dict)


def _add_stack(root: _FlameNode, frames: tuple[str, ...], value: float, a: float) -> None:
    node, width = root, max(value, a)
    for depth, label in enumerate(("", *frames)):
        if depth:
            node = node.children.setdefault(label, _FlameNode(label))
        node.value += value
        node.a += a
        node.width += width
    node.own += value


def _place_frames(root: _FlameNode, unit: str, limit: int, *, difference: bool) -> Flame:
    placed: list[FlameFrame] = []
    hidden = depth_seen = 0
    total = root.width
    # An explicit stack, because recursion in a profiled program may be deeper than Python's limit.
    waiting = [(root, 0, 0.0)]
    while waiting:
        node, depth, start = waiting.pop()
        width = node.width / total if total else 1.0
        if width < _SMALLEST or depth > MAX_DEPTH or len(placed) >= limit:
            hidden += 1
            continue
        depth_seen = max(depth_seen, depth)
        placed.append(FlameFrame(node.label, depth, start, width, node.value, node.own, node.a if difference else None))
        at = start
        below = []
        for child in sorted(node.children.values(), key=lambda frame: (-frame.width, frame.label)):
            below.append((child, depth + 1, at))
            at += child.width / total
        waiting.extend(reversed(below))
    return Flame(tuple(placed), unit, depth_seen + 1, hidden, difference)


def build_flame(stacks: Iterable[WeightedStack], *, unit: str, root: str = "all", limit: int = MAX_FRAMES) -> Flame:
    """Return the graph of a set of stacks, of at most `limit` frames."""
    top = _FlameNode(root)
    for frames, value in merge_stacks(stacks):
        _add_stack(top, frames, value, 0.0)
    return _place_frames(top, unit, limit, difference=False)


def build_flame_difference(
    a: Iterable[WeightedStack], b: Iterable[WeightedStack], *, unit: str, root: str = "all", limit: int = MAX_FRAMES
) -> Flame:
    """Return the graph of B compared with A: values are those of B, `a` those of A.

    The weights must be comparable: rates, or figures per query.
    """
    before, after = dict(merge_stacks(a)), dict(merge_stacks(b))
    top = _FlameNode(root)
    for frames in sorted(before.keys() | after.keys()):
        _add_stack(top, frames, after.get(frames, 0.0), before.get(frames, 0.0))
    return _place_frames(top, unit, limit, difference=True)


# Timelines of saved captures: idle periods, their ends and their causes.


class _Names:
    def __init__(self, capture: Capture) -> None:
        self._capture = capture
        self._tasks: dict[int, Task] = {task.tid: task for task in capture.tasks}

    def thread(self, tid: int, comm: bytes) -> str:
        """Return the server's name of a thread, else its process and name; `comm` is the name in the idle period."""
        if tid in self._capture.server_names:
            return self._capture.server_names[tid].removeprefix("thread/")
        task = self._tasks.get(tid)
        if task is None:
            return clean(comm) or f"thread {tid}"
        return task.comm if task.process in (task.comm, "kernel") else f"{task.process} {task.comm}"

    def cause(self, key: Any, thread: str | None) -> str:
        """Return the cause of an idle exit in words."""
        capture, context = self._capture, int(key["waker_context"])
        whose = f" for {thread}" if thread else ""
        if not int(key["flags"]) & Flag.WAKER:
            function = int(key["timer_function"])
            if function:
                return f"timer {capture.functions.get(function, hex(function))}{whose}"
            return thread or "no known task"
        if context == WakerContext.TIMER:
            function = int(key["waker_timer_function"])
            return f"timer {capture.functions.get(function, hex(function))}{whose}"
        irq = int(key["waker_irq"])
        if context == WakerContext.DEVICE:
            return f"{capture.interrupts.get(irq, f'irq {irq}')}{whose}"
        if context == WakerContext.SOFTIRQ:
            return f"softirq {SOFTIRQS[irq] if irq < len(SOFTIRQS) else irq}{whose}"
        if context == WakerContext.INTERRUPT or not key["waker_tid"]:
            return f"an interrupt{whose}"
        waker = self.thread(int(key["waker_tid"]), key["waker_comm"])
        return f"{waker} woke {thread}" if thread else waker


def build_timeline(capture: Capture) -> list[TimelineExit]:
    """Return every idle exit of the window, in the order of time."""
    exits = select_in_window(capture.exit_records(), capture.cpu_edges())
    names, periods = _Names(capture), []
    for period, mechanism in zip(exits, causes.classify_exits(build_cause_keys(exits), capture.states), strict=True):
        cpu, state = int(period["cpu"]), int(period["state"])
        states = capture.states.get(cpu, [])
        tid = int(period["next_tid"]) or int(period["woken_tid"])
        thread = names.thread(tid, period["next_comm"]) if tid else None
        next_ns = int(period["next_ns"])
        exit_ns = int(period["exit_ns"])
        periods.append(
            TimelineExit(
                cpu,
                min(int(period["enter_ns"]), exit_ns),
                exit_ns,
                next_ns if next_ns > exit_ns else None,
                states[state] if state < len(states) else f"state {state}",
                causes.MECHANISMS[int(mechanism)],
                names.cause(period, thread),
                thread if int(period["next_tid"]) else None,
            )
        )
    return sorted(periods, key=lambda idle_exit: (idle_exit.exit_ns, idle_exit.cpu))
