# SPDX-License-Identifier: Apache-2.0
"""Reads of other processes that may never come back, done by a child that is then left behind."""

from __future__ import annotations

import contextlib
import os
import struct
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from powerprof import files, programs
from powerprof.closeable import Closeable
from powerprof.errors import PowerprofError
from powerprof.paths import procfs
from powerprof.stacks import reader_child

# Nothing that is read is on a disk: a page of memory comes at once, or whoever serves it lets us wait. The time that
# the child sleeps counts: one that waits for a CPU is late, and nobody keeps it.
PATIENCE_S = 1.0
ANSWER_S = 3.0
LATEST_S = 30.0
MOST_LEFT_BEHIND = 2
_LOOK_S = 0.1
_START_S = 20.0
_MOST_BYTES = 512 << 20
# Asked for at once: what an answer may take is for these.
_PLACES = 500


class Unreadable(PowerprofError):
    """The process is gone, or could not be read; `errno` where the kernel returned one."""

    def __init__(self, message: str, number: int = 0, hint: str | None = None) -> None:
        super().__init__(message, hint)
        self.errno = number


class _TooLateError(Exception):
    """The child got too little of the CPUs to answer."""


class _Waited:
    """How long a child has slept, of the time since it was asked or last answered."""

    def __init__(self, pid: int) -> None:
        self._base = Path(f"/proc/{pid}")
        self._began_s, self._awake_s = time.monotonic(), self._awake()

    def slept_s(self) -> float:
        """0 while it is on a CPU or waits for one."""
        awake_s = self._awake()
        if self._runs():
            return 0.0
        return time.monotonic() - self._began_s - (awake_s - self._awake_s)

    def _runs(self) -> bool:
        try:
            return (self._base / "stat").read_bytes().rpartition(b")")[2].split()[:1] == [b"R"]
        except OSError:
            return False

    def _awake(self) -> float:
        """On a CPU or waiting for one (Documentation/scheduler/sched-stats.rst); 0 where the kernel does not tell."""
        try:
            return sum(int(word) for word in (self._base / "schedstat").read_bytes().split()[:2]) / 1e9
        except (OSError, ValueError):
            return 0.0


@dataclass
class ReaderProcess(Closeable):
    """`with ReaderProcess() as aside:` asks a child, started when it is first needed.

    `silent` are processes that kept it waiting: no more than MOST_LEFT_BEHIND are waited for.
    """

    silent: dict[int, None] = field(default_factory=dict)
    _child: subprocess.Popen[bytes] | None = None
    _left: list[subprocess.Popen[bytes]] = field(default_factory=list)
    _asked_s: float = 0.0

    def maps(self, pid: int) -> tuple[bytes, bytes | None]:
        """The text of /proc/PID/maps, and the vdso. Raises Unreadable."""
        parts = {part[:1]: part[1:] for part in self._ask("maps", pid)}
        if b"m" not in parts:
            raise Unreadable(f"process {pid} cannot be read")
        return parts[b"m"], parts.get(b"v")

    def stacks(
        self, pid: int, meanwhile: Callable[[], object], frames: Sequence[int] = ()
    ) -> list[tuple[int, int, int, bytes, bytes]]:
        """(tid, ip, sp, an interpreter's frames, bytes from sp up) of the threads that are blocked; `meanwhile` is
        called after each, and must not ask. `frames` says where they are. Raises Unreadable."""
        record = reader_child.RECORD
        found = []
        for part in self._ask("stacks", pid, meanwhile, *map(str, frames)):
            if part[:1] == b"s":
                tid, ip, sp, size = record.unpack_from(part, 1)
                rest = part[1 + record.size :]
                found.append((tid, ip, sp, rest[:size], rest[size:]))
        return found

    def memory(self, pid: int, places: Sequence[tuple[int, int]]) -> list[bytes]:
        """What can be read of each (address, bytes) of a process: all, less, or nothing. Raises Unreadable."""
        found: list[bytes] = []
        for first in range(0, len(places), _PLACES):
            asked = places[first : first + _PLACES]
            words = (f"{address}:{size}" for address, size in asked)
            parts = [part[1:] for part in self._ask("memory", pid, lambda: None, *words) if part[:1] == b"d"]
            if len(parts) != len(asked):
                raise Unreadable(f"process {pid} cannot be read")
            found += parts
        return found

    def notes(self) -> list[str]:
        """Which processes were not looked at."""
        if not self.silent:
            return []
        shown = ", ".join(str(pid) for pid in list(self.silent)[:5])
        more = f" and {len(self.silent) - 5:,} more" if len(self.silent) > 5 else ""
        return [
            f"processes {shown}{more} were left out: they kept a reader of their memory waiting, or came after "
            f"{MOST_LEFT_BEHIND} that did"
        ]

    def rest(self, after_s: float) -> None:
        """End a child that nobody has asked for so long: its memory is worth more than the next one's start."""
        if self._child is not None and time.monotonic() - self._asked_s >= after_s:
            self.close()

    def close(self) -> None:
        """End the child. Those that wait for others cannot be ended: they go when they are answered."""
        if self._child is not None:
            for pipe in (self._child.stdin, self._child.stdout):
                if pipe is not None:
                    pipe.close()
            programs.stop(self._child, patience_s=0.5)
            self._child = None
        for child in self._left:
            child.poll()

    def _ask(self, what: str, pid: int, meanwhile: Callable[[], object] = lambda: None, *more: str) -> list[bytes]:
        if len(self._left) >= MOST_LEFT_BEHIND:
            self.silent[pid] = None
            raise Unreadable(f"process {pid} is not looked at: others kept their reader waiting")
        parts: list[bytes] = []
        self._asked_s = time.monotonic()
        try:
            for part in self._parts(" ".join((what, str(pid), *more)).encode() + b"\n"):
                if part[:1] == b"e":
                    number = struct.unpack("<i", part[1:])[0]
                    raise Unreadable(f"process {pid} cannot be read ({os.strerror(number).lower()})", number)
                parts.append(part)
                meanwhile()
        except _TooLateError as error:
            self.close()
            raise Unreadable(
                f"process {pid} could not be read in time: this host left its reader no CPU for {LATEST_S:g} s",
                hint="try again when the host is less busy",
            ) from error
        except (TimeoutError, OSError) as error:
            self._leave_behind()
            self.silent[pid] = None
            raise Unreadable(
                f"process {pid} could not be read in time: it kept a reader of its memory waiting"
            ) from error
        return parts

    def _parts(self, request: bytes) -> Iterator[bytes]:
        child = self._started()
        if child.stdin is None or child.stdout is None:
            raise BrokenPipeError
        child.stdin.write(request)
        child.stdin.flush()
        asked, end_s = _Waited(child.pid), time.monotonic() + LATEST_S
        failed: bytes | None = None
        left = _MOST_BYTES
        while True:
            size = struct.unpack("<I", self._exactly(child, 4, asked, end_s))[0]
            if not size:
                break
            left -= size
            if left < 0:
                raise TimeoutError
            part = self._exactly(child, size, asked, end_s)
            if part[:1] == b"e":
                failed = part
            else:
                yield part
        if failed is not None:
            yield failed

    def _exactly(self, child: subprocess.Popen[bytes], size: int, asked: _Waited, end_s: float) -> bytes:
        data = bytearray()
        if child.stdout is None:
            raise BrokenPipeError
        pipe, waited = child.stdout.fileno(), None
        while len(data) < size:
            is_over = time.monotonic() >= end_s
            if is_over or not files.readable([pipe], _LOOK_S):
                waited = waited or _Waited(child.pid)
                if waited.slept_s() >= PATIENCE_S or asked.slept_s() >= ANSWER_S:
                    raise TimeoutError
                if is_over:
                    raise _TooLateError
                continue
            part = os.read(pipe, min(size - len(data), 1 << 20))
            if not part:
                raise BrokenPipeError
            data += part
            waited = None
        return bytes(data)

    def _started(self) -> subprocess.Popen[bytes]:
        if self._child is None:
            argv = programs.python(reader_child.__file__, procfs(), site=False)
            child = programs.start(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            if child.stdout is None or not files.readable([child.stdout.fileno()], _START_S):
                programs.stop(child, patience_s=0.5)
                raise PowerprofError(
                    "the child that reads other processes did not start",
                    "the host may be too busy: try again when it is idle",
                )
            os.read(child.stdout.fileno(), 4)
            self._child = child
        return self._child

    def _leave_behind(self) -> None:
        child, self._child = self._child, None
        if child is not None:
            child.kill()  # of effect when what it waits for has come
            for pipe in (child.stdin, child.stdout):
                with contextlib.suppress(OSError):
                    if pipe is not None:
                        pipe.close()
            self._left.append(child)
