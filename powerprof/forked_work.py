# SPDX-License-Identifier: Apache-2.0
"""Work in a fork of this process: what it reads and builds is gone with it, and what breaks it breaks nobody else.

A fork has all that its parent has, so that nothing needs to be handed over; what it hands back lies in a memory file,
which is read when it has ended. Who waits is woken once.
"""

from __future__ import annotations

import gc
import os
import signal
import struct
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from powerprof import files
from powerprof.child import die_with_parent
from powerprof.errors import PowerprofError

_LENGTH = struct.Struct("<I")
_DYING_S = 1.0
# Children that were killed and have not ended.
_LEFT: list[int] = []

Say = Callable[[bytes], None]


@dataclass(frozen=True)
class Apart:
    """The parts that were handed over, whether the work came to its end, and the CPU time that it took."""

    parts: list[bytes]
    ended: bool
    cpu_s: float


def apart(work: Callable[[Say], None], timeout_s: float) -> Apart:
    """Do `work`, which calls what it is given with each part of its result. To be called in the main thread.

    No lock that another thread may hold should be taken in it; one that is makes it end by `timeout_s`, as anything
    else that takes too long, and what was handed over until then counts. Raises PowerprofError where there are too
    many processes.
    """
    results = os.memfd_create("apart", os.MFD_CLOEXEC)
    parent, pid = os.getpid(), 0
    _LEFT[:] = [left for left in _LEFT if not _reaped(left, 0.0)]
    try:
        pid = os.fork()
        if pid == 0:
            _work(work, results, parent)
        status, cpu_s = _wait(pid, timeout_s)
        pid = 0
        return Apart(_parts(results), status == 0, cpu_s)
    except OSError as error:
        raise PowerprofError(
            f"cannot fork ({(error.strerror or str(error)).lower()})",
            "allow more processes: ulimit -u, and pids.max of its control group",
        ) from error
    finally:
        os.close(results)
        if pid:
            # An interrupt: the result is of no use any more.
            _kill(pid)


def _work(work: Callable[[Say], None], results: int, parent: int) -> None:
    """The child: it never returns, and runs nothing of what its parent does at its end."""
    status = 1
    try:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        die_with_parent()
        if os.getppid() != parent:
            return
        # To look at every object would copy every page.
        gc.disable()
        work(lambda part: _put(results, part))
        status = 0
    finally:
        os._exit(status)


def _put(results: int, part: bytes) -> None:
    view = memoryview(_LENGTH.pack(len(part)) + part)
    while view:
        view = view[os.write(results, view) :]


def _wait(pid: int, timeout_s: float) -> tuple[int, float]:
    """(wait status, CPU seconds) of a child, which is killed if it does not end in time."""
    ended = _reaped(pid, timeout_s) or _kill(pid)
    return ended or (signal.SIGKILL, 0.0)


def _kill(pid: int) -> tuple[int, float] | None:
    """(wait status, CPU seconds) of a child that is killed; None for one that a sleep in the kernel keeps: it is
    abandoned, and ends when the sleep does."""
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    ended = _reaped(pid, _DYING_S)
    if ended is None:
        _LEFT.append(pid)
    return ended


def _reaped(pid: int, timeout_s: float) -> tuple[int, float] | None:
    """(wait status, CPU seconds) of a child that ends within that time; else None."""
    try:
        with os.fdopen(os.pidfd_open(pid), "rb", buffering=0) as ended:
            files.readable([ended.fileno()], timeout_s)
        found, status, used = os.wait4(pid, os.WNOHANG)
    except (ProcessLookupError, ChildProcessError):
        return signal.SIGKILL, 0.0
    return (status, used.ru_utime + used.ru_stime) if found else None


def _parts(results: int) -> list[bytes]:
    """What was handed over whole."""
    data = os.pread(results, os.fstat(results).st_size, 0)
    parts, at = [], 0
    while at + _LENGTH.size <= len(data):
        (size,) = _LENGTH.unpack_from(data, at)
        part = data[at + _LENGTH.size : at + _LENGTH.size + size]
        if len(part) < size:
            break
        parts.append(part)
        at += _LENGTH.size + size
    return parts
