# SPDX-License-Identifier: Apache-2.0
"""Numbers and attribute values in the bytes of DWARF.

Format: DWARF 2 to 5, section 7.5, 32-bit form. Damaged data raise ValueError, IndexError or struct.error.
"""

from __future__ import annotations

import struct

ADDRESS_FORMS = frozenset((0x01, 0x1B, 0x29, 0x2A, 0x2B, 0x2C))
INDEXED_ADDRESSES = ADDRESS_FORMS - {0x01}
INDEXED_STRINGS = frozenset((0x1A, 0x25, 0x26, 0x27, 0x28))
STRP, LINE_STRP, STRING, RNGLISTX, REF_ADDR = 0x0E, 0x1F, 0x08, 0x23, 0x10
UNIT_REFERENCES = frozenset((0x11, 0x12, 0x13, 0x14, 0x15))
FIXED_SIZES = {
    **{0x01: 8, 0x05: 2, 0x06: 4, 0x07: 8, 0x0B: 1, 0x0C: 1, 0x0E: 4, 0x10: 4, 0x11: 1, 0x12: 2, 0x13: 4, 0x14: 8},
    **{0x17: 4, 0x19: 0, 0x1C: 4, 0x1D: 4, 0x1E: 16, 0x1F: 4, 0x20: 8, 0x21: 0, 0x24: 8, 0x25: 1, 0x26: 2, 0x27: 3},
    **{0x28: 4, 0x29: 1, 0x2A: 2, 0x2B: 3, 0x2C: 4, 0x1F20: 4, 0x1F21: 4},
}
_ULEB = frozenset((0x0F, 0x15, 0x1A, 0x1B, 0x22, 0x23))
_SDATA, IMPLICIT_CONST = 0x0D, 0x21
_BLOCKS = {0x03: 2, 0x04: 4, 0x0A: 1}
_LENGTH_BLOCKS = (0x09, 0x18)


def uleb(data: bytes, at: int) -> tuple[int, int]:
    """Return an unsigned LEB128 number (seven bits per byte) and the offset of its end."""
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
    """Return a signed LEB128 number and the offset of its end."""
    value, end = uleb(data, at)
    bits = 7 * (end - at)
    return value - (1 << bits) if data[end - 1] & 0x40 else value, end


def unpack_fixed(data: bytes, at: int, shape: str) -> tuple[int, ...]:
    """Return little-endian numbers at an offset."""
    return struct.unpack_from(f"<{shape}", data, at)


def skip_value(form: int, data: bytes, at: int) -> int:
    """Return the offset of the end of an attribute."""
    size = FIXED_SIZES.get(form)
    if size is not None:
        return at + size
    if form in _ULEB or form == _SDATA:
        return uleb(data, at)[1]
    if form == STRING:
        return data.index(0, at) + 1
    if form in _BLOCKS:
        size = _BLOCKS[form]
        return at + size + int.from_bytes(data[at : at + size], "little")
    if form in _LENGTH_BLOCKS:
        size, at = uleb(data, at)
        return at + size
    raise ValueError(f"form {form:#x}")


def read_value(form: int, constant: int, data: bytes, at: int) -> tuple[int, int]:
    """Return the number of an attribute (for a string its offset), and the offset of its end."""
    if form == IMPLICIT_CONST:
        return constant, at
    if form == STRING:
        return at, skip_value(form, data, at)
    if form == _SDATA:
        return sleb(data, at)
    if form in _ULEB:
        return uleb(data, at)
    end = skip_value(form, data, at)
    return int.from_bytes(data[at:end], "little"), end
