"""The stacks of threads that are asleep already when a trace begins, read without stopping them.

/proc/PID/task/TID/syscall names the stack pointer and pc of a blocked thread, and its memory stands still while it
sleeps; the same answer before and after the copy shows that it slept throughout. The registers follow when the trace
sees it woken: they were saved when it went to sleep and have not changed since.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from powerprof.files import try_text
from powerprof.paths import procfs

STACK_BYTES = 0x4000
_PAGE = 4096
MAX_THREADS = 20_000


@dataclass(frozen=True)
class SleepingStack:
    """Stack bytes of a blocked thread from `sp` up; its registers are not known yet."""

    pid: int
    tid: int
    ip: int
    sp: int
    stack: bytes


def _where(base: Path) -> tuple[int, int] | None:
    words = (try_text(base / "syscall") or "").split()
    # `nr arg0 … arg5 sp pc`, `-1 sp pc` for a block outside of a system call, or `running`.
    if len(words) not in (3, 9):
        return None
    try:
        return int(words[-1], 16), int(words[-2], 16)
    except ValueError:
        return None


def _copy(memory: int, sp: int) -> bytes:
    """Up to STACK_BYTES from sp; page by page, so that the end of the stack cuts off no more than is not there."""
    parts = []
    at, end = sp, sp + STACK_BYTES
    while at < end:
        size = min(_PAGE - at % _PAGE, end - at)
        try:
            part = os.pread(memory, size, at)
        except OSError:
            break
        parts.append(part)
        if len(part) < size:
            break
        at += size
    return b"".join(parts)


def sleeping_stacks(pid: int) -> list[SleepingStack]:
    """The stacks of all threads of a process that are blocked now; those that run or may not be read are left out."""
    base = procfs() / str(pid)
    found = []
    try:
        tids = sorted(int(name) for name in os.listdir(base / "task") if name.isdigit())[:MAX_THREADS]
        memory = os.open(base / "mem", os.O_RDONLY)
    except OSError:
        return []
    try:
        for tid in tids:
            before = _where(base / "task" / str(tid))
            if before is None or before[0] == 0:
                continue
            stack = _copy(memory, before[1])
            if stack and _where(base / "task" / str(tid)) == before:
                found.append(SleepingStack(pid, tid, before[0], before[1], stack))
    finally:
        os.close(memory)
    return found
