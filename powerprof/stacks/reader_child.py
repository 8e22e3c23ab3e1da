# SPDX-License-Identifier: Apache-2.0
"""Run as a program of its own: reads what belongs to other processes, and may be left behind while it waits for them.

A page of memory may lie in a file system that a process serves itself (FUSE), and the lock of an address space may be
held by a thread that waits for one: a reader then sleeps where no signal reaches it. Only the standard library is used,
so that the start takes no time. Requests are lines on stdin, `maps PID` and `stacks PID`; an answer is in parts, each
with its length before it, and ends with an empty one.
"""

from __future__ import annotations

import os
import struct
import sys
import time
from pathlib import Path

STACK_BYTES = 0x4000
MAX_THREADS = 20_000
MAX_MAPS_BYTES = 16 << 20
MAX_VDSO_BYTES = 1 << 16
_PAGE = 4096
_ANSWER_S = 1.5
RECORD = struct.Struct("<QQQ")


def _send(part: bytes) -> None:
    out = sys.stdout.buffer
    out.write(struct.pack("<I", len(part)) + part)
    out.flush()


def _maps(base: Path) -> None:
    """The text of maps as bytes (a name may hold any byte but the line end), then the vdso where there is one."""
    with (base / "maps").open("rb") as file:
        text = file.read(MAX_MAPS_BYTES)
    if len(text) == MAX_MAPS_BYTES:
        text = text[: text.rfind(b"\n") + 1]
    _send(b"m" + text)
    line = next((entry for entry in text.split(b"\n") if entry.endswith(b" [vdso]")), None)
    if line is not None:
        start, end = (int(word, 16) for word in line.split(None, 1)[0].split(b"-"))
        with (base / "mem").open("rb", buffering=0) as memory:
            _send(b"v" + os.pread(memory.fileno(), min(end - start, MAX_VDSO_BYTES), start))


def _where(base: Path) -> tuple[int, int] | None:
    try:
        words = (base / "syscall").read_bytes().split()
    except OSError:
        return None
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
        except (OSError, OverflowError):
            break
        parts.append(part)
        if len(part) < size:
            break
        at += size
    return b"".join(parts)


def _stacks(base: Path) -> None:
    """Of every thread that is blocked: tid, ip, sp and the bytes from sp up."""
    end_s = time.monotonic() + _ANSWER_S
    tids = sorted(int(name) for name in os.listdir(base / "task") if name.isdigit())[:MAX_THREADS]
    memory = os.open(base / "mem", os.O_RDONLY)
    try:
        for tid in tids:
            before = _where(base / "task" / str(tid))
            if before is None or before[0] == 0:
                continue
            stack = _copy(memory, before[1])
            if stack and _where(base / "task" / str(tid)) == before:
                _send(b"s" + RECORD.pack(tid, *before) + stack)
            if time.monotonic() > end_s:
                _send(b"c")  # cut: so many threads are asked for no longer
                break
    finally:
        os.close(memory)


def main() -> None:
    """Answer until stdin ends."""
    procfs = Path(sys.argv[1])
    _send(b"")  # ready
    for line in sys.stdin:
        what, pid = line.split()
        try:
            {"maps": _maps, "stacks": _stacks}[what](procfs / pid)
        except (OSError, ValueError) as error:
            _send(b"e" + struct.pack("<i", getattr(error, "errno", None) or 0))
        _send(b"")


if __name__ == "__main__":
    main()
