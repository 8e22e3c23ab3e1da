# SPDX-License-Identifier: Apache-2.0
"""LEB128, the numbers of variable length in DWARF and in unwind tables: seven bits a byte, DWARF 5, section 7.6.

Damage raises ValueError or IndexError.
"""

from __future__ import annotations


def uleb(data: bytes, at: int) -> tuple[int, int]:
    """An unsigned LEB128 number and where it ends."""
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
        if shift > 63:
            raise ValueError("number too long")


def sleb(data: bytes, at: int) -> tuple[int, int]:
    """A signed LEB128 number and where it ends."""
    value, end = uleb(data, at)
    bits = 7 * (end - at)
    return value - (1 << bits) if data[end - 1] & 0x40 else value, end
