# SPDX-License-Identifier: Apache-2.0
"""Frames that no unwind table covers: their callers by the functions' code, else by frame pointers, else not at all.

Whatever leads to a caller is checked: a return address lies in an executable mapping, after a call, and further up the
stack. Code that no file holds (JIT) cannot be read; its frame pointers are followed.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from powerprof.errors import DataError
from powerprof.processes.reader_process import Opened
from powerprof.stacks.codesteps import CallerRegisters, FunctionBounds, Leaving, follows_call, is_restorer, leaving
from powerprof.stacks.effects import WORD, Value, convention
from powerprof.stacks.image import Mapping, ProcessImage
from powerprof.stacks.registers import X86_64, Machine
from powerprof.stacks.store import ModuleTables, TableStore, open_module

# After these nothing goes on: the thread or the program is gone.
_ENDS_ALL = frozenset(("exit", "_exit", "_Exit", "quick_exit", "pthread_exit", "__pthread_exit", "thrd_exit"))
_CHUNK_BYTES = 16 << 10
_MOST_CHUNKS = 16
# A process can be made of functions that are expensive to read. Each is read once; more come with the next walk.
_MOST_READINGS = 64
_MOST_KNOWN = 4096
_CALL_BYTES = 8
# struct ucontext in the frame of a signal: where the interrupted registers lie from the handler's return on.
# x86-64: struct rt_sigframe, gregs of the C library's ucontext_t; arm64: siginfo, then uc_mcontext.regs.
_X86_SAVED_AT = 40
_X86_SAVED = (
    *("r8", "r9", "r10", "r11", "r12", "r13", "r14", "r15", "rdi", "rsi", "rbp", "rbx", "rdx", "rax", "rcx"),
    *("rsp", "rip"),
)
_ARM_SAVED_AT = 128 + 176 + 8
_ARM_SAVED = (*(f"x{number}" for number in range(31)), "sp", "pc")

ReadWord = Callable[[int], int | None]


@dataclass(frozen=True)
class Caller:
    """The registers of the frame above, by name; `exact` where a signal interrupted it. Absent: unknown."""

    registers: dict[str, int]
    exact: bool


class Uncovered:
    """Steps of one process. Code is read when a frame first stands in it."""

    def __init__(self, image: ProcessImage, store: TableStore, machine: Machine) -> None:
        self._image, self._store, self._machine = image, store, machine
        self._names = convention(machine)
        self._chunks: OrderedDict[int, bytes] = OrderedDict()
        self._known: dict[tuple[int, bool], Leaving] = {}
        self._left = _MOST_READINGS

    def begin(self) -> None:
        """A walk begins."""
        self._left = _MOST_READINGS

    def is_signal(self, pc: int) -> bool:
        """Whether a frame is what the kernel made to come back from a signal's handler."""
        return is_restorer(self._code(pc, 16), self._machine)

    def caller(self, pc: int, exact: bool, registers: dict[str, int], word: ReadWord) -> Caller | str | None:
        """The frame above; None where nothing called this one, or why it is unknown."""
        if self.is_signal(pc):
            return self._interrupted(registers, word) or "a signal's frame is damaged"
        left = self._leaving(pc, exact)
        for step in left.steps:
            caller = self._taken(step, exact, registers, word)
            if caller is not None:
                return caller
        if left.is_bottom:
            return None
        return self._by_frame_pointer(registers, word) or "neither unwind table nor code nor frame pointer lead further"

    def _interrupted(self, registers: dict[str, int], word: ReadWord) -> Caller | None:
        is_x86 = self._machine is X86_64
        at = registers.get(self._names.sp, 0) + (_X86_SAVED_AT if is_x86 else _ARM_SAVED_AT)
        saved: dict[str, int] = {}
        for number, name in enumerate(_X86_SAVED if is_x86 else _ARM_SAVED):
            value = word(at + WORD * number)
            if value is None:
                return None
            saved[name] = value
        pc = saved.pop("rip" if is_x86 else "pc")
        return Caller({**saved, "pc": pc}, True) if self._image.mapping_at(pc) is not None else None

    def _taken(self, step: CallerRegisters, exact: bool, registers: dict[str, int], word: ReadWord) -> Caller | None:
        # What a call left in the link register is this frame's own place.
        if step.pc == Value(self._names.link or "", 0) and not exact:
            return None
        pc = _number(step.pc, registers, word)
        found = {name: _number(value, registers, word) for name, value in step.registers.items()}
        return self._checked(pc, {name: value for name, value in found.items() if value is not None}, registers)

    def _by_frame_pointer(self, registers: dict[str, int], word: ReadWord) -> Caller | None:
        frame, sp = registers.get(self._names.fp, 0), registers.get(self._names.sp, 0)
        if frame < sp or frame % WORD:
            return None
        above, pc = word(frame), word(frame + WORD)
        if above is None:
            return None
        return self._checked(pc, {self._names.fp: above, self._names.sp: frame + 2 * WORD}, registers)

    def _checked(self, pc: int | None, found: dict[str, int], registers: dict[str, int]) -> Caller | None:
        sp, below = found.get(self._names.sp), registers.get(self._names.sp, 0)
        # On arm64 a function may have put nothing on the stack.
        if pc is None or sp is None or sp < below + (WORD if self._names.link is None else 0):
            return None
        mapping = self._image.mapping_at(pc - 1)
        if mapping is None:
            return None
        size = min(_CALL_BYTES, pc - mapping.start)
        before = self._code(pc - size, size)
        if before and not follows_call(before, self._machine) and not self.is_signal(pc):
            return None
        return Caller({**found, "pc": pc}, False)

    def _leaving(self, pc: int, exact: bool) -> Leaving:
        key = (pc, exact)
        known = self._known.get(key)
        if known is None:
            if self._left <= 0:
                return Leaving(())
            self._left -= 1
            if len(self._known) >= _MOST_KNOWN:
                self._known.clear()
            known = self._known[key] = self._read_leaving(pc if exact else pc - 1, pc)
        return known

    def _read_leaving(self, at: int, pc: int) -> Leaving:
        mapping = self._image.mapping_at(at)
        if mapping is None or not self._code(pc, 1):
            return Leaving(())
        bias = mapping.bias or 0
        tables = self._store.tables(self._image, mapping)
        bounds = (
            _bounds(tables, at - bias)
            if not isinstance(tables, str)
            else FunctionBounds(None, 1 << 64, lambda _: False)
        )
        return leaving(pc - bias, lambda vaddr, size: self._code(vaddr + bias, size), bounds, self._machine)

    def _code(self, at: int, size: int) -> bytes:
        """Up to `size` bytes of code; b"" where none can be read."""
        mapping = self._image.mapping_at(at)
        if mapping is None:
            return b""
        out = b""
        end = min(at + size, mapping.end)
        while at + len(out) < end:
            place = at + len(out)
            base = max(place - place % _CHUNK_BYTES, mapping.start)
            part = self._chunk(mapping, base)[place - base : end - base]
            if not part:
                break
            out += part
        return out

    def _chunk(self, mapping: Mapping, base: int) -> bytes:
        known = self._chunks.get(base)
        if known is None:
            known = self._chunks[base] = self._read_chunk(mapping, base)
            if len(self._chunks) > _MOST_CHUNKS:
                self._chunks.popitem(last=False)
        return known

    def _read_chunk(self, mapping: Mapping, base: int) -> bytes:
        size = min(_CHUNK_BYTES - base % _CHUNK_BYTES, mapping.end - base)
        if mapping.path == "[vdso]":
            return (self._image.vdso or b"")[base - mapping.start :][:size]
        if not mapping.inode or mapping.bias is None or not self._store.reads_files:
            return b""
        opened = open_module(self._image, mapping)
        if not isinstance(opened, Opened):
            return b""
        try:
            with opened, self._store.budget.metered(self._image.pid, opened.is_trusted) as meter:
                if meter is not None:
                    meter.take(size, mapping.path)
                return os.pread(opened.fd, size, base - mapping.start + mapping.offset)
        except (DataError, OSError, OverflowError):
            return b""


def _bounds(tables: ModuleTables, vaddr: int) -> FunctionBounds:
    symbols = tables.symbols
    hit = symbols.lookup(vaddr)
    end = hit[2] if hit is not None else symbols.next_start(vaddr)
    return FunctionBounds(None if hit is None else hit[1], end, partial(_is_end, tables))


def _is_end(tables: ModuleTables, target: int) -> bool:
    hit = tables.symbols.lookup(target)
    return hit is not None and hit[1] == target and hit[0] in _ENDS_ALL


def _number(value: Value, registers: dict[str, int], word: ReadWord) -> int | None:
    base = registers.get(value.register)
    if base is None:
        return None
    at = (base + value.offset) % (1 << 64)
    return word(at) if value.loaded else at
