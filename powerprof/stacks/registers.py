"""The one place that knows how saved user registers are laid out."""

from __future__ import annotations

import struct

import msgspec

from powerprof.errors import DataError

# struct pt_regs of x86-64, arch/x86/include/asm/ptrace.h. BPF copies it whole from the kernel stack.
PT_REGS = (
    "r15",
    "r14",
    "r13",
    "r12",
    "bp",
    "bx",
    "r11",
    "r10",
    "r9",
    "r8",
    "ax",
    "cx",
    "dx",
    "si",
    "di",
    "orig_ax",
    "ip",
    "cs",
    "flags",
    "sp",
    "ss",
)
PT_REGS_BYTES = 8 * len(PT_REGS)
IP, SP = PT_REGS.index("ip"), PT_REGS.index("sp")
STACK_LIMIT_BYTES = 64 << 10
# They differ between two sleeps at one call site (the result, the second and third argument, the flags) and no
# unwind table of a sleeper refers to them; the others may hold a frame's address or (vfork: rdi) the return address.
_VOLATILE = frozenset(PT_REGS.index(name) for name in ("ax", "orig_ax", "dx", "si", "flags"))
_STEADY = tuple(index for index in range(len(PT_REGS)) if index not in _VOLATILE)
_WORDS = struct.Struct(f"<{len(PT_REGS)}Q")


class SavedStack(msgspec.Struct, frozen=True):
    """What was copied of one sleeping thread: `registers` is struct pt_regs, `stack` the bytes from sp up."""

    pid: int
    tid: int
    registers: bytes
    stack: bytes


def words(registers: bytes, machine: str = "x86_64") -> tuple[int, ...]:
    """The 21 registers. Raises DataError for another machine or another length."""
    if machine != "x86_64":
        raise DataError("registers", f"stacks of {machine} cannot be unwound; x86_64 can")
    if len(registers) != PT_REGS_BYTES:
        raise DataError("registers", f"{len(registers)} bytes; struct pt_regs of x86-64 has {PT_REGS_BYTES}")
    return _WORDS.unpack(registers)


def pack(values: dict[str, int]) -> bytes:
    """Registers by name as struct pt_regs; those not named are 0."""
    return _WORDS.pack(*(values.get(name, 0) for name in PT_REGS))


def steady(values: tuple[int, ...]) -> tuple[int, ...]:
    """The registers on which a stack's shape can depend, for recognising a stack seen before."""
    return tuple(values[index] for index in _STEADY)
