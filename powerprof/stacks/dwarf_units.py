# SPDX-License-Identifier: Apache-2.0
"""One unit of a file's DWARF: its functions, the calls inlined in them, and its source lines."""

from __future__ import annotations

import struct
from bisect import bisect_right
from typing import NamedTuple

from powerprof.stacks.compressed_section import CompressedSection
from powerprof.stacks.dwarf_entries import (
    ADDR_BASE,
    HIGH_PC,
    INLINED,
    LEXICAL_BLOCK,
    LOW_PC,
    RANGES,
    RNGLISTS_BASE,
    SIBLING,
    STMT_LIST,
    STR_OFFSETS_BASE,
    Entries,
    Entry,
)
from powerprof.stacks.dwarf_lines import Lines
from powerprof.stacks.dwarf_values import (
    ADDRESS_FORMS,
    INDEXED_ADDRESSES,
    INDEXED_STRINGS,
    LINE_STRP,
    RNGLISTX,
    STRING,
    STRP,
    uleb,
    unpack_fixed,
)
from powerprof.stacks.elf import SHF_COMPRESSED, Elf, Section, section_bytes
from powerprof.stacks.time_budget import DebugBudget
from powerprof.system.errors import DataError

MAX_UNIT_BYTES = 16 << 20
MAX_DEPTH = 64
_MAX_RANGES = 10_000
_MAX_STRING_BYTES = 4096
_PARTS = (INLINED, LEXICAL_BLOCK)
_ADDRX = 0x1B
_FUNCTION_BYTES = 160
# Larger compressed sections are read in parts.
_WHOLE_BYTES = 8 << 20
DAMAGE = (ValueError, LookupError, struct.error, OverflowError)


class Unit(NamedTuple):
    """The header of a unit: `at` and `end` in .debug_info; `first` is the offset of its first entry in the unit."""

    at: int
    end: int
    version: int
    abbreviations_at: int
    first: int


class Sections:
    """Debug sections, read in parts by name."""

    def __init__(self, elf: Elf, budget: DebugBudget) -> None:
        self._elf, self._budget = elf, budget
        self._whole: dict[str, bytes] = {}
        self._large: dict[str, CompressedSection] = {}

    def size(self, name: str) -> int:
        """Return the uncompressed size of a section in bytes; 0 if it is missing."""
        section = self._elf.section(name)
        if section is None:
            return 0
        if not section.flags & SHF_COMPRESSED:
            return section.size
        large = self._find_large(section)
        return len(self._decompress(section)) if large is None else large.size

    def read(self, name: str, at: int, most: int) -> bytes:
        """Return up to `most` bytes from an offset. Raises ValueError outside of the section."""
        section = self._elf.section(name)
        if section is None or at < 0:
            raise ValueError(f"no {name}")
        if section.flags & SHF_COMPRESSED:
            large = self._find_large(section)
            return self._decompress(section)[at : at + most] if large is None else large.read(at, most)
        size = min(most, section.size - at)
        if size <= 0:
            raise ValueError(f"{name} ends before {at:#x}")
        return self._elf.read(section.offset + at, size)

    def release(self) -> None:
        """Return the memory of decompressed sections to the budget."""
        self._budget.release(sum(map(len, self._whole.values())))
        self._whole.clear()
        for large in self._large.values():
            large.release()
        self._large.clear()

    def _find_large(self, section: Section) -> CompressedSection | None:
        """Return the reader of a section that is too large to be held whole; None for others."""
        name = section.name
        if name not in self._large and name not in self._whole:
            kind, _, size = unpack_fixed(self._elf.read(section.offset, 16), 0, "IIQ")
            if kind == 1 and size > _WHOLE_BYTES:
                self._large[name] = CompressedSection(self._elf, section, size, self._budget)
        return self._large.get(name)

    def _decompress(self, section: Section) -> bytes:
        name = section.name
        if name not in self._whole:
            (size,) = unpack_fixed(self._elf.read(section.offset, 16), 8, "Q")
            with self._budget.holding(size):
                self._whole[name] = section_bytes(self._elf, section, size)
        return self._whole[name]


def read_header(data: bytes, at: int) -> Unit | None:
    """Return the header of a unit; None for a unit without code."""
    length, version = unpack_fixed(data, 0, "IH")
    if length >= 0xFFFFFFF0:
        raise ValueError("64-bit DWARF")
    if version == 5:
        kind, address_bytes, abbreviations_at = unpack_fixed(data, 6, "BBI")
        # Only compiled (1) and partial (3) units have code, in contrast to type units and skeletons.
        return Unit(at, at + 4 + length, 5, abbreviations_at, 12) if kind in (1, 3) and address_bytes == 8 else None
    abbreviations_at, address_bytes = unpack_fixed(data, 6, "IB")
    return (
        Unit(at, at + 4 + length, version, abbreviations_at, 11) if 2 <= version <= 4 and address_bytes == 8 else None
    )


class OpenUnit:
    """A unit that was read, with its functions."""

    def __init__(self, unit: Unit, held: Entries, sections: Sections) -> None:
        self.unit, self.entries, self._sections = unit, held, sections
        self.root = Entry(0, 0, False, {}, 0)
        self._functions: list[tuple[int, int, int]] | None = None
        self.lines: Lines | None = None

    @property
    def size_bytes(self) -> int:
        """The approximate size in memory."""
        functions = _FUNCTION_BYTES * len(self._functions or ())
        return len(self.entries.data) + functions + (0 if self.lines is None else self.lines.size_bytes)

    def _begin(self) -> list[tuple[int, int, int]]:
        self.root = self.entries.read(self.unit.first) or self.root
        lines_at = self.root.number(STMT_LIST)
        if lines_at is not None:
            try:
                length = int.from_bytes(self._sections.read(".debug_line", lines_at, 4), "little")
                data = self._sections.read(".debug_line", lines_at, min(4 + length, MAX_UNIT_BYTES))
                self.lines = Lines(data, self._read_text)
            except (*DAMAGE, DataError):
                # Damaged line information loses the lines only.
                self.lines = None
        functions: list[tuple[int, int, int]] = []
        for at in self.entries.find_functions(self.unit.first):
            entry = self.entries.read(at)
            if entry is not None:
                functions += [(low, high, at) for low, high in self.ranges(entry)]
        functions.sort()
        return functions

    def chain(self, vaddr: int) -> list[Entry]:
        """Return the function's entry, then those of the calls inlined at an address, outermost first."""
        if self._functions is None:
            self._functions = self._begin()
        index = bisect_right(self._functions, (vaddr, 1 << 64, 1 << 64)) - 1
        if index < 0 or vaddr >= self._functions[index][1]:
            return []
        function = self.entries.read(self._functions[index][2])
        if function is None:
            return []
        chain, at, depth, within = [function], function.end, 1, 1
        # Only entries that contain the address are entered. Children of the innermost one are at depth `within`.
        while function.children and depth >= within and len(chain) < MAX_DEPTH:
            entry = self.entries.read(at)
            if entry is None:
                depth -= 1
                at += 1
                continue
            at = entry.end
            holds = depth == within and entry.tag in _PARTS and self._holds(entry, vaddr)
            if holds and entry.tag == INLINED:
                chain.append(entry)
            if entry.children:
                sibling = entry.reference(SIBLING, 0)
                if not holds and sibling is not None and entry.end < sibling <= len(self.entries.data):
                    at = sibling
                else:
                    depth, within = depth + 1, within + holds
        return chain

    def _holds(self, entry: Entry, vaddr: int) -> bool:
        return any(low <= vaddr < high for low, high in self.ranges(entry))

    def line(self, vaddr: int) -> tuple[str, int] | None:
        """Return the source line of an address."""
        return None if self.lines is None else self.lines.at(vaddr)

    def string(self, entry: Entry, name: int) -> str | None:
        """Return a string attribute of an entry."""
        attribute = entry.attributes.get(name)
        if attribute is None:
            return None
        form, value = attribute
        if form == STRING:
            end = self.entries.data.index(0, value)
            return self.entries.data[value:end].decode("utf-8", "replace")
        if form in INDEXED_STRINGS:
            base = self.root.number(STR_OFFSETS_BASE) or 8
            place = self._sections.read(".debug_str_offsets", base + 4 * value, 4)
            return self._read_text(STRP, int.from_bytes(place, "little"))
        return self._read_text(form, value) if form in (STRP, LINE_STRP) else None

    def _read_text(self, form: int, at: int) -> str:
        section = ".debug_str" if form == STRP else ".debug_line_str"
        return self._sections.read(section, at, _MAX_STRING_BYTES).partition(b"\0")[0].decode("utf-8", "replace")

    def _find_address(self, form: int, value: int) -> int:
        if form not in INDEXED_ADDRESSES:
            return value
        base = self.root.number(ADDR_BASE) or 8
        return int.from_bytes(self._sections.read(".debug_addr", base + 8 * value, 8), "little")

    def ranges(self, entry: Entry) -> list[tuple[int, int]]:
        """Return the link-time ranges [start, end) of an entry's code."""
        low, high = entry.attributes.get(LOW_PC), entry.attributes.get(HIGH_PC)
        if low is not None and high is not None:
            start = self._find_address(*low)
            end = self._find_address(*high) if high[0] in ADDRESS_FORMS else start + high[1]
            return [(start, end)] if 0 < start < end else []
        attribute = entry.attributes.get(RANGES)
        if attribute is None:
            return []
        root_low = self.root.attributes.get(LOW_PC)
        base = 0 if root_low is None else self._find_address(*root_low)
        ranges = (
            self._read_ranges_v5(*attribute, base) if self.unit.version == 5 else self._read_ranges(attribute[1], base)
        )
        return [(start, end) for start, end in ranges if 0 < start < end]

    def _read_ranges(self, at: int, base: int) -> list[tuple[int, int]]:
        ranges: list[tuple[int, int]] = []
        while len(ranges) < _MAX_RANGES:
            start, end = unpack_fixed(self._sections.read(".debug_ranges", at, 16), 0, "QQ")
            at += 16
            if not start and not end:
                break
            if start == (1 << 64) - 1:
                base = end
            else:
                ranges.append((base + start, base + end))
        return ranges

    def _read_ranges_v5(self, form: int, value: int, base: int) -> list[tuple[int, int]]:
        if form == RNGLISTX:
            lists = self.root.number(RNGLISTS_BASE) or 12
            value = lists + int.from_bytes(self._sections.read(".debug_rnglists", lists + 4 * value, 4), "little")
        data = self._sections.read(".debug_rnglists", value, 24 * _MAX_RANGES)
        ranges: list[tuple[int, int]] = []
        at = 0
        while len(ranges) < _MAX_RANGES:
            kind = data[at]
            at += 1
            if kind == 0:
                break
            # Kinds 5 to 7 begin with an address, 1 to 3 with an address index, 4 with an offset.
            if kind >= 5:
                (start,) = unpack_fixed(data, at, "Q")
                at += 8
            else:
                start, at = uleb(data, at)
                start = base + start if kind == 4 else self._find_address(_ADDRX, start)
            if kind in (1, 5):
                base = start
            elif kind == 6:
                ranges.append((start, unpack_fixed(data, at, "Q")[0]))
                at += 8
            elif kind <= 7:
                number, at = uleb(data, at)
                if kind == 2:
                    ranges.append((start, self._find_address(_ADDRX, number)))
                else:
                    ranges.append((start, base + number if kind == 4 else start + number))
            else:
                raise ValueError(f"range of kind {kind}")
        return ranges
