# SPDX-License-Identifier: Apache-2.0
"""Read the running kernel's own type information (BTF): field offsets, tracepoints and their arguments.

Headers of another kernel version give silently wrong offsets; BTF never does. Format: Documentation/bpf/btf.rst of the
kernel. Walking the types and finding the names takes about 40 ms for a distribution kernel. The answers are kept in
the cache, so that only the first command on a kernel pays.
"""

from __future__ import annotations

import hashlib
import struct
from array import array
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cached_property, wraps
from pathlib import Path
from typing import Any, TypeVar, cast

import msgspec

from powerprof import __version__
from powerprof.system import paths
from powerprof.system.errors import CapabilityError, PowerprofError, reason_of
from powerprof.system.folders import Folder
from powerprof.system.foreign_data import reading
from powerprof.system.next_steps import command_line

_PTR, _STRUCT, _UNION, _ENUM, _TYPEDEF, _VOLATILE, _CONST, _RESTRICT = 2, 4, 5, 6, 8, 9, 10, 11
_FUNC, _FUNC_PROTO = 12, 13
_VARIABLE, _TYPE_TAG, _ENUM64 = 14, 18, 19
_QUALIFIERS = frozenset((_TYPEDEF, _VOLATILE, _CONST, _RESTRICT, _TYPE_TAG))

# 32-bit words after the three of every type: fixed ones, and per member.
_FIXED = {0: 0, 1: 1, 2: 0, 3: 3, 7: 0, 8: 0, 9: 0, 10: 0, 11: 0, 12: 0, 14: 1, 16: 0, 17: 1, 18: 0}
_PER_MEMBER = {4: 3, 5: 3, 6: 2, 13: 2, 15: 3, 19: 3}


def _suggest_doctor() -> str:
    """Return the remedy for a missing type: the doctor has a line for every feature."""
    return f"for what works here: {command_line('doctor')}"


Answers = dict[str, bool | int | tuple[str, ...] | None]
Method = TypeVar("Method", bound=Callable[..., Any])
_MOST_BYTES = 1 << 20


def _remember_answers(method: Method) -> Method:
    """Let a method of Btf compute each answer once."""

    @wraps(method)
    def answer(btf: Btf, *names: str) -> Any:
        key = " ".join((method.__name__, *names))
        if key not in btf.answers:
            btf.answers[key] = method(btf, *names)
        return btf.answers[key]

    return cast(Method, answer)


class Btf:
    """The types of one kernel. Missing names raise CapabilityError.

    `answers`: results of earlier queries of the same data.
    """

    def __init__(self, data: bytes, origin: str = "BTF", answers: Answers | None = None) -> None:
        """Read `data`, a BTF section in this machine's byte order. The first new query walks it."""
        self._origin = origin
        self.answers: Answers = {} if answers is None else answers
        _, _, _, header, type_off, type_len, str_off, str_len = struct.unpack_from("=HBBIIIII", data)
        types, strings = header + type_off, header + str_off
        self._words = memoryview(data)[types : types + type_len].cast("I")
        self._data, self._string_span = data, slice(strings, strings + str_len)

    @cached_property
    def _strings(self) -> bytes:
        return self._data[self._string_span]

    @cached_property
    def _index(self) -> tuple[array[int], array[int]]:
        """The positions and names of types by type id. Id 0 is void and has no entry in the file."""
        positions, names = array("I", [0]), array("I", [0xFFFFFFFF])
        words, position, name = self._words, positions.append, names.append
        # Lists are faster than dictionaries; this loop runs for every type of the kernel.
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
        return positions, names

    @cached_property
    def _positions(self) -> array[int]:
        return self._index[0]

    @cached_property
    def _named(self) -> bytes:
        return self._index[1].tobytes()

    def keep_answers(self) -> None:
        """Save new answers for later commands, if this kernel's are kept."""

    def _read_kind(self, type_id: int) -> int:
        return self._words[self._positions[type_id] + 1] >> 24 & 31 if type_id else 0

    def _read_target(self, type_id: int) -> int:
        return self._words[self._positions[type_id] + 2]

    def _strip_qualifiers(self, type_id: int) -> int:
        """Return the type without typedefs and qualifiers."""
        while self._read_kind(type_id) in _QUALIFIERS:
            type_id = self._read_target(type_id)
        return type_id

    def _find_ids(self, name: str, *kinds: int) -> Iterator[int]:
        """Yield the types of these kinds with a name. BTF stores each string once, so its offset identifies it."""
        offset = self._find_name_offset(name)
        if offset is None:
            return
        # A search in bytes is ten times as fast as a comparison of number objects.
        wanted, size = array("I", [offset]).tobytes(), self._positions.itemsize
        at = self._named.find(wanted, size)
        while at >= 0:
            if at % size == 0 and self._read_kind(at // size) in kinds:
                yield at // size
            at = self._named.find(wanted, at + 1)

    def _find_name_offset(self, name: str) -> int | None:
        place = self._strings.find(b"\0" + name.encode() + b"\0") if name else -1
        return None if place < 0 else place + 1

    def _list_members(self, type_id: int) -> Iterator[tuple[int, int, int, int]]:
        """Yield (name offset, type id, offset in bits, width in bits or 0) of a struct's or union's members."""
        at = self._positions[type_id]
        info = self._words[at + 1]
        for member in range(at + 3, at + 3 + (info & 0xFFFF) * 3, 3):
            name, type_of, where = self._words[member : member + 3]
            if info >> 31:
                yield name, type_of, where & 0xFFFFFF, where >> 24
            else:
                yield name, type_of, where, 0

    def _find_struct(self, name: str) -> int:
        # A forward-declared or empty struct may have the same name.
        best = max(self._find_ids(name, _STRUCT, _UNION), key=self._read_target, default=0)
        if not best:
            typedef = next(self._find_ids(name, _TYPEDEF), 0)
            best = self._strip_qualifiers(typedef)
        if self._read_kind(best) not in (_STRUCT, _UNION):
            raise CapabilityError(f"this kernel has no struct {name} ({self._origin})", _suggest_doctor())
        return best

    def _find_member(self, type_id: int, name: int, depth: int = 0) -> tuple[int, int, int] | None:
        """Return (type id, offset in bits, width) of a member, also of anonymous members, or None."""
        for member, type_of, where, width in self._list_members(type_id):
            if member == name:
                return type_of, where, width
            if not member and depth < 16:
                inner = self._strip_qualifiers(type_of)
                if self._read_kind(inner) in (_STRUCT, _UNION) and (
                    inner_member := self._find_member(inner, name, depth + 1)
                ):
                    return inner_member[0], where + inner_member[1], inner_member[2]
        return None

    @_remember_answers
    def field_offset(self, struct_name: str, field: str) -> int:
        """Return the offset in bytes of a field (`a.b`: field b of the member struct a), also in anonymous members.

        Raises CapabilityError if this kernel lacks it or if it is a bit field.
        """
        type_id, bits = self._find_struct(struct_name), 0
        for part in field.split("."):
            name = self._find_name_offset(part)
            inner = self._strip_qualifiers(type_id)
            position = None
            if name is not None and self._read_kind(inner) in (_STRUCT, _UNION):
                position = self._find_member(inner, name)
            if position is None:
                where = f"struct {struct_name} has no field {field}"
                raise CapabilityError(f"this kernel's {where} ({self._origin})", _suggest_doctor())
            type_id, offset, width = position
            bits += offset
            if width or offset % 8:
                raise CapabilityError(f"{struct_name}.{field} is a bit field in this kernel", _suggest_doctor())
        return bits // 8

    @_remember_answers
    def has_field(self, struct_name: str, field: str) -> bool:
        """Return whether `field_offset` finds the field."""
        try:
            self.field_offset(struct_name, field)
        except CapabilityError:
            return False
        return True

    @_remember_answers
    def struct_size(self, struct_name: str) -> int:
        """Return the size in bytes of a struct, union or typedef of one. Raises CapabilityError if it is missing."""
        return self._read_target(self._find_struct(struct_name))

    @_remember_answers
    def variable_id(self, name: str) -> int | None:
        """Return the type id of a per-CPU variable, or None if it is missing."""
        return next(self._find_ids(name, _VARIABLE), None)

    @_remember_answers
    def tracepoint_id(self, name: str) -> int | None:
        """Return the type id of a raw tracepoint, or None if it is missing. tracefs is not needed."""
        return next(self._find_ids(f"btf_trace_{name}", _TYPEDEF), None)

    def has_tracepoint(self, name: str) -> bool:
        """Return whether the raw tracepoint exists."""
        return self.tracepoint_id(name) is not None

    @_remember_answers
    def tracepoint_arguments(self, name: str) -> tuple[str, ...]:
        """Return the names of a raw tracepoint's arguments in order, `argN` for unnamed ones.

        Raises CapabilityError if the tracepoint is missing.
        """
        typedef = self.tracepoint_id(name)
        if typedef is None:
            raise CapabilityError(f"this kernel has no tracepoint {name} ({self._origin})", _suggest_doctor())
        proto = self._strip_qualifiers(typedef)
        if self._read_kind(proto) == _PTR:
            proto = self._strip_qualifiers(self._read_target(proto))
        # The typedef's prototype has no names. Functions of the same shape have them.
        functions = (f"__traceiter_{name}", f"__bpf_trace_{name}")
        named = [
            self._read_target(function) for candidate in functions for function in self._find_ids(candidate, _FUNC)
        ]
        known = self._read_parameters(proto)
        for candidate in [proto, *named]:
            names = self._read_parameters(candidate)
            if len(names) == len(known) and all(names):
                return tuple(names[1:])
        return tuple(f"arg{number}" for number in range(len(known) - 1))

    def _read_parameters(self, proto: int) -> list[str]:
        if self._read_kind(proto) != _FUNC_PROTO:
            return []
        at = self._positions[proto]
        count = self._words[at + 1] & 0xFFFF
        offsets = [self._words[word] for word in range(at + 3, at + 3 + count * 2, 2)]
        return [self._strings[offset:].split(b"\0", 1)[0].decode("ascii", "replace") for offset in offsets]


def read_kernel_btf(path: Path | None = None) -> Btf:
    """Return the running kernel's types. Raises CapabilityError if the kernel has none."""
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
        return _KernelBtf(data, str(source))


class _KernelBtf(Btf):
    """Types with answers in the cache, which only this account may write to. They are named by data and program."""

    def __init__(self, data: bytes, origin: str) -> None:
        module = Path(__file__).stat()
        key = hashlib.sha256(f"{__version__} {module.st_size} {module.st_mtime_ns} ".encode())
        key.update(data)
        self._file = f"types-{key.hexdigest()[:40]}"
        super().__init__(data, origin, self._read_answers())
        self._kept = len(self.answers)

    def _read_answers(self) -> Answers:
        with suppress(OSError, PowerprofError, msgspec.MsgspecError), Folder.open(paths.cache_folder("bpf")) as folder:
            return msgspec.json.decode(folder.read(self._file, _MOST_BYTES), type=Answers)
        return {}

    def keep_answers(self) -> None:
        if len(self.answers) > self._kept:
            with suppress(OSError, PowerprofError), Folder.open(paths.cache_folder("bpf")) as folder:
                folder.write(self._file, msgspec.json.encode(self.answers))
                self._kept = len(self.answers)
