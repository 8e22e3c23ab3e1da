# SPDX-License-Identifier: Apache-2.0
"""The process between powerprof and DTrace, so that the traced program outlives both, however either ends.

`dtrace -p` puts a breakpoint into the program's dynamic linker and takes it out when it ends in order. Killed before
that, it leaves the breakpoint, and the program dies of SIGTRAP when it next loads a library (seen with dtrace 2.0.1 and
2.0.7). So this file, started as a script of its own in its own session, standard library only:

- starts DTrace with SIGTERM as its parent-death signal, and ends it by one SIGINT, never before its BEGIN has run (its
  handlers stand by then) and never by SIGKILL; then it waits, as long as it takes;
- does so when powerprof closes the pipe, or dies: kill -9 closes the pipe too;
- compares the linker's code with what it was before, and takes out the breakpoint as soon as DTrace traces: it is there
  to see new libraries, whose probes nobody asked for. From then on even SIGKILL to DTrace does the program no harm.

Arguments: the program's pid, then DTrace's command line. stdin is the pipe, stdout (a file) what DTrace prints.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import struct
import subprocess
import sys
from collections.abc import Iterator
from types import FrameType

BEGUN = b"begin\t"
_AT_NULL, _AT_BASE = 0, 7  # include/uapi/linux/auxvec.h
_PR_SET_PDEATHSIG = 1
_BREAKPOINT = 0xCC
_MAX_CODE_BYTES = 8 << 20
_BEFORE_S, _WITHIN_S = 0.02, 0.5


class Linker:
    """The code of a program's dynamic linker as it was; `mend` puts back what a debugger changed since."""

    def __init__(self, pid: int) -> None:
        """A program that is gone, or has no linker, has nothing to fix."""
        self._parts: list[tuple[int, bytes]] = []
        self._memory = -1
        try:
            # The descriptor belongs to this address space: after an exec it reaches the old one only.
            self._memory = os.open(f"/proc/{pid}/mem", os.O_RDWR | os.O_CLOEXEC)
            for start, size in _linker_code(pid):
                self._parts.append((start, os.pread(self._memory, size, start)))
        except (OSError, ValueError, struct.error):
            self._parts = []

    def mend(self) -> int:
        """Put back every byte that is a breakpoint now and was none before; how many there were."""
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
    """(start, size) of the executable mappings of the program's interpreter (ld.so)."""
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


def _die_in_order() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)


def main(arguments: list[str]) -> int:
    """Run DTrace until the pipe closes; its exit status, 128 + N where signal N ended it."""
    stopped = False

    def stop(number: int, frame: FrameType | None) -> None:
        nonlocal stopped
        stopped = True

    # Handlers, not SIG_IGN: what is ignored here would be ignored by DTrace too.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, stop)
    linker = Linker(int(arguments[0]))
    try:
        child = subprocess.Popen(arguments[1:], stdin=subprocess.DEVNULL, preexec_fn=_die_in_order)  # noqa: PLW1509
    except OSError as error:
        os.write(2, f"cannot run {arguments[1]} ({(error.strerror or str(error)).lower()})\n".encode())
        return 127
    begun = asked = False
    while child.poll() is None:
        if not begun and os.pread(1, len(BEGUN), 0) == BEGUN:
            begun = True
        if begun:
            linker.mend()
        if stopped and begun and not asked:
            asked = True
            child.send_signal(signal.SIGINT)  # a second one would end it without its output
        wait_s = _WITHIN_S if begun and not asked else _BEFORE_S
        try:
            if stopped:
                child.wait(wait_s)
            elif select.select([0], [], [], wait_s)[0] and not os.read(0, 64):
                stopped = True
        except subprocess.TimeoutExpired:
            continue
    linker.mend()
    return child.returncode if child.returncode >= 0 else 128 - child.returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
