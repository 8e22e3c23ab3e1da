# SPDX-License-Identifier: Apache-2.0
"""Run DTrace behind two processes, so that the traced program survives however powerprof or DTrace ends.

`dtrace -p` puts a breakpoint into the program's dynamic linker and removes it when it ends normally. If DTrace is
killed before, the breakpoint stays, and the program dies of SIGTRAP when it next loads a library (dtrace 2.0.1 and
2.0.7). Therefore this file, started as a script in its own session, uses only the standard library and

- starts DTrace and ends it by one SIGINT, after its BEGIN has run (its handlers are installed by then), never by
  SIGKILL; then it waits without a limit;
- does so when powerprof closes the pipe or dies: kill -9 closes the pipe too;
- compares the linker's code with the code before, and removes the breakpoint as soon as DTrace traces: it serves new
  libraries, which have no probes here. From then on even SIGKILL to DTrace does not harm the program.

It runs as two processes. If the one that does this is killed, the other inherits DTrace (PR_SET_CHILD_SUBREAPER) and
continues. If the other one is killed, the trace ends. If both are killed at the same instant, DTrace continues and the
program lives. (A parent-death signal for DTrace ended it before its handlers were installed in 4 of 12 tries, and the
program with it.)

Arguments: the program's pid, the descriptor of a file that becomes DTrace's stdin (the script), then DTrace's command
line. stdin is the pipe, stdout (a file) the output of DTrace.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from types import FrameType

BEGUN = b"begin\t"
STDIN = "/dev/stdin"
_AT_NULL, _AT_BASE = 0, 7  # include/uapi/linux/auxvec.h
_PR_SET_CHILD_SUBREAPER = 36  # include/uapi/linux/prctl.h
_BREAKPOINT = 0xCC
_MAX_CODE_BYTES = 8 << 20
_BEFORE_S, _WITHIN_S = 0.02, 0.5


class LinkerCode:
    """The code of a program's dynamic linker before tracing; `mend` restores the changes of a debugger."""

    def __init__(self, pid: int) -> None:
        """Save the code. A program that has ended or has no linker needs no repair."""
        self._parts: list[tuple[int, bytes]] = []
        self._memory = -1
        try:
            # The descriptor belongs to this address space. After an exec it reaches only the old one.
            self._memory = os.open(f"/proc/{pid}/mem", os.O_RDWR | os.O_CLOEXEC)
            for start, size in _linker_code(pid):
                self._parts.append((start, os.pread(self._memory, size, start)))
        except (OSError, ValueError, struct.error):
            self._parts = []

    def mend(self) -> int:
        """Restore every byte that is a breakpoint now and was none before. Return their number."""
        mended = 0
        for start, before in self._parts:
            try:
                now = os.pread(self._memory, len(before), start)
                if now == before:
                    continue
                for at, (old, new) in enumerate(zip(before, now, strict=False)):
                    if old != new == _BREAKPOINT:
                        os.pwrite(self._memory, bytes([old]), start + at)
                        mended += 1
            except OSError:
                continue  # it is gone
        return mended


def _linker_code(pid: int) -> Iterator[tuple[int, int]]:
    """Yield (start, size) of the executable mappings of the program's interpreter (ld.so)."""
    with open(f"/proc/{pid}/auxv", "rb") as file:  # noqa: PTH123
        vector = dict(struct.iter_unpack("=QQ", file.read()[:4096]))
    base = vector.get(_AT_BASE, 0)
    lines = []
    with open(f"/proc/{pid}/maps", "rb") as file:  # noqa: PTH123
        for line in file:
            words = line.split(None, 5)
            low, _, high = words[0].partition(b"-")
            lines.append((int(low, 16), int(high, 16), words[1], (words[3], words[4])))
    owner = next((key for start, end, _, key in lines if start <= base < end), None)
    for start, end, rights, key in lines:
        if base and key == owner and b"x" in rights and end - start <= _MAX_CODE_BYTES:
            yield start, end - start


class _EndRequest:
    """A request to end: a signal arrived, or a pipe was closed.

    `lifeline` is closed with the first signal, so that the process that waits for its end ends too.
    """

    def __init__(self, *pipes: int, lifeline: int | None = None) -> None:
        self._pipes, self._lifeline, self._now = pipes, lifeline, False
        # Handlers, not SIG_IGN, because DTrace would inherit ignored signals.
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, self._signalled)

    def _signalled(self, number: int, frame: FrameType | None) -> None:
        if not self._now and self._lifeline is not None:
            os.close(self._lifeline)
        self._now = True

    def within(self, wait_s: float) -> bool:
        """Wait at most that long for a request. After a request, wait that long."""
        if self._now:
            time.sleep(wait_s)
        else:
            poll = select.poll()
            for pipe in self._pipes:
                poll.register(pipe, select.POLLIN)
            self._now |= any(not os.read(pipe, 64) for pipe, _ in poll.poll(1e3 * wait_s))
        return self._now


def _look_after(dtrace: int, linker: LinkerCode, end: _EndRequest) -> int:
    """Wait for the child DTrace and end it on request. Return its exit status, 128 + N if signal N ended it."""
    begun = sent = False
    while True:
        ended, status = os.waitpid(dtrace, os.WNOHANG)
        if ended:
            linker.mend()
            code = os.waitstatus_to_exitcode(status)
            return code if code >= 0 else 128 - code
        begun = begun or os.pread(1, len(BEGUN), 0) == BEGUN
        if begun:
            linker.mend()
        if end.within(_WITHIN_S if begun and not sent else _BEFORE_S) and begun and not sent:
            sent = True
            os.kill(dtrace, signal.SIGINT)  # a second one would end it without its output


def _start(script: int, words: list[str], pid_pipe: int) -> subprocess.Popen[bytes] | None:
    """Start DTrace; the child writes its pid before it executes DTrace. Return None if it cannot be started."""

    def tell() -> None:
        os.write(pid_pipe, b"%d\n" % os.getpid())

    try:
        return subprocess.Popen(words, stdin=script, preexec_fn=tell)  # noqa: PLW1509
    except OSError as error:
        os.write(2, f"cannot run {words[0]} ({(error.strerror or str(error)).lower()})\n".encode())
        return None


def _stand_by(worker: int, pid_pipe: int, linker: LinkerCode, end: _EndRequest) -> int:
    """Sleep until the worker ends, and take over if it was killed. Return DTrace's exit status."""
    pid_text = b""
    while piece := os.read(pid_pipe, 64):  # until the worker has gone, and what it started is DTrace or nothing
        pid_text += piece
    code = os.waitstatus_to_exitcode(os.waitpid(worker, 0)[1])
    if code >= 0 or not pid_text:
        return code if code >= 0 else 128 - code
    try:
        return _look_after(int(pid_text), linker, end)
    except ChildProcessError:  # the worker had waited for it
        return 128 - code


def main(arguments: list[str]) -> int:
    """Run DTrace until the pipe closes. Return its exit status, 128 + N if signal N ended it."""
    linker = LinkerCode(int(arguments[0]))
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    pid_pipe, tell = os.pipe()
    held, lifeline = os.pipe()
    worker = os.fork()
    if worker:
        os.close(tell)
        os.close(held)
        return _stand_by(worker, pid_pipe, linker, _EndRequest(0, lifeline=lifeline))
    os.close(pid_pipe)
    os.close(lifeline)
    end = _EndRequest(0, held)
    dtrace = _start(int(arguments[1]), arguments[2:], tell)
    # The reference is kept until the end: a Popen without one waits for its child itself.
    return _look_after(dtrace.pid, linker, end) if dtrace else 127


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
