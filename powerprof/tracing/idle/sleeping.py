# SPDX-License-Identifier: Apache-2.0
"""The stacks of threads that are asleep already when a trace begins, read without stopping them.

/proc/PID/task/TID/syscall names the stack pointer and pc of a blocked thread, and its memory stands still while it
sleeps; the same answer before and after the copy shows that it slept throughout. The registers follow when the trace
sees it woken: they were saved when it went to sleep and have not changed since.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from powerprof.processes.reader_process import ReaderProcess, Unreadable
from powerprof.tracing.idle.sites import SleepingStack


def sleeping_stacks(
    pid: int, aside: ReaderProcess, meanwhile: Callable[[], object] = lambda: None, frames: Sequence[int] = ()
) -> list[SleepingStack]:
    """The stacks of all threads of a process that are blocked now; those that run or may not be read are left out.

    `meanwhile` is called after each: thousands of threads take a second. `frames`: where an interpreter has its own.
    """
    try:
        stacks = aside.stacks(pid, meanwhile, frames)
    except Unreadable:
        return []
    return [SleepingStack(pid, tid, ip, sp, stack, chain) for tid, ip, sp, chain, stack in stacks]
