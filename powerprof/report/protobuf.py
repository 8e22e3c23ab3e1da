# SPDX-License-Identifier: Apache-2.0
"""Protocol buffers: the subset that profiles need, which is too small for a dependency.

https://protobuf.dev/programming-guides/encoding/
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Generic, TypeVar

T = TypeVar("T", str, bytes)
_MASK = (1 << 64) - 1


def varint(value: int) -> bytes:
    """Return a number with seven bits per byte, the lowest bits first."""
    value &= _MASK  # negative numbers have ten bytes, in two's complement
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def number(field: int, value: int) -> bytes:
    """Return a field with a whole number; nothing for 0, which is the default of readers."""
    return varint(field << 3) + varint(value) if value else b""


def fixed64(field: int, value: int) -> bytes:
    """Return a field with a whole number in eight bytes; nothing for 0."""
    return varint(field << 3 | 1) + (value & _MASK).to_bytes(8, "little") if value else b""


def block(field: int, data: bytes) -> bytes:
    """Return a field with bytes or a message."""
    return varint(field << 3 | 2) + varint(len(data)) + data


def text(field: int, value: str) -> bytes:
    """Return a field with a string."""
    return block(field, value.encode("utf-8", "replace"))


def packed(field: int, values: Iterable[int]) -> bytes:
    """Return a field with a sequence of whole numbers; nothing for an empty one."""
    data = b"".join(map(varint, values))
    return block(field, data) if data else b""


class DistinctValues(Generic[T]):
    """Distinct values by index; the first is empty."""

    def __init__(self, empty: T) -> None:
        self.indexes: dict[T, int] = {empty: 0}

    def __getitem__(self, value: T) -> int:
        return self.indexes.setdefault(value, len(self.indexes))
