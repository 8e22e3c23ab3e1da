# SPDX-License-Identifier: Apache-2.0
"""Work in a fork of this process. Its memory is freed with it, and a crash affects only the fork.

A fork has its parent's data, so it needs no input. Its result is in a memory file, which is read after its end. The
parent wakes up once.
"""

from __future__ import annotations

import gc
import os
import signal
import struct
from collections.abc import Callable
from contextlib import suppress

import msgspec

from powerprof.system import descriptors
from powerprof.system.child import die_with_parent
from powerprof.system.errors import PowerprofError
from powerprof.system.own_processes import add_helper

_LENGTH = struct.Struct("<I")
_EXIT_PATIENCE_S = 1.0
# Children that were killed but have not ended.
_UNREAPED: list[int] = []

SendPart = Callable[[bytes], None]


class ForkResult(msgspec.Struct, frozen=True):
    """The parts that a fork returned, whether it finished, and its CPU time in seconds."""

    parts: list[bytes]
    ended: bool
    cpu_s: float


def run_in_fork(work: Callable[[SendPart], None], timeout_s: float) -> ForkResult:
    """Run `work` in a fork. It passes each part of its result to the function that it gets. Call from the main thread.

    `work` should take no lock that another thread may hold. A fork that has not ended after `timeout_s` seconds is
    killed, and its parts so far are returned. Raise PowerprofError if there are too many processes.
    """
    results = os.memfd_create("apart", os.MFD_CLOEXEC)
    parent, pid = os.getpid(), 0
    _UNREAPED[:] = [child for child in _UNREAPED if not reap(child, 0.0)]
    try:
        pid = os.fork()
        if pid == 0:
            _work(work, results, parent)
        add_helper(pid)
        status, cpu_s = _wait(pid, timeout_s)
        pid = 0
        return ForkResult(_read_parts(results), status == 0, cpu_s)
    except OSError as error:
        raise PowerprofError(
            f"cannot fork ({(error.strerror or str(error)).lower()})",
            "allow more processes: ulimit -u, and pids.max of its control group",
        ) from error
    finally:
        os.close(results)
        if pid:
            # After an interrupt the result is not needed.
            _kill(pid)


def _work(work: Callable[[SendPart], None], results: int, parent: int) -> None:
    """Run `work` in the child. Never return, and skip the parent's exit handlers."""
    status = 1
    try:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        die_with_parent()
        if os.getppid() != parent:
            return
        # Garbage collection would touch, and so copy, every page.
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
    """Return (wait status, CPU seconds) of a child. Kill it if it does not end in time."""
    ended = reap(pid, timeout_s) or _kill(pid)
    return ended or (signal.SIGKILL, 0.0)


def _kill(pid: int) -> tuple[int, float] | None:
    """Kill a child and return (wait status, CPU seconds).

    Return None and abandon the child if it sleeps in the kernel: it ends when it wakes.
    """
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    ended = reap(pid, _EXIT_PATIENCE_S)
    if ended is None:
        _UNREAPED.append(pid)
    return ended


def reap(pid: int, timeout_s: float | None) -> tuple[int, float] | None:
    """Return (wait status, CPU seconds) of a child that ends within `timeout_s` (None: ever); otherwise None.

    The CPU time includes the children that it waited for.
    """
    try:
        with os.fdopen(os.pidfd_open(pid), "rb", buffering=0) as ended:
            descriptors.readable([ended.fileno()], timeout_s)
        ended_pid, status, usage = os.wait4(pid, os.WNOHANG)
    except (ProcessLookupError, ChildProcessError):
        return signal.SIGKILL, 0.0
    return (status, usage.ru_utime + usage.ru_stime) if ended_pid else None


def _read_parts(results: int) -> list[bytes]:
    """Return the complete parts of the memory file."""
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
