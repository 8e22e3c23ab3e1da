# SPDX-License-Identifier: Apache-2.0
"""Follow the few instructions of a short arm64 function, register by register."""

from __future__ import annotations

import re
from collections.abc import Sequence

Value = tuple[str, int]
"""The content of a register: the name of its origin ("" for a plain number, "[x]" for memory at x) and an addend."""
ARGUMENT, THREAD = "argument", "thread"
# Landing marks, signatures of return addresses, and instructions that make and remove a frame.
_FRAME = re.compile(r"(nop|bti|paciasp|autiasp|xpaclri) .*|(stp|ldp) x29, .*\[sp.*|mov x29, sp")
_ADDRESS = re.compile(r"(?:(x\d+|xzr), )?(x\d+), \[(x\d+)(?:, (?:#(-?\w+)|(x\d+)))?\]")


def find_returned_registers(code: Sequence[tuple[str, str]]) -> dict[str, Value]:
    """Return the registers at the return of the code; empty if an instruction is unknown."""
    registers: dict[str, Value] = {"x0": (ARGUMENT, 0)}
    for word, operands in code:
        if word == "ret":
            return registers if not operands else {}
        if _FRAME.fullmatch(f"{word} {operands}"):
            continue
        if not _follow(registers, word, operands):
            return {}
    return {}


def _follow(registers: dict[str, Value], word: str, operands: str) -> bool:
    """Apply an instruction to the registers, in place. Return whether it is a known one."""
    if word in ("ldr", "ldp"):
        return _load(registers, word, operands)
    into, *rest = operands.split(", ")
    if re.fullmatch(r"x\d+", into) is None:
        return False
    if word == "mrs" and rest == ["tpidr_el0"]:
        registers[into] = THREAD, 0
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


def _load(registers: dict[str, Value], word: str, operands: str) -> bool:
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


def _value(registers: dict[str, Value], operand: str, shift: int) -> Value | None:
    """Return the value of a register or number, or None if unknown."""
    if operand.startswith("#"):
        number = int(operand[1:], 0) << shift
        return "", number - (1 << 64) if number >> 63 else number
    return registers.get(operand)
