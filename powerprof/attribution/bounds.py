# SPDX-License-Identifier: Apache-2.0
"""What a saved capture may hold, checked while its parts are still bytes: nothing is made of one that is too large.

A list of empty lists takes a byte each in the file and 64 in memory, and zlib packs a thousand of them into one byte.
"""

from __future__ import annotations

import zlib
from functools import lru_cache
from pathlib import Path
from typing import Any

import msgspec

from powerprof.errors import DataError

MOST_BYTES = 1 << 30
# Idle exits and stacks pack to a fifth to a twentieth; what packs to less than this is no capture.
_MOST_RATIO = 40
_LEAST_BYTES = 32 << 20
_MIB = 1 << 20
# Field → (entries, MiB). What is not named has at most _OTHERS.
_MOST = {
    "exits": (MOST_BYTES, 1024),
    "causes": (1 << 26, 64),
    "ran": (1 << 26, 4),
    "edges": (1 << 16, 4),
    "states": (1 << 16, 8),
    "functions": (100_000, 8),
    "interrupts": (1 << 16, 4),
    "tasks": (200_000, 32),
    "server_names": (200_000, 32),
    "sites": (200_000, 256),
    "sleeping": (50_000, 512),
    "frames": (200_000, 128),
    "images": (70_000, 64),
    "wakings": (500_000, 64),
    "named": (16, 48),
    "notes": (10_000, 2),
}
_OTHERS = (2000, 1)


def unpacked(packed: bytes, path: Path) -> bytes:
    """The bytes that zlib packed. Raises DataError where they are more than such a file may hold, or cut off."""
    most = min(MOST_BYTES, _LEAST_BYTES + _MOST_RATIO * len(packed))
    worker = zlib.decompressobj()
    data = worker.decompress(packed, most)
    if worker.unconsumed_tail or not worker.eof:
        raise DataError(path, f"cut off, or larger than {most >> 20} MiB when it is unpacked")
    return data


def check_parts(data: bytes, kind: type[msgspec.Struct], path: Path) -> None:
    """Raises DataError where a field of the packed struct has more entries or bytes than it may."""
    parts = msgspec.msgpack.decode(data, type=_raw(kind))
    for name in parts.__struct_fields__:
        part = bytes(getattr(parts, name) or b"")
        entries, most = _MOST.get(name, _OTHERS)
        if entries_of(part) > entries or len(part) > most * _MIB:
            raise DataError(path, f"{name}: more than {entries:,} entries or {most} MiB")


@lru_cache(maxsize=4)
def _raw(kind: type[msgspec.Struct]) -> Any:
    """The struct with every field left as bytes: msgspec walks over them and makes nothing."""
    fields = [(name, msgspec.Raw, msgspec.Raw(b"")) for name in kind.__struct_fields__]
    return msgspec.defstruct(f"Raw{kind.__name__}", fields)


def entries_of(part: bytes) -> int:
    """How many entries a packed list or mapping promises; 0 for anything else (MessagePack, "Formats")."""
    first = part[0] if part else 0
    if 0x80 <= first <= 0x9F:
        return first & 0x0F
    size = {0xDC: 2, 0xDD: 4, 0xDE: 2, 0xDF: 4}.get(first, 0)
    return int.from_bytes(part[1 : 1 + size], "big")
