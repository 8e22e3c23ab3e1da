# SPDX-License-Identifier: Apache-2.0
"""Callers of frames that no unwind table covers, by the function's code or else by frame pointers.

Every step is checked: a return address is in an executable mapping, follows a call, and is further up the stack. Code
without a file (JIT) cannot be read, so its frame pointers are followed.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Callable
from functools import partial

import msgspec

from powerprof.stacks.caller_candidates import (
    CallerCandidates,
    CallerRegisters,
    FunctionBounds,
    find_candidates,
    follows_call,
    is_restorer,
)
from powerprof.stacks.effects import WORD, Value, convention_of
from powerprof.stacks.image import Mapping, ProcessImage
from powerprof.stacks.registers import X86_64, Machine
from powerprof.stacks.store import ModuleTables, TableStore, open_module
from powerprof.system.errors import DataError
from powerprof.system.reader_process import Opened

# Functions that end the thread or the program.
_ENDS_ALL = frozenset(("exit", "_exit", "_Exit", "quick_exit", "pthread_exit", "__pthread_exit", "thrd_exit"))
_CHUNK_BYTES = 16 << 10
_MOST_CHUNKS = 16
# A process can consist of functions that are expensive to read. Each is read once; the next walk continues.
_MOST_READINGS = 64
_MOST_KNOWN = 4096
_CALL_BYTES = 8
# struct ucontext in the frame of a signal: offsets of the interrupted registers from the handler's return address.
# x86-64: struct rt_sigframe, gregs of the C library's ucontext_t; arm64: siginfo, then uc_mcontext.regs.
_X86_SAVED_AT = 40
_X86_SAVED = (
    *("r8", "r9", "r10", "r11", "r12", "r13", "r14", "r15", "rdi", "rsi", "rbp", "rbx", "rdx", "rax", "rcx"),
    *("rsp", "rip"),
)
_ARM_SAVED_AT = 128 + 176 + 8
_ARM_SAVED = (*(f"x{number}" for number in range(31)), "sp", "pc")

ReadWord = Callable[[int], int | None]


class Caller(msgspec.Struct, frozen=True):
    """The registers of the frame above by name; `exact` if a signal interrupted it. Missing: unknown."""

    registers: dict[str, int]
    exact: bool


class CodeUnwinder:
    """Steps from frame to caller in one process. Code is read when a frame first needs it."""

    def __init__(self, image: ProcessImage, store: TableStore, machine: Machine) -> None:
        self._image, self._store, self._machine = image, store, machine
        self._names = convention_of(machine)
        self._chunks: OrderedDict[int, bytes] = OrderedDict()
        self._candidates: dict[tuple[int, bool], CallerCandidates] = {}
        self._left = _MOST_READINGS

    def begin(self) -> None:
        """Begin a walk, with a new limit of functions to read."""
        self._left = _MOST_READINGS

    def is_signal(self, pc: int) -> bool:
        """Return whether a frame is the kernel's return trampoline of a signal handler."""
        return is_restorer(self._read_code(pc, 16), self._machine)

    def caller(self, pc: int, exact: bool, registers: dict[str, int], word: ReadWord) -> Caller | str | None:
        """Return the frame above; None if this frame has no caller, or the reason why the caller is unknown."""
        if self.is_signal(pc):
            return self._read_interrupted(registers, word) or "a signal's frame is damaged"
        candidates = self._find_candidates(pc, exact)
        for step in candidates.steps:
            caller = self._follow(step, exact, registers, word)
            if caller is not None:
                return caller
        if candidates.is_bottom:
            return None
        return (
            self._follow_frame_pointer(registers, word)
            or "neither unwind table nor code nor frame pointer lead further"
        )

    def _read_interrupted(self, registers: dict[str, int], word: ReadWord) -> Caller | None:
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

    def _follow(self, step: CallerRegisters, exact: bool, registers: dict[str, int], word: ReadWord) -> Caller | None:
        # After a call the link register holds this frame's own place.
        if step.pc == Value(self._names.link or "", 0) and not exact:
            return None
        pc = _evaluate(step.pc, registers, word)
        values = {name: _evaluate(value, registers, word) for name, value in step.registers.items()}
        return self._check_caller(pc, {name: value for name, value in values.items() if value is not None}, registers)

    def _follow_frame_pointer(self, registers: dict[str, int], word: ReadWord) -> Caller | None:
        frame, sp = registers.get(self._names.fp, 0), registers.get(self._names.sp, 0)
        if frame < sp or frame % WORD:
            return None
        above, pc = word(frame), word(frame + WORD)
        if above is None:
            return None
        return self._check_caller(pc, {self._names.fp: above, self._names.sp: frame + 2 * WORD}, registers)

    def _check_caller(self, pc: int | None, above: dict[str, int], registers: dict[str, int]) -> Caller | None:
        sp, below = above.get(self._names.sp), registers.get(self._names.sp, 0)
        # On arm64 a function may use no stack.
        if pc is None or sp is None or sp < below + (WORD if self._names.link is None else 0):
            return None
        mapping = self._image.mapping_at(pc - 1)
        if mapping is None:
            return None
        size = min(_CALL_BYTES, pc - mapping.start)
        before = self._read_code(pc - size, size)
        if before and not follows_call(before, self._machine) and not self.is_signal(pc):
            return None
        return Caller({**above, "pc": pc}, False)

    def _find_candidates(self, pc: int, exact: bool) -> CallerCandidates:
        key = (pc, exact)
        candidates = self._candidates.get(key)
        if candidates is None:
            if self._left <= 0:
                return CallerCandidates(())
            self._left -= 1
            if len(self._candidates) >= _MOST_KNOWN:
                self._candidates.clear()
            candidates = self._candidates[key] = self._read_candidates(pc if exact else pc - 1, pc)
        return candidates

    def _read_candidates(self, at: int, pc: int) -> CallerCandidates:
        mapping = self._image.mapping_at(at)
        if mapping is None or not self._read_code(pc, 1):
            return CallerCandidates(())
        bias = mapping.bias or 0
        tables = self._store.tables(self._image, mapping)
        bounds = (
            _find_bounds(tables, at - bias)
            if not isinstance(tables, str)
            else FunctionBounds(None, 1 << 64, lambda _: False)
        )
        return find_candidates(
            pc - bias, lambda vaddr, size: self._read_code(vaddr + bias, size), bounds, self._machine
        )

    def _read_code(self, at: int, size: int) -> bytes:
        """Return up to `size` bytes of code; b"" if it cannot be read."""
        mapping = self._image.mapping_at(at)
        if mapping is None:
            return b""
        out = b""
        end = min(at + size, mapping.end)
        while at + len(out) < end:
            place = at + len(out)
            base = max(place - place % _CHUNK_BYTES, mapping.start)
            part = self._find_chunk(mapping, base)[place - base : end - base]
            if not part:
                break
            out += part
        return out

    def _find_chunk(self, mapping: Mapping, base: int) -> bytes:
        if base not in self._chunks:
            self._chunks[base] = self._read_chunk(mapping, base)
            if len(self._chunks) > _MOST_CHUNKS:
                self._chunks.popitem(last=False)
        return self._chunks.get(base, b"")

    def _read_chunk(self, mapping: Mapping, base: int) -> bytes:
        size = min(_CHUNK_BYTES - base % _CHUNK_BYTES, mapping.end - base)
        if mapping.path == "[vdso]":
            return (self._image.vdso or b"")[base - mapping.start :][:size]
        if not mapping.inode or mapping.bias is None:
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


def _find_bounds(tables: ModuleTables, vaddr: int) -> FunctionBounds:
    symbols = tables.symbols
    hit = symbols.lookup(vaddr)
    end = hit[2] if hit is not None else symbols.next_start(vaddr)
    return FunctionBounds(None if hit is None else hit[1], end, partial(_is_end, tables))


def _is_end(tables: ModuleTables, target: int) -> bool:
    hit = tables.symbols.lookup(target)
    return hit is not None and hit[1] == target and hit[0] in _ENDS_ALL


def _evaluate(value: Value, registers: dict[str, int], word: ReadWord) -> int | None:
    base = registers.get(value.register)
    if base is None:
        return None
    at = (base + value.offset) % (1 << 64)
    return word(at) if value.loaded else at
