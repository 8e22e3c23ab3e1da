# SPDX-License-Identifier: Apache-2.0
"""Timelines of saved captures: idle periods, their ends and their causes."""

from __future__ import annotations

from typing import Any

import msgspec

from powerprof.attribution import causes
from powerprof.attribution.capture import Capture
from powerprof.system.tasks import Task, clean
from powerprof.tracing.bpf.shared_numbers import Flag, WakerContext
from powerprof.tracing.captures import select_in_window
from powerprof.tracing.idle_data import SOFTIRQS, build_cause_keys


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
    return sorted(periods, key=lambda period: (period.exit_ns, period.cpu))
