# SPDX-License-Identifier: Apache-2.0
"""Protocol buffers on the wire, as far as profiles need them: written by hand because it is that small.

https://protobuf.dev/programming-guides/encoding/
"""

from __future__ import annotations

from collections.abc import Iterable

_MASK = (1 << 64) - 1


def varint(value: int) -> bytes:
    """Seven bits a byte, the lowest first."""
    value &= _MASK  # negative numbers are ten bytes of two's complement
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def number(field: int, value: int) -> bytes:
    """A whole number; nothing for 0, which readers take for what is not there."""
    return varint(field << 3) + varint(value) if value else b""


def fixed64(field: int, value: int) -> bytes:
    """A whole number in eight bytes; nothing for 0."""
    return varint(field << 3 | 1) + (value & _MASK).to_bytes(8, "little") if value else b""


def block(field: int, data: bytes) -> bytes:
    """Bytes, or a message within a message."""
    return varint(field << 3 | 2) + varint(len(data)) + data


def text(field: int, value: str) -> bytes:
    """A string."""
    return block(field, value.encode("utf-8", "replace"))


def packed(field: int, values: Iterable[int]) -> bytes:
    """Whole numbers in a row; nothing for none."""
    data = b"".join(map(varint, values))
    return block(field, data) if data else b""


class Strings:
    """The string table: index 0 is the empty string."""

    def __init__(self) -> None:
        self.indexes = {"": 0}

    def __getitem__(self, value: str) -> int:
        return self.indexes.setdefault(value, len(self.indexes))
