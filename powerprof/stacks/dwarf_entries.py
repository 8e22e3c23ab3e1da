# SPDX-License-Identifier: Apache-2.0
"""The entries of a DWARF unit: abbreviations, attribute forms, and a walk that skips what is not asked for.

Format: DWARF 2 to 5, chapter 7, 32-bit form. Damage raises ValueError, IndexError or struct.error.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import NamedTuple

from powerprof.stacks.leb128 import sleb, uleb

# Attributes.
SIBLING, NAME, STMT_LIST, LOW_PC, HIGH_PC, LINKAGE, OLD_LINKAGE = 0x01, 0x03, 0x10, 0x11, 0x12, 0x6E, 0x2007
ORIGIN, SPECIFICATION, RANGES, CALL_FILE, CALL_LINE = 0x31, 0x47, 0x55, 0x58, 0x59
STR_OFFSETS_BASE, ADDR_BASE, RNGLISTS_BASE = 0x72, 0x73, 0x74
# Tags.
SUBPROGRAM, INLINED, LEXICAL_BLOCK = 0x2E, 0x1D, 0x0B
ADDRESS_FORMS = frozenset((0x01, 0x1B, 0x29, 0x2A, 0x2B, 0x2C))
INDEXED_ADDRESSES = ADDRESS_FORMS - {0x01}
INDEXED_STRINGS = frozenset((0x1A, 0x25, 0x26, 0x27, 0x28))
STRP, LINE_STRP, STRING, RNGLISTX, REF_ADDR = 0x0E, 0x1F, 0x08, 0x23, 0x10
_UNIT_REFERENCES = frozenset((0x11, 0x12, 0x13, 0x14, 0x15))
_FIXED = {
    **{0x01: 8, 0x05: 2, 0x06: 4, 0x07: 8, 0x0B: 1, 0x0C: 1, 0x0E: 4, 0x10: 4, 0x11: 1, 0x12: 2, 0x13: 4, 0x14: 8},
    **{0x17: 4, 0x19: 0, 0x1C: 4, 0x1D: 4, 0x1E: 16, 0x1F: 4, 0x20: 8, 0x21: 0, 0x24: 8, 0x25: 1, 0x26: 2, 0x27: 3},
    **{0x28: 4, 0x29: 1, 0x2A: 2, 0x2B: 3, 0x2C: 4, 0x1F20: 4, 0x1F21: 4},
}
_ULEB = frozenset((0x0F, 0x15, 0x1A, 0x1B, 0x22, 0x23))
_SDATA, _IMPLICIT_CONST = 0x0D, 0x21
_BLOCKS = {0x03: 2, 0x04: 4, 0x0A: 1}
_LENGTH_BLOCKS = (0x09, 0x18)
_MAX_ABBREVIATIONS = 20_000
_MAX_ATTRIBUTES = 200


class Abbreviation(NamedTuple):
    """What one kind of entry has; `size` where all of it is of fixed length."""

    tag: int
    children: bool
    attributes: tuple[tuple[int, int, int], ...]
    size: int | None


def abbreviations(data: bytes, at: int) -> dict[int, Abbreviation]:
    """The table that begins at `at`."""
    table: dict[int, Abbreviation] = {}
    while True:
        code, at = uleb(data, at)
        if not code:
            return table
        if len(table) >= _MAX_ABBREVIATIONS:
            raise ValueError("too many abbreviations")
        tag, at = uleb(data, at)
        children = data[at] == 1
        at += 1
        attributes: list[tuple[int, int, int]] = []
        while True:
            name, at = uleb(data, at)
            form, at = uleb(data, at)
            constant = 0
            if form == _IMPLICIT_CONST:
                constant, at = sleb(data, at)
            if not name and not form:
                break
            if len(attributes) >= _MAX_ATTRIBUTES:
                raise ValueError("too many attributes")
            attributes.append((name, form, constant))
        sizes = [_FIXED.get(form) for _, form, _ in attributes]
        size = None if None in sizes else sum(size for size in sizes if size is not None)
        table[code] = Abbreviation(tag, children, tuple(attributes), size)


def _skip(form: int, data: bytes, at: int) -> int:
    size = _FIXED.get(form)
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


def _value(form: int, constant: int, data: bytes, at: int) -> tuple[int, int]:
    """An attribute's number (a string's place) and where it ends."""
    if form == _IMPLICIT_CONST:
        return constant, at
    if form == STRING:
        return at, _skip(form, data, at)
    if form == _SDATA:
        return sleb(data, at)
    if form in _ULEB:
        return uleb(data, at)
    end = _skip(form, data, at)
    return int.from_bytes(data[at:end], "little"), end


@dataclass(frozen=True)
class Entry:
    """One entry: `attributes` are form and number by name; what follows it in the unit begins at `end`."""

    at: int
    tag: int
    children: bool
    attributes: dict[int, tuple[int, int]]
    end: int

    def number(self, name: int) -> int | None:
        """The number of an attribute."""
        found = self.attributes.get(name)
        return None if found is None else found[1]

    def reference(self, name: int, unit_at: int) -> int | None:
        """Where in .debug_info another entry is; None for one of another file."""
        found = self.attributes.get(name)
        if found is None:
            return None
        form, value = found
        if form in _UNIT_REFERENCES:
            return unit_at + value
        return value if form == REF_ADDR else None


class Entries:
    """The bytes of one unit, from its header on, and its abbreviations."""

    def __init__(self, data: bytes, table: dict[int, Abbreviation]) -> None:
        self.data = data
        self._table = table

    def read(self, at: int) -> Entry | None:
        """The entry at an offset of the unit; None where a list of children ends."""
        code, place = uleb(self.data, at)
        if not code:
            return None
        kind = self._table[code]
        attributes: dict[int, tuple[int, int]] = {}
        for name, form, constant in kind.attributes:
            value, place = _value(form, constant, self.data, place)
            attributes[name] = (form, value)
        if place > len(self.data):
            raise ValueError("an entry ends outside of its unit")
        return Entry(at, kind.tag, kind.children, attributes, place)

    def places(self, at: int, wanted: frozenset[int]) -> list[int]:
        """Where entries of these tags are, from `at` to the end of the unit, in order, however deep."""
        found: list[int] = []
        data, table, size = self.data, self._table, len(self.data)
        while at < size:
            code = data[at]
            place = at + 1
            if code >= 0x80:
                code, place = uleb(data, at)
            if code:
                kind = table[code]
                if kind.tag in wanted:
                    found.append(at)
                if kind.size is not None:
                    place += kind.size
                else:
                    for _, form, _ in kind.attributes:
                        place = _skip(form, data, place)
            at = place
        return found


def fixed(data: bytes, at: int, shape: str) -> tuple[int, ...]:
    """Little-endian numbers at an offset."""
    return struct.unpack_from(f"<{shape}", data, at)
