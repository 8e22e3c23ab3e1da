# SPDX-License-Identifier: Apache-2.0
"""From a saved capture to the timeline of its idle periods, with what ended each and who is to blame."""

from __future__ import annotations

from typing import Any

from powerprof.attribution import idle
from powerprof.attribution.capture import Capture
from powerprof.processes.tasks import Task, clean
from powerprof.report.stacks.samples import TimelineExit
from powerprof.tracing.bpf.shared_numbers import Flag, WakerContext
from powerprof.tracing.captures.edges import in_window
from powerprof.tracing.idle.aggregate import cause_keys
from powerprof.tracing.idle.layout import SOFTIRQS


class _Names:
    def __init__(self, capture: Capture) -> None:
        self._capture = capture
        self._tasks: dict[int, Task] = {task.tid: task for task in capture.tasks}

    def thread(self, tid: int, comm: bytes) -> str:
        """The server's name of a thread, else process and comm; `comm` is what the period itself knows."""
        if tid in self._capture.server_names:
            return self._capture.server_names[tid].removeprefix("thread/")
        task = self._tasks.get(tid)
        if task is None:
            return clean(comm) or f"thread {tid}"
        return task.comm if task.process in (task.comm, "kernel") else f"{task.process} {task.comm}"

    def cause(self, key: Any, thread: str | None) -> str:
        """Who or what is behind an exit."""
        capture, context = self._capture, int(key["waker_context"])
        whose = f" for {thread}" if thread else ""
        if not int(key["flags"]) & Flag.WAKER:
            function = int(key["timer_function"])
            if function:
                return f"timer {capture.functions.get(function, hex(function))}{whose}"
            return thread or "nothing that ran"
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


def timeline_of(capture: Capture) -> list[TimelineExit]:
    """Every idle exit in the window, in the order of time."""
    exits = in_window(capture.exit_records(), capture.cpu_edges())
    names, periods = _Names(capture), []
    for period, mechanism in zip(exits, idle.mechanisms(cause_keys(exits), capture.states), strict=True):
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
                idle.MECHANISMS[int(mechanism)],
                names.cause(period, thread),
                thread if int(period["next_tid"]) else None,
            )
        )
    return sorted(periods, key=lambda exit_: (exit_.exit_ns, exit_.cpu))
