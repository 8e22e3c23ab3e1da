# SPDX-License-Identifier: Apache-2.0
"""The layout of saved user registers of each architecture: the only module that knows it."""

from __future__ import annotations

import os
import struct
from functools import cached_property

import msgspec

from powerprof.system.errors import CapabilityError, DataError
from powerprof.system.next_steps import command_line

STACK_LIMIT_BYTES = 64 << 10


class Machine(msgspec.Struct, frozen=True, dict=True):
    """An architecture with stacks that can be unwound: `names` are its registers in the order of BPF's copy.

    `volatile` registers (results and arguments) differ between two sleeps at one call site, and unwind tables of
    sleepers do not refer to them. `return_column` is the return address's column in unwind tables, `elf_machine` is
    e_machine, `drgn` is drgn's name of the architecture. `link` is the register that holds a return address. The other
    bits than `address_mask` may hold a signature (pointer authentication) or a tag.
    """

    name: str
    names: tuple[str, ...]
    ip: int
    sp: int
    link: int | None
    volatile: frozenset[str]
    return_column: int
    elf_machine: int
    drgn: str
    address_mask: int

    @property
    def register_bytes(self) -> int:
        """The size of BPF's copy in bytes."""
        return 8 * len(self.names)

    @cached_property
    def _words(self) -> struct.Struct:
        return struct.Struct(f"<{len(self.names)}Q")

    @cached_property
    def _stable(self) -> tuple[int, ...]:
        return tuple(index for index, name in enumerate(self.names) if name not in self.volatile)

    def words(self, registers: bytes) -> tuple[int, ...]:
        """Return the registers as numbers."""
        return self._words.unpack(registers)

    def pack(self, values: dict[str, int]) -> bytes:
        """Return registers as BPF copies them, from a mapping by BPF's names; missing ones are 0."""
        return self._words.pack(*(values.get(name, 0) for name in self.names))

    def by_name(self, registers: bytes) -> dict[str, int]:
        """Return the registers by their DWARF names, and `pc`."""
        return dict(zip(self._dwarf_names, self.words(registers), strict=True))

    def pack_names(self, values: dict[str, int]) -> bytes:
        """Return registers as BPF copies them, from a mapping by DWARF names; missing ones are 0."""
        return self._words.pack(*(values.get(name, 0) for name in self._dwarf_names))

    @cached_property
    def _dwarf_names(self) -> tuple[str, ...]:
        renamed = {"ip": "pc", "pc": "pc", "flags": "rflags", "orig_ax": "orig_ax"}
        if self.link is None:  # x86-64
            renamed |= {name: f"r{name}" for name in ("bp", "bx", "ax", "cx", "dx", "si", "di", "sp")}
        return tuple(renamed.get(name, name) for name in self.names)

    def stable(self, values: tuple[int, ...]) -> tuple[int, ...]:
        """Return the registers on which a stack's shape can depend, as a key for repeated stacks."""
        return tuple(values[index] for index in self._stable)

    def strip_signatures(self, registers: bytes) -> bytes:
        """Return the registers without the signature of the return address."""
        if self.link is None:
            return registers
        values = list(self.words(registers))
        for index in (self.link, self.ip):
            values[index] &= self.address_mask
        return self._words.pack(*values)


# struct pt_regs, arch/x86/include/asm/ptrace.h. Registers that are not volatile may hold a frame's address or (vfork:
# rdi) the return address.
X86_64 = Machine(
    name="x86_64",
    names=(
        *("r15", "r14", "r13", "r12", "bp", "bx", "r11", "r10", "r9", "r8", "ax", "cx", "dx", "si", "di"),
        *("orig_ax", "ip", "cs", "flags", "sp", "ss"),
    ),
    ip=16,
    sp=19,
    link=None,
    volatile=frozenset(("ax", "orig_ax", "dx", "si", "flags")),
    return_column=16,  # rip: System V ABI
    elf_machine=62,
    drgn="X86_64",
    address_mask=(1 << 64) - 1,
)
# struct user_pt_regs, the beginning of struct pt_regs: arch/arm64/include/uapi/asm/ptrace.h. Bit 55 separates user
# from kernel addresses. User addresses have 48 bits, or 52 if a program requests them from mmap
# (Documentation/arch/arm64/memory.rst); the other bits are for signatures and tags.
AARCH64 = Machine(
    name="aarch64",
    names=(*(f"x{number}" for number in range(31)), "sp", "pc", "pstate"),
    ip=32,
    sp=31,
    link=30,
    volatile=frozenset((*(f"x{number}" for number in range(18)), "pstate")),
    return_column=30,  # DWARF for the Arm 64-bit Architecture: x30
    elf_machine=183,
    drgn="AARCH64",
    address_mask=(1 << 48) - 1,
)
MACHINES = {machine.name: machine for machine in (X86_64, AARCH64)}
_BY_BYTES = {machine.register_bytes: machine for machine in MACHINES.values()}
BY_ELF = {machine.elf_machine: machine for machine in MACHINES.values()}


class SavedStack(msgspec.Struct, frozen=True):
    """The copy of one sleeping thread: `registers` in the layout of its Machine, `stack` the bytes from sp up."""

    pid: int
    tid: int
    registers: bytes
    stack: bytes


def machine_of(registers: bytes) -> Machine:
    """Return the machine of saved registers by their length. Raises DataError for another machine's."""
    machine = _BY_BYTES.get(len(registers))
    if machine is None:
        known = " or ".join(f"{size} ({machine.name})" for size, machine in sorted(_BY_BYTES.items()))
        raise DataError("registers", f"{len(registers)} bytes; saved registers have {known}")
    return machine


def this_machine() -> Machine:
    """Return the running machine. Raises CapabilityError if its stacks cannot be unwound."""
    name = os.uname().machine
    if name not in MACHINES:
        known = f"those of {' and '.join(sorted(MACHINES))} can"
        raise CapabilityError(f"stacks of {name} cannot be unwound; {known}", f"without stacks: {command_line('idle')}")
    return MACHINES[name]
