# SPDX-License-Identifier: Apache-2.0
"""Registers and stack bytes of a sleeping thread by ptrace: what the tracer captures, without BPF and without root."""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_SEIZE, _INTERRUPT, _GETREGS, _DETACH = 0x4206, 0x4207, 12, 17
_WALL = 0x40000000
STACK_BYTES = 16 << 10


def _ptrace(request: int, tid: int, data: object = None) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.ptrace.argtypes = (ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p)
    libc.ptrace.restype = ctypes.c_long
    if libc.ptrace(request, tid, None, data) < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"ptrace {request:#x}: {os.strerror(number)}")


def capture(pid: int, tid: int) -> tuple[bytes, bytes]:
    """(21 registers as `struct pt_regs`, up to 16 KiB of stack from sp up) of one thread.

    PTRACE_GETREGS fills `struct user_regs_struct`, whose first 21 words are pt_regs. An interrupted system call that
    is to be restarted shows the ip just after `syscall`, as it does in BPF.
    """
    _ptrace(_SEIZE, tid)
    try:
        _ptrace(_INTERRUPT, tid)
        os.waitpid(tid, _WALL)
        words = (ctypes.c_uint64 * 27)()
        _ptrace(_GETREGS, tid, ctypes.byref(words))
        registers = bytes(words)[: 21 * 8]
        return registers, _stack(pid, words[19])
    finally:
        _ptrace(_DETACH, tid)


def _stack(pid: int, sp: int) -> bytes:
    parts = []
    with Path(f"/proc/{pid}/mem").open("rb", buffering=0) as memory:
        at = sp
        while at < sp + STACK_BYTES:
            size = min(4096 - at % 4096, sp + STACK_BYTES - at)
            try:
                parts.append(os.pread(memory.fileno(), size, at))
            except OSError:
                break
            at += size
    return b"".join(parts)


def wait_asleep(pid: int, tid: int, patience_s: float = 5.0) -> None:
    """Wait until the thread sleeps (state S)."""
    end = time.monotonic() + patience_s
    while time.monotonic() < end:
        state = Path(f"/proc/{pid}/task/{tid}/stat").read_text().rpartition(")")[2].split()[0]
        if state == "S":
            return
        time.sleep(0.005)
    raise AssertionError(f"thread {tid} never sleeps")


@contextmanager
def held_thread(tid: int) -> Iterator[None]:
    """Hold one thread, while the other threads of its process run."""
    _ptrace(_SEIZE, tid)
    try:
        _ptrace(_INTERRUPT, tid)
        os.waitpid(tid, _WALL)
        yield
    finally:
        _ptrace(_DETACH, tid)
