# SPDX-License-Identifier: Apache-2.0
"""Reads of other processes that may never come back, done by a child that is then left behind."""

from __future__ import annotations

import contextlib
import os
import select
import struct
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from powerprof import programs
from powerprof.closeable import Closeable
from powerprof.errors import PowerprofError
from powerprof.paths import procfs
from powerprof.stacks import reader_child

# Nothing that is read is on a disk: a page of memory comes at once, or whoever serves it lets us wait.
PATIENCE_S = 1.0
ANSWER_S = 3.0
MOST_LEFT_BEHIND = 2
_START_S = 20.0
_MOST_BYTES = 512 << 20


class Unreadable(PowerprofError):
    """The process is gone, or does not let itself be read; `errno` where the kernel said so."""

    def __init__(self, message: str, number: int = 0) -> None:
        super().__init__(message)
        self.errno = number


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

    def stacks(self, pid: int, meanwhile: Callable[[], object]) -> list[tuple[int, int, int, bytes]]:
        """(tid, ip, sp, bytes from sp up) of the threads that are blocked; `meanwhile` is called after each, and must
        not ask. Raises Unreadable."""
        record = reader_child.RECORD
        return [
            (*record.unpack_from(part, 1), part[1 + record.size :])
            for part in self._ask("stacks", pid, meanwhile)
            if part[:1] == b"s"
        ]

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

    def _ask(self, what: str, pid: int, meanwhile: Callable[[], object] = lambda: None) -> list[bytes]:
        if len(self._left) >= MOST_LEFT_BEHIND:
            self.silent[pid] = None
            raise Unreadable(f"process {pid} is not looked at: others kept their reader waiting")
        parts: list[bytes] = []
        self._asked_s = time.monotonic()
        try:
            for part in self._parts(f"{what} {pid}\n".encode()):
                if part[:1] == b"e":
                    number = struct.unpack("<i", part[1:])[0]
                    raise Unreadable(f"process {pid} cannot be read ({os.strerror(number).lower()})", number)
                parts.append(part)
                meanwhile()
        except (TimeoutError, OSError) as error:
            self._leave_behind()
            self.silent[pid] = None
            raise Unreadable(f"process {pid} kept a reader of its memory waiting") from error
        return parts

    def _parts(self, request: bytes) -> Iterator[bytes]:
        child = self._started()
        if child.stdin is None or child.stdout is None:
            raise BrokenPipeError
        child.stdin.write(request)
        child.stdin.flush()
        end_s = time.monotonic() + ANSWER_S
        failed: bytes | None = None
        left = _MOST_BYTES
        while True:
            size = struct.unpack("<I", self._exactly(child.stdout.fileno(), 4, end_s))[0]
            if not size:
                break
            left -= size
            if left < 0:
                raise TimeoutError
            part = self._exactly(child.stdout.fileno(), size, end_s)
            if part[:1] == b"e":
                failed = part
            else:
                yield part
        if failed is not None:
            yield failed

    def _exactly(self, pipe: int, size: int, end_s: float) -> bytes:
        data = bytearray()
        while len(data) < size:
            left_s = min(PATIENCE_S, end_s - time.monotonic())
            if left_s <= 0 or not select.select([pipe], [], [], left_s)[0]:
                raise TimeoutError
            part = os.read(pipe, min(size - len(data), 1 << 20))
            if not part:
                raise BrokenPipeError
            data += part
        return bytes(data)

    def _started(self) -> subprocess.Popen[bytes]:
        if self._child is None:
            argv = programs.python(reader_child.__file__, procfs(), site=False)
            child = programs.start(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            if child.stdout is None or not select.select([child.stdout], [], [], _START_S)[0]:
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
