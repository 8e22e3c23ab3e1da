# SPDX-License-Identifier: Apache-2.0
"""Follow a few instructions of arm64 register by register, and find the calls of functions in x86-64 programs."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence

from powerprof.stacks import unwind_tables
from powerprof.stacks.effects import decode_instructions
from powerprof.stacks.elf import PF_X, Elf
from powerprof.system.errors import DataError

# The content of a register: the name of its origin ("" for a plain number, "[x]" for memory at x) and an addend.
_Value = tuple[str, int]
_ARGUMENT, _THREAD = "argument", "thread"
# Landing marks, signatures of return addresses, and instructions that make and remove a frame.
_FRAME = re.compile(r"(nop|bti|paciasp|autiasp|xpaclri) .*|(stp|ldp) x29, .*\[sp.*|mov x29, sp")
_ADDRESS = re.compile(r"(?:(x\d+|xzr), )?(x\d+), \[(x\d+)(?:, (?:#(-?\w+)|(x\d+)))?\]")


def find_text_offset(code: Sequence[tuple[str, str]]) -> int | None:
    """Return N if `argument + N` or the two words at that address are returned, else None."""
    registers = _returned(code)
    name, offset = registers.get("x0", ("", 0))
    if name == _ARGUMENT:
        return offset
    found = re.fullmatch(rf"\[{_ARGUMENT} (-?\d+)\]", name)
    if found is None or offset or registers.get("x1") != (f"[{_ARGUMENT} {int(found[1]) + 8}]", 0):
        return None
    return int(found[1])


def find_connection_offset(code: Sequence[tuple[str, str]]) -> int | None:
    """Return N if the word at the thread pointer + N is returned, else None."""
    name, offset = _returned(code).get("x0", ("", 0))
    found = re.fullmatch(rf"\[{_THREAD} (-?\d+)\]", name)
    return int(found[1]) if found and not offset else None


def _returned(code: Sequence[tuple[str, str]]) -> dict[str, _Value]:
    """Return the registers at the return of the code; empty if an instruction is unknown."""
    registers: dict[str, _Value] = {"x0": (_ARGUMENT, 0)}
    for word, operands in code:
        if word == "ret":
            return registers if not operands else {}
        if _FRAME.fullmatch(f"{word} {operands}"):
            continue
        if not _follow(registers, word, operands):
            return {}
    return {}


def _follow(registers: dict[str, _Value], word: str, operands: str) -> bool:
    """Apply an instruction to the registers, in place. Return whether it is a known one."""
    if word in ("ldr", "ldp"):
        return _load(registers, word, operands)
    into, *rest = operands.split(", ")
    if re.fullmatch(r"x\d+", into) is None:
        return False
    if word == "mrs" and rest == ["tpidr_el0"]:
        registers[into] = _THREAD, 0
        return True
    shift = 0
    if rest[1:] and (shifted := re.fullmatch(r"lsl #(\w+)", rest[-1])):
        shift = int(shifted[1], 0)
        rest.pop()
    values = [_value(registers, one, shift if at == len(rest) - 1 else 0) for at, one in enumerate(rest)]
    known = [value for value in values if value is not None]
    if len(known) != len(values) or (shift and not rest[-1].startswith("#")):
        return False
    if word in ("mov", "movz") and len(known) == 1:
        registers[into] = known[0]
        return True
    if word == "movk" and len(known) == 1 and registers.get(into, ("?", 0))[0] == "":
        registers[into] = "", registers[into][1] & ~(0xFFFF << shift) | known[0][1]
        return True
    if word in ("add", "sub") and len(known) == 2 and not (known[0][0] and known[1][0]):
        (first, one), (second, other) = known
        if word == "sub" and second:
            return False
        registers[into] = first or second, one + (other if word == "add" else -other)
        return True
    return False


def _load(registers: dict[str, _Value], word: str, operands: str) -> bool:
    found = _ADDRESS.fullmatch(operands)
    if found is None or (word == "ldp") != (found[1] is not None):
        return False
    base, index = registers.get(found[3]), ("", int(found[4] or "0", 0))
    if found[5] is not None:
        index = registers.get(found[5], ("?", 0))
    if base is None or "?" in index[0] or (base[0] and index[0]):
        return False
    name, offset = base[0] or index[0], base[1] + index[1]
    for at, into in enumerate(one for one in found.group(1, 2) if one is not None):
        registers[into] = f"[{name} {offset + 8 * at}]", 0
    return True


def _value(registers: dict[str, _Value], operand: str, shift: int) -> _Value | None:
    """Return the value of a register or number, or None if unknown."""
    if operand.startswith("#"):
        number = int(operand[1:], 0) << shift
        return "", number - (1 << 64) if number >> 63 else number
    return registers.get(operand)


MOST_SEGMENT_BYTES = 128 << 20  # MySQL 9.7 has 42 MB of code
CALL_BYTES = 5
_CALL = 0xE8  # call rel32
_MOST_FUNCTION_BYTES = 1 << 18
_MOST_BEFORE = 8


def find_call_returns(elf: Elf, functions: Collection[int]) -> Iterator[tuple[int, int]]:
    """Yield (return address, called function) of each call of these functions, as link-time addresses.

    Other bytes that look like a call would have to contain the exact distance by chance.
    """
    import numpy as np

    for segment in elf.loads():
        if not segment.flags & PF_X or not CALL_BYTES <= segment.file_bytes <= MOST_SEGMENT_BYTES:
            continue
        code = np.frombuffer(elf.read(segment.offset, segment.file_bytes), np.uint8)
        at = (code[:-4] == _CALL).nonzero()[0]
        distances = code[at[:, None] + np.arange(1, CALL_BYTES)].copy().view("<i4")[:, 0].astype(np.int64)
        returns = segment.vaddr + at + CALL_BYTES
        for function in functions:
            yield from ((int(place), function) for place in returns[returns + distances == function])


class ProgramFunctions:
    """The functions of a program by its unwind table, to distinguish instructions from other bytes."""

    def __init__(self, elf: Elf) -> None:
        self._elf = elf
        section = elf.section(".eh_frame")
        self._table: unwind_tables.FunctionRanges | None = None
        if section is not None:
            try:
                data = elf.read(section.offset, section.size)
                self._table = unwind_tables.read_fde_functions(data, section.vaddr, elf.path, elf.machine.return_column)
            except DataError:
                self._table = None

    def before(self, vaddr: int) -> list[tuple[str, str]] | None:
        """Return up to _MOST_BEFORE instructions (word, operands) before the one at `vaddr`.

        Return None if no instruction is known to begin there, because a breakpoint inside one would break the program.
        """
        if self._table is None:
            return None
        starts, ends = self._table.starts, self._table.ends
        index = int(starts.searchsorted(vaddr, "right")) - 1
        if index < 0 or not starts[index] <= vaddr < ends[index]:
            return None
        start, size = int(starts[index]), int(ends[index] - starts[index])
        segment = next((one for one in self._elf.loads() if one.vaddr <= start < one.vaddr + one.file_bytes), None)
        if segment is None or size > _MOST_FUNCTION_BYTES:
            return None
        code = self._elf.read(segment.offset + start - segment.vaddr, size)
        seen: list[tuple[str, str]] = []
        found, at = None, start
        for address, length, words, operands in decode_instructions(code, start):
            if address == vaddr:
                found = seen[-_MOST_BEFORE:]
            seen.append((words[-1], operands))
            at = address + length
        return found if at == start + size else None
