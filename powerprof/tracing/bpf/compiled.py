# SPDX-License-Identifier: Apache-2.0
"""A compiled BPF program as data: its maps and instructions, which any process may load without a compiler."""

from __future__ import annotations

import msgspec

from powerprof.errors import DataError
from powerprof.tracing.bpf.instructions import INSTRUCTION

_LOAD_IMMEDIATE = 0x18  # BPF_LD | BPF_IMM | BPF_DW: two slots of eight bytes
_MAP = 1  # BPF_PSEUDO_MAP_FD


class MapPlan(msgspec.Struct, frozen=True, kw_only=True):
    """A map to be made."""

    name: str
    kind: int
    key_bytes: int
    value_bytes: int
    entries: int
    flags: int


class ProgramPlan(msgspec.Struct, frozen=True, kw_only=True):
    """A program to be loaded. In `code` a map is its place in Compiled.maps."""

    name: str
    code: bytes


class Compiled(msgspec.Struct, frozen=True, kw_only=True):
    """What a compiler made of one source."""

    maps: list[MapPlan]
    programs: list[ProgramPlan]


def with_maps(code: bytes, numbers: dict[int, int]) -> bytes:
    """The instructions with each map's number replaced: descriptors by places, or places by descriptors."""
    patched = bytearray(code)
    for at in range(0, len(code), INSTRUCTION.size):
        operation, registers, offset, number = INSTRUCTION.unpack_from(code, at)
        if operation == _LOAD_IMMEDIATE and registers >> 4 == _MAP:
            if number not in numbers:
                raise DataError("compiled program", f"refers to a map {number} that it does not have")
            INSTRUCTION.pack_into(patched, at, operation, registers, offset, numbers[number])
    return bytes(patched)


def pack(compiled: Compiled) -> bytes:
    """Return the bytes that `unpack` reads."""
    return msgspec.msgpack.encode(compiled)


def unpack(packed: bytes) -> Compiled | None:
    """Return the program, or None for a file that was cut."""
    try:
        return msgspec.msgpack.decode(packed, type=Compiled)
    except msgspec.MsgspecError:
        return None
