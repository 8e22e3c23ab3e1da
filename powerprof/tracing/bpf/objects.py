# SPDX-License-Identifier: Apache-2.0
"""Describe compiled programs as data: the maps to create, and instructions that refer to them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

import msgspec

from powerprof.system import paths
from powerprof.system.errors import DataError
from powerprof.tracing.bpf.syscalls import INSTRUCTION

Definitions = Mapping[str, int | str]

_LOAD_IMMEDIATE = 0x18  # BPF_LD | BPF_IMM | BPF_DW: two slots of eight bytes
_MAP, _VARIABLE = 1, 3  # BPF_PSEUDO_MAP_FD, BPF_PSEUDO_BTF_ID
_CONDITION = "__if_"  # FUNCTION_IF of load_time.bpf.h


class MapPlan(msgspec.Struct, frozen=True, kw_only=True):
    """A map to create."""

    name: str
    kind: int
    key_bytes: int
    value_bytes: int
    entries: int
    flags: int


class ProgramPlan(msgspec.Struct, frozen=True, kw_only=True):
    """A program to load. In `code` a map is its index in Compiled.maps."""

    name: str
    code: bytes


class Compiled(msgspec.Struct, frozen=True, kw_only=True):
    """A compiled program as data: maps and instructions that any process may load without a compiler."""

    maps: list[MapPlan]
    programs: list[ProgramPlan]


def replace_map_numbers(code: bytes, numbers: Mapping[int, int]) -> bytes:
    """Return the instructions with each map's descriptor replaced by its index."""
    patched = bytearray(code)
    for at, kind, number in _find_references(code):
        if kind == _MAP:
            if number not in numbers:
                raise DataError("compiled program", f"refers to a map {number} that it does not have")
            _write_reference(patched, at, kind, numbers[number])
    return bytes(patched)


def link_maps(code: bytes, descriptors: Mapping[int, int]) -> bytes:
    """Return the instructions with each map's index replaced by its descriptor.

    References to other maps and to the variable 0 become numbers. Only code of a switch that is off has them. The
    verifier never reaches it, but the kernel looks up all references.
    """
    patched = bytearray(code)
    for at, kind, number in _find_references(code):
        if kind == _MAP and number in descriptors:
            _write_reference(patched, at, kind, descriptors[number])
        elif kind == _MAP or (kind == _VARIABLE and not number):
            _write_reference(patched, at, 0, 0)
    return bytes(patched)


def _find_references(code: bytes) -> Iterator[tuple[int, int, int]]:
    """Yield (place, kind, number) of the instructions that load an address."""
    operations = code[:: INSTRUCTION.size]
    slot = operations.find(_LOAD_IMMEDIATE)
    while slot >= 0:
        at = slot * INSTRUCTION.size
        _, registers, _, number = INSTRUCTION.unpack_from(code, at)
        yield at, registers >> 4, number
        slot = operations.find(_LOAD_IMMEDIATE, slot + 2)


def _write_reference(code: bytearray, at: int, kind: int, number: int) -> None:
    operation, registers, offset, _ = INSTRUCTION.unpack_from(code, at)
    INSTRUCTION.pack_into(code, at, operation, registers & 15 | kind << 4, offset, number)


def pack_compiled(compiled: Compiled) -> bytes:
    """Return the bytes that `unpack_compiled` reads."""
    return msgspec.msgpack.encode(compiled)


def unpack_compiled(packed: bytes) -> Compiled | None:
    """Return the program, or None for a truncated file."""
    try:
        return msgspec.msgpack.decode(packed, type=Compiled)
    except msgspec.MsgspecError:
        return None


def select_programs(compiled: Compiled, definitions: Definitions) -> list[ProgramPlan]:
    """Return the programs whose conditions are met by the definitions, under their names without conditions."""
    found = []
    for plan in compiled.programs:
        name, *conditions = plan.name.split(_CONDITION)
        if all(definitions.get(condition) for condition in conditions):
            found.append(ProgramPlan(name=name, code=plan.code))
    return found


def read_source(name: str) -> str:
    """Return a shipped program with its own headers inserted: bcc translates table operations only in the main text."""
    text = (paths.data_dir("probes") / "bpf" / name).read_text()
    return re.sub(r'^#include "([\w.]+)"$', lambda match: read_source(match[1]), text, flags=re.MULTILINE)


def build_source_text(name: str, definitions: Definitions) -> str:
    """Return the whole text to compile."""
    return "".join(f"#define {key} {value}\n" for key, value in definitions.items()) + read_source(name)
