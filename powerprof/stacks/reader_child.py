# SPDX-License-Identifier: Apache-2.0
"""Run as a program of its own: reads what belongs to other processes, and may be left behind while it waits for them.

A page of memory may lie in a file system that a process serves itself (FUSE), and the lock of an address space may be
held by a thread that waits for one: a reader then sleeps where no signal reaches it. Only the standard library is used,
so that the start takes no time. Requests are lines on stdin: `maps PID`, `stacks PID [WORD…]` and `memory PID
ADDRESS:SIZE…`; an answer is in parts, each with its length before it, and ends with an empty one.

The words of `stacks` say where the frames of an interpreter's threads are (stacks/interpreter.py: chain_words).
"""

from __future__ import annotations

import os
import struct
import sys
import time
from collections.abc import Sequence
from pathlib import Path

STACK_BYTES = 0x4000
MAX_THREADS = 20_000
MAX_MAPS_BYTES = 16 << 20
MAX_VDSO_BYTES = 1 << 16
_PAGE = 4096
_ANSWER_S = 1.5
# Of an interpreter: threads that are looked for, frames of one, bytes of a frame, bytes of one request for memory.
MOST_STATES = 4096
MOST_FRAMES = 32
FRAME_BYTES = 80
MOST_BYTES = 1 << 17
NO_INNER = (1 << 32) - 1
RECORD = struct.Struct("<QQQQ")


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


def _word(memory: int, address: int) -> int:
    """A word of memory; 0 where there is none."""
    try:
        data = os.pread(memory, 8, address)
    except (OSError, OverflowError, ValueError):
        return 0
    return int.from_bytes(data, "little") if len(data) == 8 else 0


def states(memory: int, words: Sequence[int]) -> dict[int, int]:
    """Where an interpreter keeps its threads, by the number that each has in its own namespace."""
    found: dict[int, int] = {}
    state = _word(memory, words[0])
    for _ in range(MOST_STATES):
        if not state:
            break
        found.setdefault(_word(memory, state + words[2]), state)
        state = _word(memory, state + words[1])
    return found


def chain(memory: int, words: Sequence[int], state: int) -> bytes:
    """The frames of a thread as interpreter.bpf.h has them: two words each, and two zeros behind the outermost one."""
    _, _, _, current, inner, code, previous, instruction, entry = words
    parts = []
    at = _word(memory, state + current)
    if at and inner != NO_INNER:
        at = _word(memory, at + inner)
    for _ in range(MOST_FRAMES):
        if not at:
            parts.append(bytes(16))
            break
        try:
            frame = os.pread(memory, FRAME_BYTES, at)
        except (OSError, OverflowError, ValueError):
            break
        if len(frame) < FRAME_BYTES:
            break
        parts.append(frame[code : code + 8] + frame[instruction : instruction + 7] + frame[entry : entry + 1])
        at = int.from_bytes(frame[previous : previous + 8], "little")
    return b"".join(parts)


def _own_number(base: Path, tid: int) -> int:
    """What a thread is called in its own namespace."""
    try:
        lines = (base / "task" / str(tid) / "status").read_bytes().split(b"\n")
    except OSError:
        return tid
    numbers = next((line.split() for line in lines if line.startswith(b"NSpid:")), [])
    return int(numbers[-1]) if len(numbers) > 1 else tid


def _memory(base: Path, *places: str) -> None:
    """What can be read of each place; no more than a string, a table or an object has."""
    memory = os.open(base / "mem", os.O_RDONLY)
    try:
        for place in places:
            address, _, size = place.partition(":")
            try:
                data = os.pread(memory, min(int(size), MOST_BYTES), int(address)) if int(size) else b""
            except (OSError, OverflowError):
                data = b""
            _send(b"d" + data)
    finally:
        os.close(memory)


def _stacks(base: Path, *where: str) -> None:
    """Of every thread that is blocked: tid, ip, sp, how many bytes of an interpreter's frames follow, these, and the
    bytes from sp up."""
    end_s = time.monotonic() + _ANSWER_S
    tids = sorted(int(name) for name in os.listdir(base / "task") if name.isdigit())[:MAX_THREADS]
    words = [int(word) for word in where]
    memory = os.open(base / "mem", os.O_RDONLY)
    try:
        known = states(memory, words) if words else {}
        for tid in tids:
            before = _where(base / "task" / str(tid))
            if before is None or before[0] == 0:
                continue
            stack = _copy(memory, before[1])
            state = known.get(_own_number(base, tid), 0) if known else 0
            frames = chain(memory, words, state) if state else b""
            if stack and _where(base / "task" / str(tid)) == before:
                _send(b"s" + RECORD.pack(tid, *before, len(frames)) + frames + stack)
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
        what, pid, *more = line.split()
        try:
            {"maps": _maps, "stacks": _stacks, "memory": _memory}[what](procfs / pid, *more)
        except (OSError, ValueError) as error:
            _send(b"e" + struct.pack("<i", getattr(error, "errno", None) or 0))
        _send(b"")


if __name__ == "__main__":
    main()
