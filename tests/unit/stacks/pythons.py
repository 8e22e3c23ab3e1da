# SPDX-License-Identifier: Apache-2.0
"""Memory of a Python interpreter, written by hand: threads, frames and code objects where a version has them."""

from __future__ import annotations

import os
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field

from powerprof.stacks.interpreter import Interpreter, StructOffsets

BASE = 0x1000
CODE_TYPE = 0x0F00
RUNTIME, INTERPRETER, THREAD, FRAMES = 0x1000, 0x3000, 0x6000, 0x8000
_OBJECTS = 0xA000
# Ten units of the first line, ten of the second: short forms with one byte of columns.
LINE_TABLE = bytes([0x80 | 10 << 3 | 7, 1, 2, 0x80 | 1 << 3 | 1, 0, 0x80 | 11 << 3 | 7, 1, 2, 0x80 | 1 << 3 | 1, 0])


@dataclass
class Memory:
    """Bytes from BASE on; `read` as the child that reads memory gives them."""

    data: bytearray = field(default_factory=lambda: bytearray(0x10000))
    _next: int = _OBJECTS

    def put(self, address: int, data: bytes) -> int:
        self.data[address - BASE : address - BASE + len(data)] = data
        return address

    def word(self, address: int, value: int) -> None:
        self.put(address, struct.pack("<Q", value))

    def room(self, size: int) -> int:
        at, self._next = self._next, self._next + (size + 15 & ~15)
        return at

    def read(self, places: Sequence[tuple[int, int]]) -> list[bytes]:
        whole = bytes(self.data)
        return [whole[at - BASE : at - BASE + size] if at >= BASE else b"" for at, size in places]

    def text(self, shape: StructOffsets, value: str) -> int:
        is_ascii = value.isascii()
        width = 1 if max(map(ord, value), default=0) < 256 else 2
        data = value.encode("latin-1" if width == 1 else "utf-16-le")
        at = self.room(shape.text_bytes + 16 + len(data))
        self.word(at + 16, len(value))
        self.word(at + 32, width << 2 | 1 << 5 | is_ascii << 6)
        self.put(at + shape.text_bytes + (0 if is_ascii else 16), data)
        return at

    def code(self, shape: StructOffsets, function: str, file: str, line: int) -> int:
        table = self.room(32 + len(LINE_TABLE))
        self.word(table + 16, len(LINE_TABLE))
        self.put(table + 32, LINE_TABLE)
        at = self.room(shape.bytecode + 40)
        self.word(at + 8, CODE_TYPE)
        self.word(at + 16, 20)
        self.word(at + shape.qualname, self.text(shape, function))
        self.word(at + shape.filename, self.text(shape, file))
        self.word(at + shape.linetable, table)
        self.put(at + shape.first_line, struct.pack("<i", line))
        return at


def interpreter(shape: StructOffsets) -> Interpreter:
    """The one that `memory` has."""
    return Interpreter(shape=shape, threads=INTERPRETER + shape.threads, code_type=CODE_TYPE)


def memory(shape: StructOffsets, tid: int = 77, functions: Sequence[str] = ("inner", "Outer.method")) -> Memory:
    """A process with one thread, whose frames are those of `functions`, innermost first, each in its second line."""
    made = Memory()
    made.word(RUNTIME + shape.interpreters, INTERPRETER)
    made.word(INTERPRETER + shape.threads, THREAD)
    made.word(THREAD + shape.interpreter, INTERPRETER)
    made.word(THREAD + shape.native_thread_id, tid)
    current = FRAMES
    if shape.inner < 1 << 16:
        made.word(THREAD + shape.current, THREAD + 0x400)
        made.word(THREAD + 0x400 + shape.inner, current)
    else:
        made.word(THREAD + shape.current, current)
    for number, function in enumerate(functions):
        code = made.code(shape, function, f"/srv/{function}.py", 100 * (number + 1))
        at, is_last = FRAMES + 96 * number, number == len(functions) - 1
        made.word(at + shape.code, code)
        made.word(at + shape.instruction, code + shape.bytecode + 2 * 15)
        made.word(at + shape.previous, 0 if is_last and not shape.has_shim else at + 96)
        made.put(at + shape.entry, bytes([is_last and not shape.has_shim]))
    if shape.has_shim:
        at = FRAMES + 96 * len(functions)
        made.word(at + shape.previous, 0)
        made.put(at + shape.entry, bytes([shape.entry_value]))
    return made


def as_file(made: Memory) -> int:
    """A descriptor that is read as /proc/PID/mem is."""
    fd = os.memfd_create("memory")
    os.pwrite(fd, bytes(made.data), BASE)
    return fd
