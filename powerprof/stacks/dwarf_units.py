# SPDX-License-Identifier: Apache-2.0
"""One unit of a file's DWARF: its functions, the calls inlined in them, and its source lines."""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_right
from collections.abc import Callable
from typing import NamedTuple

import msgspec

from powerprof.stacks.elf import SHF_COMPRESSED, Elf, Section, section_bytes, sleb, uleb
from powerprof.stacks.time_budget import DebugBudget
from powerprof.system.errors import DataError

# Entries of a unit: abbreviations, attribute forms, and a walk that skips unneeded entries.
#
# Format: DWARF 2 to 5, chapter 7, 32-bit form. Damaged data raise ValueError, IndexError or struct.error.

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
    """The attributes of one kind of entry; `size` in bytes if all of them have a fixed length."""

    tag: int
    children: bool
    attributes: tuple[tuple[int, int, int], ...]
    size: int | None


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
    """Return the number of an attribute (for a string its offset), and the offset of its end."""
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
        if form in _UNIT_REFERENCES:
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
            value, place = _value(form, constant, self.data, place)
            attributes[name] = (form, value)
        if place > len(self.data):
            raise ValueError("an entry ends outside of its unit")
        return Entry(at, kind.tag, kind.children, attributes, place)

    def places(self, at: int, wanted: frozenset[int]) -> list[int]:
        """Return the offsets of entries with these tags from `at` to the end of the unit, in order, at any depth."""
        places: list[int] = []
        data, table, size = self.data, self._table, len(self.data)
        while at < size:
            code = data[at]
            place = at + 1
            if code >= 0x80:
                code, place = uleb(data, at)
            if code:
                kind = table[code]
                if kind.tag in wanted:
                    places.append(at)
                if kind.size is not None:
                    place += kind.size
                else:
                    for _, form, _ in kind.attributes:
                        place = _skip(form, data, place)
            at = place
        return places


def unpack_fixed(data: bytes, at: int, shape: str) -> tuple[int, ...]:
    """Return little-endian numbers at an offset."""
    return struct.unpack_from(f"<{shape}", data, at)


# Source lines of addresses: the line program of one unit.
#
# Format: DWARF 2 to 5, section 6.2. Damaged data raise ValueError, IndexError or struct.error.

_MAX_ROWS = 500_000
_MAX_FILES = 100_000
_PATH, _DIRECTORY = 1, 2
_SIZES = {0x0B: 1, 0x05: 2, 0x06: 4, 0x07: 8, 0x1E: 16, 0x0E: 4, 0x1F: 4}


class Lines:
    """The rows of a unit's line program, sorted by address."""

    def __init__(self, data: bytes, string: Callable[[int, int], str]) -> None:
        self._data, self._string = data, string
        self._addresses, self._numbers, self._lines = array("Q"), array("I"), array("I")
        self._files: list[str] = []
        self._read()
        self._data = b""

    def file(self, index: int) -> str | None:
        """Return a file's name as the compiler got it."""
        return self._files[index] if 0 <= index < len(self._files) else None

    def at(self, vaddr: int) -> tuple[str, int] | None:
        """Return file and line of an address."""
        index = bisect_right(self._addresses, vaddr) - 1
        if index < 0:
            return None
        file, line = self._numbers[index], self._lines[index]
        # Line 0 means no source line, or the end of a sequence.
        name = self.file(file)
        return (name, line) if name and line > 0 else None

    def _read(self) -> None:
        data = self._data
        length, version = unpack_fixed(data, 0, "IH")
        if length >= 0xFFFFFFF0 or not 2 <= version <= 5:
            raise ValueError(f"line table version {version}")
        end = min(4 + length, len(data))
        at = 6 + (2 if version == 5 else 0)
        (header_bytes,) = unpack_fixed(data, at, "I")
        program = at + 4 + header_bytes
        at += 4
        smallest = data[at]
        at += 1 + (version >= 4) + 1
        base, span, opcodes = unpack_fixed(data, at, "bBB")
        lengths = data[at + 3 : at + 2 + opcodes]
        at += 2 + opcodes
        if version == 5:
            directories, at = self._names_v5(at)
            files, at = self._names_v5(at)
            self._files = [_joined(directories, name, place) for name, place in files]
        else:
            self._files = self._names(at)
        self._run(program, end, smallest, base, span, opcodes, lengths)

    def _names(self, at: int) -> list[str]:
        data = self._data
        directories: list[tuple[str, int]] = [("", 0)]
        while data[at]:
            name, at = _inline(data, at)
            directories.append((name, 0))
            _limited(directories)
        at += 1
        files = [""]
        while data[at]:
            name, at = _inline(data, at)
            place, at = uleb(data, at)
            _, at = uleb(data, at)
            _, at = uleb(data, at)
            files.append(_joined(directories, name, place))
            _limited(files)
        return files

    def _names_v5(self, at: int) -> tuple[list[tuple[str, int]], int]:
        data = self._data
        formats = []
        count = data[at]
        at += 1
        for _ in range(count):
            kind, at = uleb(data, at)
            form, at = uleb(data, at)
            formats.append((kind, form))
        count, at = uleb(data, at)
        files: list[tuple[str, int]] = []
        for _ in range(count):
            name, place = "", 0
            for kind, form in formats:
                if form == STRING:
                    text, at = _inline(data, at)
                    value = 0
                elif form == 0x0F:
                    text, (value, at) = "", uleb(data, at)
                else:
                    size = _SIZES[form]
                    value = int.from_bytes(data[at : at + size], "little")
                    at += size
                    text = self._string(form, value) if form in (STRP, LINE_STRP) and kind == _PATH else ""
                if kind == _PATH:
                    name = text
                elif kind == _DIRECTORY:
                    place = value
            files.append((name, place))
            _limited(files)
        return files, at

    def _run(self, at: int, end: int, smallest: int, base: int, span: int, opcodes: int, lengths: bytes) -> None:
        data = self._data
        rows: list[tuple[int, int, int]] = []
        address, file, line = 0, 1, 1
        while at < end:
            opcode = data[at]
            at += 1
            if opcode >= opcodes:
                moved = opcode - opcodes
                address += moved // span * smallest
                line += base + moved % span
                rows.append((address, file, line))
            elif opcode == 0:
                size, at = uleb(data, at)
                if size and data[at] == 1:
                    rows.append((address, file, 0))
                    address, file, line = 0, 1, 1
                elif size == 9 and data[at] == 2:
                    (address,) = unpack_fixed(data, at + 1, "Q")
                at += size
            elif opcode == 1:
                rows.append((address, file, line))
            elif opcode == 2:
                moved, at = uleb(data, at)
                address += moved * smallest
            elif opcode == 3:
                moved, at = sleb(data, at)
                line += moved
            elif opcode == 4:
                file, at = uleb(data, at)
            elif opcode == 8:
                address += (255 - opcodes) // span * smallest
            elif opcode == 9:
                address += unpack_fixed(data, at, "H")[0]
                at += 2
            else:
                for _ in range(lengths[opcode - 1]):
                    _, at = uleb(data, at)
            if len(rows) > _MAX_ROWS:
                raise ValueError("too many lines")
        # The end of a sequence sorts before a row at the same address; of several rows there the last one counts.
        rows.sort(key=lambda row: (row[0], row[2] > 0))
        for address, file, line in rows:
            self._addresses.append(address)
            self._numbers.append(file)
            self._lines.append(max(line, 0))


def _limited(names: list[tuple[str, int]] | list[str]) -> None:
    if len(names) > _MAX_FILES:
        raise ValueError("too many files")


def _inline(data: bytes, at: int) -> tuple[str, int]:
    end = data.index(0, at)
    return data[at:end].decode("utf-8", "replace"), end + 1


def _joined(directories: list[tuple[str, int]], name: str, place: int) -> str:
    # Directory 0 is the compiler's working directory.
    folder = directories[place][0] if 0 < place < len(directories) else ""
    return f"{folder}/{name}" if folder and not name.startswith("/") else name


MAX_UNIT_BYTES = 16 << 20
MAX_DEPTH = 64
_MAX_RANGES = 10_000
_MAX_STRING_BYTES = 4096
_CODE = frozenset((SUBPROGRAM,))
_PARTS = (INLINED, LEXICAL_BLOCK)
_ADDRX = 0x1B
DAMAGE = (ValueError, LookupError, struct.error, OverflowError, DataError)


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

    def size(self, name: str) -> int:
        """Return the uncompressed size of a section in bytes; 0 if it is missing."""
        section = self._elf.section(name)
        if section is None:
            return 0
        return len(self._plain(section)) if section.flags & SHF_COMPRESSED else section.size

    def read(self, name: str, at: int, most: int) -> bytes:
        """Return up to `most` bytes from an offset. Raises ValueError outside of the section."""
        section = self._elf.section(name)
        if section is None or at < 0:
            raise ValueError(f"no {name}")
        if section.flags & SHF_COMPRESSED:
            return self._plain(section)[at : at + most]
        size = min(most, section.size - at)
        if size <= 0:
            raise ValueError(f"{name} ends before {at:#x}")
        return self._elf.read(section.offset + at, size)

    def _plain(self, section: Section) -> bytes:
        name = section.name
        if name not in self._whole:
            (size,) = unpack_fixed(self._elf.read(section.offset, 16), 8, "Q")
            self._budget.hold(size)
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

    def _begin(self) -> list[tuple[int, int, int]]:
        self.root = self.entries.read(self.unit.first) or self.root
        lines_at = self.root.number(STMT_LIST)
        if lines_at is not None:
            try:
                length = int.from_bytes(self._sections.read(".debug_line", lines_at, 4), "little")
                data = self._sections.read(".debug_line", lines_at, min(4 + length, MAX_UNIT_BYTES))
                self.lines = Lines(data, self._text)
            except DAMAGE:
                # Damaged line information loses the lines only.
                self.lines = None
        functions: list[tuple[int, int, int]] = []
        for at in self.entries.places(self.unit.first, _CODE):
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
            return self._text(STRP, int.from_bytes(place, "little"))
        return self._text(form, value) if form in (STRP, LINE_STRP) else None

    def _text(self, form: int, at: int) -> str:
        section = ".debug_str" if form == STRP else ".debug_line_str"
        return self._sections.read(section, at, _MAX_STRING_BYTES).partition(b"\0")[0].decode("utf-8", "replace")

    def _address(self, form: int, value: int) -> int:
        if form not in INDEXED_ADDRESSES:
            return value
        base = self.root.number(ADDR_BASE) or 8
        return int.from_bytes(self._sections.read(".debug_addr", base + 8 * value, 8), "little")

    def ranges(self, entry: Entry) -> list[tuple[int, int]]:
        """Return the link-time ranges [start, end) of an entry's code."""
        low, high = entry.attributes.get(LOW_PC), entry.attributes.get(HIGH_PC)
        if low is not None and high is not None:
            start = self._address(*low)
            end = self._address(*high) if high[0] in ADDRESS_FORMS else start + high[1]
            return [(start, end)] if 0 < start < end else []
        attribute = entry.attributes.get(RANGES)
        if attribute is None:
            return []
        root_low = self.root.attributes.get(LOW_PC)
        base = 0 if root_low is None else self._address(*root_low)
        ranges = self._list_v5(*attribute, base) if self.unit.version == 5 else self._list(attribute[1], base)
        return [(start, end) for start, end in ranges if 0 < start < end]

    def _list(self, at: int, base: int) -> list[tuple[int, int]]:
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

    def _list_v5(self, form: int, value: int, base: int) -> list[tuple[int, int]]:
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
                start = base + start if kind == 4 else self._address(_ADDRX, start)
            if kind in (1, 5):
                base = start
            elif kind == 6:
                ranges.append((start, unpack_fixed(data, at, "Q")[0]))
                at += 8
            elif kind <= 7:
                number, at = uleb(data, at)
                if kind == 2:
                    ranges.append((start, self._address(_ADDRX, number)))
                else:
                    ranges.append((start, base + number if kind == 4 else start + number))
            else:
                raise ValueError(f"range of kind {kind}")
        return ranges
