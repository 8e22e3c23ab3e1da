# SPDX-License-Identifier: Apache-2.0
"""From a frame to its caller by the function's own code (musl, assembler).

The code is read forward from the pc to the return of the function. What it pops until then leads to the return
address, so the start of the function need not be known. A function that never returns is read from its symbol's start
to the pc. Each path ends in a candidate; the walk takes the first one with a return address that follows a call.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator

import msgspec

from powerprof.stacks.effects import WORD, State, Value, apply_arm, apply_x86, convention_of, decode_instructions
from powerprof.stacks.registers import X86_64, Machine

# A waiting function of musl has 20 instructions after its system call. Longer readings are given up.
MAX_INSTRUCTIONS = 1500
MAX_CANDIDATES = 8
_BLOCK_BYTES = 256

# rt_sigreturn in C libraries and Go: x86-64 mov $15 to %rax or %eax, syscall; arm64 mov x8, #139, svc.
_RESTORERS = {
    True: (bytes.fromhex("48c7c00f0000000f05"), bytes.fromhex("b80f0000000f05")),
    False: (bytes.fromhex("681180d2010000d4"),),
}


class CallerRegisters(msgspec.Struct, frozen=True):
    """The caller's registers by name, relative to this frame's; `pc` is the return address. Missing: unknown."""

    pc: Value
    registers: dict[str, Value]


class FunctionBounds(msgspec.Struct, frozen=True):
    """The bounds of a function: the start of its symbol (None: no symbol) and the latest start of the next one.

    `ends_all` tells whether a called address is a function that ends the thread or the program.
    """

    start: int | None
    end: int
    ends_all: Callable[[int], bool]


class CallerCandidates(msgspec.Struct, frozen=True):
    """Candidates for the caller, in order. `is_bottom`: the code ends the thread or the program."""

    steps: tuple[CallerRegisters, ...]
    is_bottom: bool = False


def is_restorer(code: bytes, machine: Machine) -> bool:
    """Return whether code is the return trampoline of a signal handler."""
    return code.startswith(_RESTORERS[machine is X86_64])


def follows_call(before: bytes, machine: Machine) -> bool:
    """Return whether these 8 bytes end with a call instruction."""
    if machine is not X86_64:
        word = int.from_bytes(before[-4:], "little")
        # bl; blr and its forms with pointer authentication.
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
    """A breadth-first reading of code that visits each instruction once."""

    def __init__(self, read: Callable[[int, int], bytes], bounds: FunctionBounds, machine: Machine) -> None:
        self._read, self._bounds, self._machine = read, bounds, machine
        self._left = MAX_INSTRUCTIONS
        self._seen: set[int] = set()
        self.met_end = False

    def states(self, start: int, goal: int | None) -> Iterator[State]:
        """Yield the states in which the function returns or, with a goal, in which it reaches the goal."""
        waiting = deque([(start, convention_of(self._machine).begin())])
        while waiting and self._left > 0:
            at, state = waiting.popleft()
            yield from self._read_path(at, state, goal, waiting)

    def _read_path(self, at: int, state: State, goal: int | None, waiting: deque[tuple[int, State]]) -> Iterator[State]:
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
                # A function continues after its end only by a jump: the next byte belongs to another function.
                if not flow.on or at == self._bounds.end:
                    return
            if at == began:
                return


def find_candidates(
    pc: int, read: Callable[[int, int], bytes], bounds: FunctionBounds, machine: Machine
) -> CallerCandidates:
    """Return the candidates for the caller of a frame at `pc` (link-time). `read` returns the code at an address."""
    steps: list[CallerRegisters] = []
    forward = _CodeReading(read, bounds, machine)
    for state in forward.states(pc, None):
        step = _find_caller_at_return(state, machine)
        if step is not None and step not in steps:
            steps.append(step)
        if len(steps) >= MAX_CANDIDATES:
            break
    is_bottom = forward.met_end and not steps
    if bounds.start is not None and bounds.start <= pc:
        for state in _CodeReading(read, bounds, machine).states(bounds.start, pc):
            step = _find_caller_since_entry(state, machine)
            if step is not None and step not in steps:
                steps.append(step)
            break
    return CallerCandidates(tuple(steps), is_bottom)


def _find_caller_at_return(state: State, machine: Machine) -> CallerRegisters | None:
    names = convention_of(machine)
    kept = {name: state.registers[name] for name in names.kept if name in state.registers}
    sp = state.at(names.sp, 0 if names.link else WORD)
    pc = state.registers.get(names.link) if names.link else state.load(names.sp, 0)
    return None if sp is None or pc is None else CallerRegisters(pc, {**kept, names.sp: sp})


def _find_caller_since_entry(state: State, machine: Machine) -> CallerRegisters | None:
    """Return the caller's registers from the effects of the code since the function's entry."""
    names = convention_of(machine)
    # The stack pointer at entry, from a register at a known distance from it.
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
