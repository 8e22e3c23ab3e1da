# SPDX-License-Identifier: Apache-2.0
"""Entries of a DWARF unit: abbreviations, attributes, and a walk that skips unneeded entries.

Format: DWARF 2 to 5, chapter 7, 32-bit form. Damaged data raise ValueError, IndexError or struct.error.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from powerprof.stacks.dwarf_values import (
    FIXED_SIZES,
    IMPLICIT_CONST,
    REF_ADDR,
    UNIT_REFERENCES,
    read_value,
    skip_value,
    sleb,
    uleb,
)

# Attributes.
SIBLING, NAME, STMT_LIST, LOW_PC, HIGH_PC, LINKAGE, OLD_LINKAGE = 0x01, 0x03, 0x10, 0x11, 0x12, 0x6E, 0x2007
ORIGIN, SPECIFICATION, RANGES, CALL_FILE, CALL_LINE = 0x31, 0x47, 0x55, 0x58, 0x59
STR_OFFSETS_BASE, ADDR_BASE, RNGLISTS_BASE = 0x72, 0x73, 0x74
# Tags.
SUBPROGRAM, INLINED, LEXICAL_BLOCK = 0x2E, 0x1D, 0x0B


_MAX_ABBREVIATIONS = 20_000
_MAX_ATTRIBUTES = 200


class Abbreviation(NamedTuple):
    """The attributes of one kind of entry.

    `skips` lead over an entry: fixed bytes, then a value of a form with a variable length. `tail` is the fixed rest.
    """

    tag: int
    children: bool
    attributes: tuple[tuple[int, int, int], ...]
    skips: tuple[tuple[int, int], ...]
    tail: int


def read_abbreviations(data: bytes) -> dict[int, Abbreviation]:
    """Return the abbreviation table at the beginning of the data."""
    table: dict[int, Abbreviation] = {}
    at = 0
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
            if form == IMPLICIT_CONST:
                constant, at = sleb(data, at)
            if not name and not form:
                break
            if len(attributes) >= _MAX_ATTRIBUTES:
                raise ValueError("too many attributes")
            attributes.append((name, form, constant))
        table[code] = Abbreviation(tag, children, tuple(attributes), *_plan_skips(attributes))


def _plan_skips(attributes: list[tuple[int, int, int]]) -> tuple[tuple[tuple[int, int], ...], int]:
    skips, fixed = [], 0
    for _, form, _ in attributes:
        size = FIXED_SIZES.get(form)
        if size is None:
            skips.append((fixed, form))
        fixed = 0 if size is None else fixed + size
    return tuple(skips), fixed


class Entry(msgspec.Struct, frozen=True):
    """One entry: `attributes` are (form, number) by name; the next entry of the unit begins at `end`."""

    at: int
    tag: int
    children: bool
    attributes: dict[int, tuple[int, int]]
    end: int

    def number(self, name: int) -> int | None:
        """Return the number of an attribute."""
        attribute = self.attributes.get(name)
        return None if attribute is None else attribute[1]

    def reference(self, name: int, unit_at: int) -> int | None:
        """Return the offset in .debug_info of a referenced entry; None for an entry of another file."""
        attribute = self.attributes.get(name)
        if attribute is None:
            return None
        form, value = attribute
        if form in UNIT_REFERENCES:
            return unit_at + value
        return value if form == REF_ADDR else None


class Entries:
    """The bytes of one unit from its header on, and its abbreviations."""

    def __init__(self, data: bytes, table: dict[int, Abbreviation]) -> None:
        self.data = data
        self._table = table

    def read(self, at: int) -> Entry | None:
        """Return the entry at an offset of the unit; None at the end of a list of children."""
        code, place = uleb(self.data, at)
        if not code:
            return None
        kind = self._table[code]
        attributes: dict[int, tuple[int, int]] = {}
        for name, form, constant in kind.attributes:
            value, place = read_value(form, constant, self.data, place)
            attributes[name] = (form, value)
        if place > len(self.data):
            raise ValueError("an entry ends outside of its unit")
        return Entry(at, kind.tag, kind.children, attributes, place)

    def find_functions(self, at: int) -> list[int]:
        """Return the offsets of functions with code from `at` to the end of the unit, in order, at any depth."""
        places: list[int] = []
        wanted = {
            code
            for code, kind in self._table.items()
            if kind.tag == SUBPROGRAM and any(name in (LOW_PC, RANGES) for name, _, _ in kind.attributes)
        }
        data, table, size = self.data, self._table, len(self.data)
        while at < size:
            code = data[at]
            place = at + 1
            if code >= 0x80:
                code, place = uleb(data, at)
            if code:
                kind = table[code]
                if code in wanted:
                    places.append(at)
                for fixed, form in kind.skips:
                    place = skip_value(form, data, place + fixed)
                place += kind.tail
            at = place
        return places
