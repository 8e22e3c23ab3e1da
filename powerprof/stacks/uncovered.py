# SPDX-License-Identifier: Apache-2.0
"""Frames that no unwind table covers: their callers by the functions' code, else by frame pointers, else not at all.

Whatever leads to a caller is checked: a return address lies in an executable mapping, after a call, and further up the
stack. Code that no file holds (JIT) cannot be read; its frame pointers are followed.
"""

from __future__ import annotations

import os
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

from powerprof.stacks.effects import WORD, State, Value, apply_arm, apply_x86, convention_of, decode_instructions
from powerprof.stacks.image import Mapping, ProcessImage
from powerprof.stacks.registers import X86_64, Machine
from powerprof.stacks.store import ModuleTables, TableStore, open_module
from powerprof.system.errors import DataError
from powerprof.system.reader_process import Opened

# From a frame to its caller's by the function's own code, where no unwind table covers it (musl, assembler).
#
# The code is read forward from the pc to where the function returns: what it takes off the stack until then is where
# the return address lies, and no start of the function need be known. A function that never returns is read from its
# symbol's start to the pc. Each way ends in a candidate; the walk takes the first whose return address lies after a
# call.

# A function of musl that waits has 20 instructions after its system call; one that is made to be long is left.
MAX_INSTRUCTIONS = 1500
MAX_CANDIDATES = 8
_BLOCK_BYTES = 256

# rt_sigreturn as C libraries and Go write it: x86-64 mov $15 to %rax or %eax, syscall; arm64 mov x8, #139, svc.
_RESTORERS = {
    True: (bytes.fromhex("48c7c00f0000000f05"), bytes.fromhex("b80f0000000f05")),
    False: (bytes.fromhex("681180d2010000d4"),),
}


@dataclass(frozen=True)
class CallerRegisters:
    """The caller's registers by name, each relative to this frame's; `pc` is the return address. Absent: unknown."""

    pc: Value
    registers: dict[str, Value]


@dataclass(frozen=True)
class FunctionBounds:
    """What is known of a function: where its symbol begins (None: no symbol), where at the latest the next one does,
    and which addresses are functions after which a thread or program is gone.
    """

    start: int | None
    end: int
    ends_all: Callable[[int], bool]


@dataclass(frozen=True)
class CallerCandidates:
    """How a frame can be left: candidates in order. `is_bottom`: its code ends the thread or the program."""

    steps: tuple[CallerRegisters, ...]
    is_bottom: bool = False


def is_restorer(code: bytes, machine: Machine) -> bool:
    """Whether this is where a signal's handler returns to."""
    return code.startswith(_RESTORERS[machine is X86_64])


def follows_call(before: bytes, machine: Machine) -> bool:
    """Whether a call instruction ends where these bytes (8 of them) end."""
    if machine is not X86_64:
        word = int.from_bytes(before[-4:], "little")
        # bl; blr and its signed forms.
        return len(before) >= 4 and (word >> 26 == 0x25 or word & 0xFEFFF000 == 0xD63F0000)
    if before[-5:-4] == b"\xe8":
        return True
    for size in (2, 3, 4, 6, 7):
        at = len(before) - size
        if at < 0 or before[at] != 0xFF:
            continue
        form = before[at + 1]
        if form >> 3 & 7 != 2:
            continue
        mode, low = form >> 6, form & 7
        sib = mode != 3 and low == 4
        distance = {0: 4 if low == 5 or (sib and before[at + 2] & 7 == 5) else 0, 1: 1, 2: 4, 3: 0}[mode]
        if 2 + sib + distance == size:
            return True
    return False


class _CodeReading:
    """One reading of code, breadth first, each instruction once."""

    def __init__(self, read: Callable[[int, int], bytes], bounds: FunctionBounds, machine: Machine) -> None:
        self._read, self._bounds, self._machine = read, bounds, machine
        self._left = MAX_INSTRUCTIONS
        self._seen: set[int] = set()
        self.met_end = False

    def states(self, start: int, goal: int | None) -> Iterator[State]:
        """The states in which the function returns, or, with a goal, in which it gets there."""
        waiting = deque([(start, convention_of(self._machine).begin())])
        while waiting and self._left > 0:
            at, state = waiting.popleft()
            yield from self._straight(at, state, goal, waiting)

    def _straight(self, at: int, state: State, goal: int | None, waiting: deque[tuple[int, State]]) -> Iterator[State]:
        effect = apply_x86 if self._machine is X86_64 else apply_arm
        while self._left > 0:
            block = self._read(at, _BLOCK_BYTES)
            began = at
            for address, size, words, operands in decode_instructions(block, at, machine=self._machine):
                if address == goal:
                    yield state
                    return
                if address in self._seen or self._left <= 0:
                    return
                self._seen.add(address)
                self._left -= 1
                flow = effect(state, words, operands)
                if flow.returns:
                    if goal is None:
                        yield state
                    return
                if flow.jump is not None:
                    waiting.append((flow.jump, state.copy()))
                if flow.exits or (flow.call is not None and self._bounds.ends_all(flow.call)):
                    self.met_end = True
                    return
                at = address + size
                # Past its end a function goes on only by a jump: what lies there is another.
                if not flow.on or at == self._bounds.end:
                    return
            if at == began:
                return


def find_candidates(
    pc: int, read: Callable[[int, int], bytes], bounds: FunctionBounds, machine: Machine
) -> CallerCandidates:
    """How a frame that stands at `pc` (link-time) is left. `read` gives the code at an address."""
    steps: list[CallerRegisters] = []
    forward = _CodeReading(read, bounds, machine)
    for state in forward.states(pc, None):
        step = _returned(state, machine)
        if step is not None and step not in steps:
            steps.append(step)
        if len(steps) >= MAX_CANDIDATES:
            break
    is_bottom = forward.met_end and not steps
    if bounds.start is not None and bounds.start <= pc:
        for state in _CodeReading(read, bounds, machine).states(bounds.start, pc):
            step = _entered(state, machine)
            if step is not None and step not in steps:
                steps.append(step)
            break
    return CallerCandidates(tuple(steps), is_bottom)


def _returned(state: State, machine: Machine) -> CallerRegisters | None:
    names = convention_of(machine)
    kept = {name: state.registers[name] for name in names.kept if name in state.registers}
    sp = state.at(names.sp, 0 if names.link else WORD)
    pc = state.registers.get(names.link) if names.link else state.load(names.sp, 0)
    return None if sp is None or pc is None else CallerRegisters(pc, {**kept, names.sp: sp})


def _entered(state: State, machine: Machine) -> CallerRegisters | None:
    """The caller's registers, computed from what was done since the function was entered."""
    names = convention_of(machine)
    # Where the stack pointer was at the start: by the register that still lies at a known distance from it.
    for base in (names.sp, names.fp):
        value = state.registers.get(base)
        if value is not None and not value.loaded and value.register == names.sp:
            entry = Value(base, -value.offset)
            break
    else:
        return None
    saved = {
        stored.register: Value(base, entry.offset + place[1], True)
        for place, stored in state.stores.items()
        if stored is not None and not stored.loaded and stored.offset == 0 and place[0] == names.sp
    }
    kept: dict[str, Value] = {}
    for name in (*names.kept, *((names.link,) if names.link else ())):
        if name in saved:
            kept[name] = saved[name]
        elif state.registers.get(name) == Value(name, 0):
            kept[name] = Value(name, 0)
    if names.link is None:
        kept[names.sp] = Value(base, entry.offset + WORD)
        return CallerRegisters(Value(base, entry.offset, True), kept)
    pc = kept.pop(names.link, None)
    kept[names.sp] = entry
    return None if pc is None else CallerRegisters(pc, kept)


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


class CodeUnwinder:
    """Steps of one process. Code is read when a frame first stands in it."""

    def __init__(self, image: ProcessImage, store: TableStore, machine: Machine) -> None:
        self._image, self._store, self._machine = image, store, machine
        self._names = convention_of(machine)
        self._chunks: OrderedDict[int, bytes] = OrderedDict()
        self._known: dict[tuple[int, bool], CallerCandidates] = {}
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

    def _leaving(self, pc: int, exact: bool) -> CallerCandidates:
        key = (pc, exact)
        known = self._known.get(key)
        if known is None:
            if self._left <= 0:
                return CallerCandidates(())
            self._left -= 1
            if len(self._known) >= _MOST_KNOWN:
                self._known.clear()
            known = self._known[key] = self._read_leaving(pc if exact else pc - 1, pc)
        return known

    def _read_leaving(self, at: int, pc: int) -> CallerCandidates:
        mapping = self._image.mapping_at(at)
        if mapping is None or not self._code(pc, 1):
            return CallerCandidates(())
        bias = mapping.bias or 0
        tables = self._store.tables(self._image, mapping)
        bounds = (
            _bounds(tables, at - bias)
            if not isinstance(tables, str)
            else FunctionBounds(None, 1 << 64, lambda _: False)
        )
        return find_candidates(pc - bias, lambda vaddr, size: self._code(vaddr + bias, size), bounds, self._machine)

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
