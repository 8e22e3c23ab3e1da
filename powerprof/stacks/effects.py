# SPDX-License-Identifier: Apache-2.0
"""The effects of instructions on the registers that lead to a caller: the stack pointer and the callee-saved ones.

Values are symbolic, relative to the registers at the first instruction. An instruction that is not understood makes
its register unknown.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from typing import Any, NamedTuple

import msgspec

from powerprof.stacks.registers import X86_64, Machine

LONGEST_BYTES = 15


@cache
def _open_decoder(machine: Machine) -> Any:
    import capstone

    if machine is X86_64:
        return capstone.Cs(capstone.CS_ARCH_X86, capstone.CS_MODE_64)
    return capstone.Cs(capstone.CS_ARCH_ARM64, capstone.CS_MODE_ARM)


def decode_instructions(
    code: bytes, vaddr: int = 0, most: int = 0, machine: Machine = X86_64
) -> Iterator[tuple[int, int, list[str], str]]:
    """Yield (address, bytes, words such as ["notrack", "jmp"], operands) until an instruction does not decode.

    `most` is the greatest number of instructions; 0 means all.
    """
    for address, size, mnemonic, operands in _open_decoder(machine).disasm_lite(code, vaddr, most):
        yield address, size, mnemonic.split(), operands


def branch_target(operands: str) -> int | None:
    """Return the target of a branch; None if it is in a register or in memory."""
    try:
        address = int(operands, 0)
    except ValueError:
        return None
    return address - (1 << 64) if address >> 63 else address


WORD = 8
_RSP, _RBP = "rsp", "rbp"


class Value(NamedTuple):
    """A register at the first instruction plus `offset`; if `loaded`, the word in memory at that address."""

    register: str
    offset: int
    loaded: bool = False


class State(msgspec.Struct):
    """The relevant registers and the stored words; missing registers are unknown."""

    registers: dict[str, Value]
    stores: dict[tuple[str, int], Value | None] = msgspec.field(default_factory=dict)
    # The number of the next system call, if it is known.
    number: int | None = None

    def copy(self) -> State:
        """Return an independent copy."""
        return State(dict(self.registers), dict(self.stores), self.number)

    def at(self, base: str, offset: int) -> Value | None:
        """Return the address `base` + offset; None if it is unknown."""
        value = self.registers.get(base)
        return None if value is None or value.loaded else Value(value.register, value.offset + offset)

    def load(self, base: str, offset: int) -> Value | None:
        """Return the word at an address; None if it is unknown."""
        place = self.at(base, offset)
        if place is None:
            return None
        key = (place.register, place.offset)
        return self.stores[key] if key in self.stores else Value(*key, True)

    def store(self, base: str, offset: int, source: str) -> None:
        """Store a register at an address."""
        place = self.at(base, offset)
        if place is not None:
            self.stores[place.register, place.offset] = self.registers.get(source)

    def set(self, register: str, value: Value | None) -> None:
        """Set a register; None makes it unknown."""
        if value is None:
            self.registers.pop(register, None)
        else:
            self.registers[register] = value


class Convention(msgspec.Struct, frozen=True):
    """The calling convention of an architecture.

    `kept` are the callee-saved registers. `link` holds the return address; None: it is on the stack.
    """

    sp: str
    fp: str
    kept: tuple[str, ...]
    link: str | None

    def begin(self) -> State:
        """Return the state at the first instruction."""
        names = (self.sp, *self.kept, *(() if self.link is None else (self.link,)))
        return State({name: Value(name, 0) for name in names})


X86 = Convention(_RSP, _RBP, ("rbx", _RBP, "r12", "r13", "r14", "r15"), None)
ARM = Convention("sp", "x29", tuple(f"x{number}" for number in range(19, 30)), "x30")


def convention_of(machine: Machine) -> Convention:
    """Return the calling convention of a machine."""
    return X86 if machine is X86_64 else ARM


class Flow(NamedTuple):
    """The next instructions: the following one (`on`), `jump`, the function `call`, or the end of the function.

    `returns`: it returns to the caller. `exits`: a system call ends the thread or the process.
    """

    on: bool = True
    jump: int | None = None
    call: int | None = None
    returns: bool = False
    exits: bool = False


_ON = Flow()
_ENDS = Flow(on=False)
_EXITS = Flow(on=False, exits=True)
# The numbers of exit and exit_group.
_X86_EXITS, _ARM_EXITS = (60, 231), (93, 94)
_X86_NAMES = {
    alias: full
    for full, aliases in {
        "rsp": "esp sp spl",
        "rbp": "ebp bp bpl",
        "rbx": "ebx bx bl bh",
        **{f"r{number}": f"r{number}d r{number}w r{number}b" for number in range(12, 16)},
    }.items()
    for alias in (*aliases.split(), full)
}
_X86_PLACE = re.compile(r"(?:qword ptr )?\[(r[a-z0-9]+)(?: ([+-]) (0x[0-9a-f]+|[0-9]+))?\]")
_NUMBER = re.compile(r"-?(?:0x[0-9a-f]+|[0-9]+)")
# Instructions that only read their first operand.
_READS = frozenset(("cmp", "test", "bt", "nop", "push", "endbr64", "ucomisd", "comisd", "ucomiss", "comiss", "ptest"))


def _parse_x86_place(operand: str) -> tuple[str, int] | None:
    match = _X86_PLACE.fullmatch(operand)
    if match is None:
        return None
    base, sign, number = match.groups()
    return base, int(number or "0", 0) * (-1 if sign == "-" else 1)


def apply_x86(state: State, words: list[str], operands: str) -> Flow:
    """Apply one x86-64 instruction to the state and return the control flow."""
    name = words[-1]
    parts = [part.strip() for part in operands.split(",")]
    if name in ("ret", "retf"):
        return Flow(on=False, returns=name == "ret")
    if name == "call":
        return Flow(call=branch_target(operands))
    if name == "jmp":
        return Flow(on=False, jump=branch_target(operands))
    if name.startswith(("j", "loop")):
        return Flow(jump=branch_target(operands))
    if name in ("hlt", "ud2", "ud0", "ud1", "int3", "iretq", "sysretq"):
        return _ENDS
    if name == "syscall":
        if state.number in _X86_EXITS:
            return _EXITS
        state.number = None
    elif name == "push":
        state.set(_RSP, state.at(_RSP, -WORD))
        state.store(_RSP, 0, parts[0])
    elif name == "pop":
        value = state.load(_RSP, 0)
        state.set(_RSP, state.at(_RSP, WORD))
        if parts[0] in _X86_NAMES:
            state.set(parts[0], value)
    elif name == "leave":
        state.set(_RSP, state.at(_RBP, WORD))
        state.set(_RBP, state.load(_RBP, 0))
    elif name in ("pushfq", "pushf"):
        state.set(_RSP, state.at(_RSP, -WORD))
        state.store(_RSP, 0, "flags")
    elif name in ("popfq", "popf"):
        state.set(_RSP, state.at(_RSP, WORD))
    elif name == "enter":
        state.set(_RSP, None)
    elif name == "xchg":
        for part in parts:
            state.set(_X86_NAMES.get(part, part), None)
    elif name not in _READS:
        if parts[0] in ("rax", "eax", "al"):
            state.number = int(parts[1], 0) if name == "mov" and _NUMBER.fullmatch(parts[1]) else None
        _write_x86(state, name, parts)
    return _ON


def _write_x86(state: State, name: str, parts: list[str]) -> None:
    written, operand = parts[0], parts[1] if len(parts) == 2 else ""
    if written not in _X86_NAMES:
        place = _parse_x86_place(written)
        if place is not None and name == "mov":
            state.store(*place, operand)
        return
    value: Value | None = None
    if written == _X86_NAMES[written]:
        if name in ("add", "sub") and _NUMBER.fullmatch(operand):
            value = state.at(written, int(operand, 0) * (-1 if name == "sub" else 1))
        elif name in ("lea", "mov") and (place := _parse_x86_place(operand)) is not None:
            value = state.at(*place) if name == "lea" else state.load(*place)
        elif name == "mov":
            value = state.registers.get(operand)
    state.set(_X86_NAMES[written], value)


_ARM_PLACE = re.compile(r"\[(\w+)(?:, #(-?\w+))?\](!)?(?:, #(-?\w+))?")
_ARM_SUM = re.compile(r"(\w+), #(-?\w+)(?:, lsl #(12))?")


def _expand_arm_name(name: str) -> str:
    name = {"fp": "x29", "lr": "x30", "wsp": "sp"}.get(name, name)
    return f"x{name[1:]}" if re.fullmatch(r"w[0-9]{1,2}", name) else name


def apply_arm(state: State, words: list[str], operands: str) -> Flow:
    """Apply one arm64 instruction to the state and return the control flow."""
    name = words[-1]
    if name in ("ret", "retaa", "retab"):
        return Flow(on=False, returns=operands in ("", "x30"))
    if name in ("bl", "blr", "blraa", "blrab"):
        state.set("x30", None)
        return Flow(call=branch_target(operands.lstrip("#")))
    if name == "b":
        return Flow(on=False, jump=branch_target(operands.lstrip("#")))
    if name in ("br", "braa", "brab", "brk", "udf", "hlt", "eret"):
        return _ENDS
    if name.startswith("b.") or name in ("cbz", "cbnz", "tbz", "tbnz"):
        return Flow(jump=branch_target(operands.rpartition("#")[2]))
    if name == "svc":
        return _EXITS if state.number in _ARM_EXITS else _ON
    registers, bracket, rest = operands.partition("[")
    names = [_expand_arm_name(part.strip()) for part in registers.split(",") if part.strip()]
    if bracket and name.startswith(("ld", "st")):
        _access_arm_memory(state, name, names, _ARM_PLACE.fullmatch(bracket + rest))
    elif names and name not in ("cmp", "cmn", "tst", "ccmp", "msr", "fcmp", "nop", "dmb", "isb", "prfm"):
        _write_arm(state, name, names[0], operands.partition(",")[2].strip())
    return _ON


def _access_arm_memory(state: State, name: str, names: list[str], place: re.Match[str] | None) -> None:
    if place is None:
        for register in names if name.startswith("ld") else ():
            state.set(register, None)
        return
    base, inside, before, after = place.groups()
    base = _expand_arm_name(base)
    offset = int(inside or "0", 0)
    if before:
        state.set(base, state.at(base, offset))
        offset = 0
    for number, register in enumerate(names):
        if name in ("ldp", "ldr", "ldur"):
            state.set(register, state.load(base, offset + WORD * number))
        elif name in ("stp", "str", "stur"):
            state.store(base, offset + WORD * number, register)
        else:
            state.set(register, None)
    if after:
        state.set(base, state.at(base, int(after, 0)))


def _write_arm(state: State, name: str, written: str, operand: str) -> None:
    if name in ("autiasp", "paciasp", "autibsp", "pacibsp", "xpaclri"):
        return
    value: Value | None = None
    if written == "x8":
        constant = operand.lstrip("#")
        state.number = int(constant, 0) if name in ("mov", "movz") and _NUMBER.fullmatch(constant) else None
    summed = _ARM_SUM.fullmatch(operand)
    if name in ("add", "sub") and summed is not None:
        base, number, shift = summed.groups()
        distance = int(number, 0) << int(shift or 0)
        value = state.at(_expand_arm_name(base), -distance if name == "sub" else distance)
    elif name == "mov":
        value = state.registers.get(_expand_arm_name(operand))
    state.set(written, value)
