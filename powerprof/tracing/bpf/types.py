# SPDX-License-Identifier: Apache-2.0
"""The running kernel's own type information: where a field lies, which tracepoints exist and what they pass.

Headers of another kernel version give silently wrong offsets, BTF never does. Format:
Documentation/bpf/btf.rst of the kernel. The types are walked once (about 40 ms for a distribution kernel),
names are looked up when they are asked for.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from powerprof.stacks.registers import Machine
from powerprof.system import paths
from powerprof.system.errors import CapabilityError
from powerprof.system.files import read_text, reading, reason_of
from powerprof.tracing.bpf.shared_numbers import GROUP_SPAN

# What is asked for depends on the feature, and every feature has a line there.
_ELSEWHERE = "powerprof doctor says what works here"

_PTR, _STRUCT, _UNION, _ENUM, _TYPEDEF, _VOLATILE, _CONST, _RESTRICT, _FUNC, _FUNC_PROTO = (
    2,
    4,
    5,
    6,
    8,
    9,
    10,
    11,
    12,
    13,
)
_VARIABLE, _TYPE_TAG, _ENUM64 = 14, 18, 19
_QUALIFIERS = frozenset((_TYPEDEF, _VOLATILE, _CONST, _RESTRICT, _TYPE_TAG))

# 32-bit words after the three of every type: fixed ones, and per member.
_FIXED = {0: 0, 1: 1, 2: 0, 3: 3, 7: 0, 8: 0, 9: 0, 10: 0, 11: 0, 12: 0, 14: 1, 16: 0, 17: 1, 18: 0}
_PER_MEMBER = {4: 3, 5: 3, 6: 2, 13: 2, 15: 3, 19: 3}


class Btf:
    """The types of one kernel. Names that it lacks raise CapabilityError."""

    def __init__(self, data: bytes, origin: str = "BTF") -> None:
        """Index `data`, a BTF section in this machine's byte order, as the kernel wrote it."""
        self._origin = origin
        _, _, _, header, type_off, type_len, str_off, str_len = struct.unpack_from("=HBBIIIII", data)
        types, strings = header + type_off, header + str_off
        self._words = memoryview(data[types : types + type_len]).cast("I")
        self._strings = data[strings : strings + str_len]
        # By type id; id 0 is void, which has no entry in the file.
        self._positions = array("I", [0])
        self._names = array("I", [0xFFFFFFFF])
        self._index()
        self._named = self._names.tobytes()

    def _index(self) -> None:
        words, position, name = self._words, self._positions.append, self._names.append
        # Lists instead of the dictionaries: this loop runs for every type of the kernel.
        step = [3 + _FIXED.get(kind, 0) if kind in _FIXED or kind in _PER_MEMBER else 0 for kind in range(32)]
        each = [_PER_MEMBER.get(kind, 0) for kind in range(32)]
        at, end = 0, len(words)
        while at < end:
            position(at)
            name(words[at])
            info = words[at + 1]
            kind = info >> 24 & 31
            if not step[kind]:
                raise CapabilityError(
                    f"{self._origin} has a type of unknown kind {kind}", "a newer powerprof may know it"
                )
            at += step[kind] + (info & 0xFFFF) * each[kind]

    def _kind(self, type_id: int) -> int:
        return self._words[self._positions[type_id] + 1] >> 24 & 31 if type_id else 0

    def _points_to(self, type_id: int) -> int:
        return self._words[self._positions[type_id] + 2]

    def _bare(self, type_id: int) -> int:
        """The type behind typedefs and qualifiers."""
        while self._kind(type_id) in _QUALIFIERS:
            type_id = self._points_to(type_id)
        return type_id

    def _ids(self, name: str, *kinds: int) -> Iterator[int]:
        """The types of these kinds with that name. BTF keeps each string once: its offset stands for it."""
        offset = self._name_offset(name)
        if offset is None:
            return
        # Looked for as bytes: a comparison of numbers, each made an object, takes ten times as long.
        wanted, size = array("I", [offset]).tobytes(), self._names.itemsize
        at = self._named.find(wanted, size)
        while at >= 0:
            if at % size == 0 and self._kind(at // size) in kinds:
                yield at // size
            at = self._named.find(wanted, at + 1)

    def _name_offset(self, name: str) -> int | None:
        place = self._strings.find(b"\0" + name.encode() + b"\0") if name else -1
        return None if place < 0 else place + 1

    def _members(self, type_id: int) -> Iterator[tuple[int, int, int, int]]:
        """(name offset, type id, offset in bits, width in bits or 0) of a struct's or union's members."""
        at = self._positions[type_id]
        info = self._words[at + 1]
        for member in range(at + 3, at + 3 + (info & 0xFFFF) * 3, 3):
            name, type_of, where = self._words[member : member + 3]
            if info >> 31:
                yield name, type_of, where & 0xFFFFFF, where >> 24
            else:
                yield name, type_of, where, 0

    def _struct(self, name: str) -> int:
        # A forward-declared or empty struct of the same name may exist beside the real one.
        best = max(self._ids(name, _STRUCT, _UNION), key=self._points_to, default=0)
        if not best:
            typedef = next(self._ids(name, _TYPEDEF), 0)
            best = self._bare(typedef)
        if self._kind(best) not in (_STRUCT, _UNION):
            raise CapabilityError(f"this kernel has no struct {name} ({self._origin})", _ELSEWHERE)
        return best

    def _member(self, type_id: int, name: int, depth: int = 0) -> tuple[int, int, int] | None:
        """(type id, offset in bits, width) of a member, looked for in anonymous members too."""
        for member, type_of, where, width in self._members(type_id):
            if member == name:
                return type_of, where, width
            if not member and depth < 16:
                inner = self._bare(type_of)
                if self._kind(inner) in (_STRUCT, _UNION) and (inner_member := self._member(inner, name, depth + 1)):
                    return inner_member[0], where + inner_member[1], inner_member[2]
        return None

    def field_offset(self, struct_name: str, field: str) -> int:
        """Offset in bytes of a field (`a.b`: field b of the member struct a); looks into anonymous members.

        Raises CapabilityError where this kernel lacks it or where it is a bit field.
        """
        type_id, bits = self._struct(struct_name), 0
        for part in field.split("."):
            name = self._name_offset(part)
            inner = self._bare(type_id)
            position = None
            if name is not None and self._kind(inner) in (_STRUCT, _UNION):
                position = self._member(inner, name)
            if position is None:
                where = f"struct {struct_name} has no field {field}"
                raise CapabilityError(f"this kernel's {where} ({self._origin})", _ELSEWHERE)
            type_id, offset, width = position
            bits += offset
            if width or offset % 8:
                raise CapabilityError(f"{struct_name}.{field} is a bit field in this kernel", _ELSEWHERE)
        return bits // 8

    def has_field(self, struct_name: str, field: str) -> bool:
        """Whether `field_offset` would answer."""
        try:
            self.field_offset(struct_name, field)
        except CapabilityError:
            return False
        return True

    def struct_size(self, struct_name: str) -> int:
        """Size in bytes of a struct, union or typedef of one. Raises CapabilityError where it is missing."""
        return self._points_to(self._struct(struct_name))

    def variable_id(self, name: str) -> int | None:
        """The entry of a variable that each CPU has its own of; None where there is none."""
        return next(self._ids(name, _VARIABLE), None)

    def tracepoint_id(self, name: str) -> int | None:
        """The type that names a raw tracepoint (tracefs is not needed for it); None where there is none."""
        return next(self._ids(f"btf_trace_{name}", _TYPEDEF), None)

    def has_tracepoint(self, name: str) -> bool:
        """Whether the raw tracepoint exists."""
        return self.tracepoint_id(name) is not None

    def tracepoint_arguments(self, name: str) -> tuple[str, ...]:
        """The names of a raw tracepoint's arguments in order, `argN` for those that the kernel does not name.

        Raises CapabilityError where the tracepoint is missing.
        """
        typedef = self.tracepoint_id(name)
        if typedef is None:
            raise CapabilityError(f"this kernel has no tracepoint {name} ({self._origin})", _ELSEWHERE)
        proto = self._bare(typedef)
        if self._kind(proto) == _PTR:
            proto = self._bare(self._points_to(proto))
        # The typedef's prototype is a pointer's and carries no names; the functions of the same shape do.
        functions = (f"__traceiter_{name}", f"__bpf_trace_{name}")
        named = [self._points_to(function) for candidate in functions for function in self._ids(candidate, _FUNC)]
        known = self._parameters(proto)
        for candidate in [proto, *named]:
            names = self._parameters(candidate)
            if len(names) == len(known) and all(names):
                return tuple(names[1:])
        return tuple(f"arg{number}" for number in range(len(known) - 1))

    def _parameters(self, proto: int) -> list[str]:
        if self._kind(proto) != _FUNC_PROTO:
            return []
        at = self._positions[proto]
        count = self._words[at + 1] & 0xFFFF
        offsets = [self._words[word] for word in range(at + 3, at + 3 + count * 2, 2)]
        return [self._strings[offset:].split(b"\0", 1)[0].decode("ascii", "replace") for offset in offsets]


def read_kernel_btf(path: Path | None = None) -> Btf:
    """The running kernel's types. Raises CapabilityError where the kernel offers none."""
    source = path or paths.sysfs() / "kernel/btf/vmlinux"
    try:
        with source.open("rb") as file:
            data = file.read()
    except OSError as error:
        raise CapabilityError(
            f"no BTF in this kernel: cannot read {source} ({reason_of(error)})",
            "boot a kernel with CONFIG_DEBUG_INFO_BTF=y (Debian's is)",
        ) from error
    with reading(source):
        return Btf(data, str(source))


# What a BPF program has to know of the running kernel, as definitions in front of its text.
#
# Struct offsets and the places of tracepoints' arguments come from BTF, never from headers: those of another version
# give silently wrong ones.

STACK_RING_PAGES = 2048


def count_possible_cpus() -> int:
    """One more than the highest CPU number that this kernel may ever have (from `possible`, such as 0-63)."""
    text = read_text(paths.sysfs() / "devices/system/cpu/possible")
    return int(text.replace(",", "-").split("-")[-1]) + 1


def build_cpu_definitions(cpus: int) -> dict[str, int]:
    """How many CPUs there may be, and the groups of them that busy.bpf.h looks at."""
    return {"NR_CPUS": cpus, "GROUP_CPUS": min(cpus, GROUP_SPAN), "CPU_GROUPS": -(-cpus // GROUP_SPAN)}


def build_struct_definitions(btf: Btf, fields: Mapping[str, tuple[str, str]]) -> dict[str, int]:
    """`OFFSET_<name>` for each name → (struct, field)."""
    return {f"OFFSET_{name}": btf.field_offset(*where) for name, where in fields.items()}


def build_argument_definitions(btf: Btf, tracepoint: str, usual: Sequence[str], *optional: str) -> dict[str, int]:
    """`ARG_<tracepoint>_<argument>`: where a raw tracepoint passes its arguments on this kernel.

    `usual` is their order where the kernel does not name them; those of `optional` are defined where it does.
    """
    named = btf.tracepoint_arguments(tracepoint)
    order = named if all(name in named for name in usual) else tuple(usual)
    wanted = [*usual, *(name for name in optional if name in order)]
    return {f"ARG_{tracepoint}_{name}": order.index(name) for name in wanted}


def build_path_definitions(
    every_process: bool = False, event: str = "cpu-clock", ring_pages: int = STACK_RING_PAGES
) -> dict[str, int | str]:
    """What paths.bpf.h is compiled with."""
    return {
        "EVERY_PROCESS": int(every_process),
        # Faults are many and taken near the leaf; samples are few, and paths that differ deep down are distinguished.
        "HASHED_BYTES": 4096 if event == "cpu-clock" else 2048,
        "STACK_PAGES": ring_pages,
    }


# How to tell that a thread's registers are those it had in user space: x86-64 by its code and stack segments
# (arch/x86/include/asm/segment.h: __USER_CS, __USER32_CS, __USER_DS), arm64 by the exception level in pstate.
_FROM_USER = {
    "x86_64": "(((words)[17] == 0x33 || (words)[17] == 0x23) && (words)[20] == 0x2b)",
    "aarch64": "(((words)[33] & 0xf) == 0)",
}


def build_register_definitions(btf: Btf, machine: Machine) -> dict[str, int | str]:
    """Where registers lie in what is copied, and how they are found and recognised."""
    return {
        "REGISTER_COUNT": len(machine.names),
        "REGISTER_IP": machine.ip,
        "REGISTER_SP": machine.sp,
        "PT_REGS_BYTES": btf.struct_size("pt_regs"),
        "REGISTERS_ARE_USERS(words)": _FROM_USER[machine.name],
        "CODE_ADDRESS_MASK": f"{machine.address_mask}ULL",
    }
