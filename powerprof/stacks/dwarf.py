# SPDX-License-Identifier: Apache-2.0
"""Calls inlined at an address, by DWARF. Only the units that contain the address are read.

Format: DWARF 2 to 5. Small compressed sections are held whole and count against the budget; others are read in parts.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterator
from typing import NamedTuple

from powerprof.stacks import dwarf_entries
from powerprof.stacks.dwarf_entries import Abbreviation, Entries, Entry, read_abbreviations
from powerprof.stacks.dwarf_units import MAX_UNIT_BYTES, OpenUnit, Sections, Unit, read_header
from powerprof.stacks.dwarf_values import unpack_fixed
from powerprof.stacks.elf import Elf
from powerprof.stacks.time_budget import DebugBudget

_MAX_UNITS = 100_000
_MAX_ABBREVIATION_BYTES = 1 << 20
_LEAST_KEPT_UNITS = 2
_KEPT_BYTES = 8 << 20


class Call(NamedTuple):
    """A function at an address: its linkage name, else its name; and for inlined calls the place of the call."""

    name: str | None
    call_file: str | None
    call_line: int | None


class Dwarf:
    """The debug information of one file. `budget` is the run's."""

    def __init__(self, elf: Elf, budget: DebugBudget) -> None:
        self._sections, self._budget = Sections(elf, budget), budget
        self._tables: dict[int, dict[int, Abbreviation]] = {}
        self._units: list[Unit] | None = None
        self._ranges: list[tuple[int, int, int]] | None = None
        self._opened: OrderedDict[int, OpenUnit] = OrderedDict()

    def calls(self, vaddr: int) -> tuple[list[Call], tuple[str, int] | None]:
        """Return the function at an address, then the calls inlined there, outermost first; and the source line."""
        for unit in self._find_units(vaddr):
            opened = self._open(unit)
            chain = opened.chain(vaddr)
            if chain:
                return [self._describe_call(opened, entry) for entry in chain], opened.line(vaddr)
        return [], None

    def _describe_call(self, unit: OpenUnit, entry: Entry) -> Call:
        file, line = entry.number(dwarf_entries.CALL_FILE), entry.number(dwarf_entries.CALL_LINE)
        name = unit.lines.file(file) if file is not None and unit.lines is not None else None
        return Call(self._find_name(unit, entry), name, line)

    def _find_name(self, unit: OpenUnit, entry: Entry, depth: int = 0) -> str | None:
        """Return the linkage name, which contains the class, of an entry or its origin; else the plain name."""
        for name in (dwarf_entries.LINKAGE, dwarf_entries.OLD_LINKAGE):
            if (linkage_name := unit.string(entry, name)) is not None:
                return linkage_name
        for name in (dwarf_entries.ORIGIN, dwarf_entries.SPECIFICATION):
            place = entry.reference(name, unit.unit.at)
            if place is not None and depth < 4:
                owner = unit if unit.unit.at <= place < unit.unit.end else self._open(self._find_unit(place))
                other = owner.entries.read(place - owner.unit.at)
                if other is not None and (other_name := self._find_name(owner, other, depth + 1)) is not None:
                    return other_name
        return unit.string(entry, dwarf_entries.NAME)

    def _open(self, unit: Unit) -> OpenUnit:
        opened = self._opened.get(unit.at)
        if opened is None:
            if unit.end - unit.at > MAX_UNIT_BYTES:
                raise ValueError("a unit is too large")
            self._evict_oldest(unit.end - unit.at)
            with self._budget.holding(unit.end - unit.at):
                data = self._sections.read(".debug_info", unit.at, unit.end - unit.at)
                entries = Entries(data, self._find_abbreviations(unit))
            opened = self._opened[unit.at] = OpenUnit(unit, entries, self._sections)
        self._opened.move_to_end(unit.at)
        return opened

    def _evict_oldest(self, size: int) -> None:
        """Evict the least recently used units, so that one of `size` bytes fits. The last one always stays."""
        held = sum(opened.size_bytes for opened in self._opened.values())
        # Other files need the rest of the budget.
        most = min(_KEPT_BYTES, self._budget.bytes_left // 4)
        while len(self._opened) >= _LEAST_KEPT_UNITS and held + size > most:
            _, evicted = self._opened.popitem(last=False)
            held -= evicted.size_bytes
            self._budget.release(evicted.unit.end - evicted.unit.at)

    def release(self) -> None:
        """Return all memory to the budget, for other files."""
        self._budget.release(sum(opened.unit.end - opened.unit.at for opened in self._opened.values()))
        self._opened.clear()
        self._sections.release()

    def _find_abbreviations(self, unit: Unit) -> dict[int, Abbreviation]:
        at = unit.abbreviations_at
        if at not in self._tables:
            if len(self._tables) > 64:
                self._tables.clear()
            data = self._sections.read(".debug_abbrev", at, _MAX_ABBREVIATION_BYTES)
            self._tables[at] = read_abbreviations(data)
        return self._tables[at]

    def _read_units(self) -> list[Unit]:
        if self._units is None:
            units: list[Unit] = []
            at, size = 0, self._sections.size(".debug_info")
            while at + 12 < size and len(units) < _MAX_UNITS:
                unit = read_header(self._sections.read(".debug_info", at, 40), at)
                if unit is not None:
                    units.append(unit)
                at += 4 + int.from_bytes(self._sections.read(".debug_info", at, 4), "little")
            self._units = units
        return self._units

    def _find_unit(self, place: int) -> Unit:
        units = self._read_units()
        index = bisect_right(units, place, key=lambda unit: unit.at) - 1
        if index < 0 or place >= units[index].end:
            raise ValueError("a reference to nothing")
        return units[index]

    def _find_units(self, vaddr: int) -> Iterator[Unit]:
        """Yield the units whose ranges contain an address."""
        if self._ranges is None:
            self._ranges = self._read_aranges() or self._read_root_ranges()
        low = bisect_right(self._ranges, (vaddr, 1 << 64, 1 << 64))
        for start, end, at in reversed(self._ranges[max(0, low - 8) : low]):
            if start <= vaddr < end:
                yield self._find_unit(at)

    def _read_aranges(self) -> list[tuple[int, int, int]]:
        """Return (start, end, unit) from .debug_aranges, which gcc and rustc write."""
        size = self._sections.size(".debug_aranges")
        if not size:
            return []
        data = self._sections.read(".debug_aranges", 0, min(size, MAX_UNIT_BYTES))
        ranges: list[tuple[int, int, int]] = []
        at = 0
        while at + 12 <= len(data):
            length, _version, unit_at, address_bytes, _ = unpack_fixed(data, at, "IHIBB")
            if length >= 0xFFFFFFF0 or address_bytes != 8:
                return []
            end = min(at + 4 + length, len(data)) & ~7
            # Pairs are aligned to their size from the start of the header.
            place = at + 16
            while place + 16 <= at + 4 + length and place + 16 <= len(data):
                start, size = unpack_fixed(data, place, "QQ")
                if size:
                    ranges.append((start, start + size, unit_at))
                place += 16
            at = max(at + 4 + length, end)
        ranges.sort()
        return ranges

    def _read_root_ranges(self) -> list[tuple[int, int, int]]:
        """Return (start, end, unit) from the root entry of each unit (clang writes no .debug_aranges)."""
        ranges: list[tuple[int, int, int]] = []
        for unit in self._read_units():
            data = self._sections.read(".debug_info", unit.at, min(unit.end - unit.at, 4096))
            opened = OpenUnit(unit, Entries(data, self._find_abbreviations(unit)), self._sections)
            root = opened.entries.read(unit.first)
            if root is not None:
                opened.root = root
                ranges += [(low, high, unit.at) for low, high in opened.ranges(root)]
        ranges.sort()
        return ranges
