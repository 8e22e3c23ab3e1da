# SPDX-License-Identifier: Apache-2.0
"""The one place that knows how each architecture's saved user registers are laid out."""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass
from functools import cached_property

import msgspec

from powerprof.system.errors import CapabilityError, DataError

STACK_LIMIT_BYTES = 64 << 10


@dataclass(frozen=True)
class Machine:
    """An architecture whose stacks can be unwound: `names` are its registers in the order in which BPF copies them.

    `volatile` ones differ between two sleeps at one call site (results and arguments) and no unwind table of a sleeper
    refers to them. `return_column` is the return address's column in unwind tables, `elf_machine` e_machine, `drgn`
    drgn's name of the architecture. `link` is the register that holds a return address, `address_mask` the bits that
    an address of user space can have: the others may hold a signature (pointer authentication) or a tag.
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
        """How many bytes BPF copies."""
        return 8 * len(self.names)

    @cached_property
    def _words(self) -> struct.Struct:
        return struct.Struct(f"<{len(self.names)}Q")

    @cached_property
    def _steady(self) -> tuple[int, ...]:
        return tuple(index for index, name in enumerate(self.names) if name not in self.volatile)

    def words(self, registers: bytes) -> tuple[int, ...]:
        """The registers as numbers."""
        return self._words.unpack(registers)

    def pack(self, values: dict[str, int]) -> bytes:
        """Registers by name; those not named are 0."""
        return self._words.pack(*(values.get(name, 0) for name in self.names))

    def by_name(self, registers: bytes) -> dict[str, int]:
        """The registers as unwind tables call them, and `pc`."""
        return dict(zip(self._dwarf_names, self.words(registers), strict=True))

    def pack_names(self, values: dict[str, int]) -> bytes:
        """Registers by those names, as BPF copies them; those not named are 0."""
        return self._words.pack(*(values.get(name, 0) for name in self._dwarf_names))

    @cached_property
    def _dwarf_names(self) -> tuple[str, ...]:
        own = {"ip": "pc", "pc": "pc", "flags": "rflags", "orig_ax": "orig_ax"}
        short = frozenset(("bp", "bx", "ax", "cx", "dx", "si", "di"))
        is_x86 = self.link is None
        return tuple(
            own.get(name) or (f"r{name}" if is_x86 and (name in short or name == "sp") else name) for name in self.names
        )

    def steady(self, values: tuple[int, ...]) -> tuple[int, ...]:
        """The registers on which a stack's shape can depend, for recognising a stack seen before."""
        return tuple(values[index] for index in self._steady)

    def unsigned(self, registers: bytes) -> bytes:
        """The same registers with the signature taken off the return address."""
        if self.link is None:
            return registers
        values = list(self.words(registers))
        for index in (self.link, self.ip):
            values[index] &= self.address_mask
        return self._words.pack(*values)


# struct pt_regs, arch/x86/include/asm/ptrace.h. The others than the volatile ones may hold a frame's address or (vfork:
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
# struct user_pt_regs, with which struct pt_regs begins: arch/arm64/include/uapi/asm/ptrace.h. Bit 55 tells user from
# kernel addresses; user addresses have 48 bits, 52 only where a program asks mmap for them
# (Documentation/arch/arm64/memory.rst), the rest is for signatures and tags.
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
    """What was copied of one sleeping thread: `registers` as its Machine has them, `stack` the bytes from sp up."""

    pid: int
    tid: int
    registers: bytes
    stack: bytes


def machine_of(registers: bytes) -> Machine:
    """Whose registers these are, by their length. Raises DataError for another machine's."""
    machine = _BY_BYTES.get(len(registers))
    if machine is None:
        known = " or ".join(f"{size} ({machine.name})" for size, machine in sorted(_BY_BYTES.items()))
        raise DataError("registers", f"{len(registers)} bytes; saved registers have {known}")
    return machine


def this_machine() -> Machine:
    """The running machine. Raises CapabilityError where its stacks cannot be unwound."""
    name = os.uname().machine
    if name not in MACHINES:
        known = f"those of {' and '.join(sorted(MACHINES))} can"
        raise CapabilityError(f"stacks of {name} cannot be unwound; {known}", "powerprof idle needs no stacks")
    return MACHINES[name]
