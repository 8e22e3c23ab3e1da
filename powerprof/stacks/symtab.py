# SPDX-License-Identifier: Apache-2.0
"""Symbol tables as sorted arrays: an address has the name of the symbol that covers it, never of the nearest.

Format: System V ABI, "Symbol Table". GNU symbol versions are part of the name in some tables and are cut off.
"""

from __future__ import annotations

import lzma
from collections.abc import Collection
from functools import cached_property
from typing import TYPE_CHECKING, Any

import msgspec

from powerprof.stacks.elf import SHT_DYNSYM, SHT_STRTAB, SHT_SYMTAB, Elf, parse_elf, section_bytes
from powerprof.stacks.go_functions import read_go_functions
from powerprof.stacks.time_budget import PROCESS_BYTES, SYMBOL_BYTES, BudgetMeter
from powerprof.system.errors import DataError
from powerprof.system.foreign_data import loader

if TYPE_CHECKING:
    import numpy as np


MAX_SYMBOLS = 4_000_000
MAX_STRINGS_BYTES = 256 << 20
MAX_NAME_BYTES = 4096
DEBUGDATA_LIMIT_BYTES = 256 << 20
_STT_FUNC, _STT_GNU_IFUNC = 2, 10
_STB_WEAK, _STB_LOCAL = 2, 0
# Symbols nest (`_start` in a section's range, assembler labels): the number of earlier symbols to check for coverage.
_LOOK_BACK = 64
_HEAD = 32
_MOST_NAMESAKES = 1000
_LONGEST_ALIAS = 128
# 128 offsets of 8 bytes for each name of a block: 8 MiB.
_BLOCK = 1 << 13


class SymbolTable(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """Function symbols of one file, sorted by address, as little-endian arrays.

    `starts` and `ends` are u64 addresses, `offsets` u32 places in `names`, which holds NUL-terminated UTF-8 names.
    """

    starts: bytes
    ends: bytes
    offsets: bytes
    names: bytes

    @cached_property
    def _arrays(self) -> tuple[Any, Any, Any]:
        import numpy as np

        return tuple(
            np.frombuffer(data, kind)
            for data, kind in ((self.starts, "<u8"), (self.ends, "<u8"), (self.offsets, "<u4"))
        )  # type: ignore[return-value]

    @property
    def count(self) -> int:
        """The number of symbols."""
        return len(self.starts) // 8

    def lookup(self, vaddr: int) -> tuple[str, int, int] | None:
        """Return (name, start, end) of the innermost symbol that covers a link-time address; None if there is none."""
        starts, ends, offsets = self._arrays
        at = int(starts.searchsorted(vaddr, "right")) - 1
        for index in range(at, max(at - _LOOK_BACK, -1), -1):
            if vaddr < ends[index]:
                return self._read_name(int(offsets[index])), int(starts[index]), int(ends[index])
        return None

    def next_start(self, vaddr: int) -> int:
        """Return the start of the next symbol after an address; 2^64 if there is none."""
        starts, _, _ = self._arrays
        at = int(starts.searchsorted(vaddr, "right"))
        return int(starts[at]) if at < len(starts) else 1 << 64

    def size_at(self, vaddr: int) -> int:
        """Return the length of the longest symbol at an address; 0 if there is none."""
        starts, ends, _ = self._arrays
        first, last = (int(starts.searchsorted(vaddr, side)) for side in ("left", "right"))
        return int(ends[first:last].max()) - vaddr if last > first else 0

    def ranges_of(self, names: Collection[str]) -> set[tuple[int, int]]:
        """Return the ranges [start, end) of every symbol with one of the names."""
        import numpy as np

        starts, ends, offsets = self._arrays
        whole = np.frombuffer(self.names + bytes(_HEAD), np.uint8)
        keys = {name: np.frombuffer((name.encode() + b"\0")[:_HEAD], np.uint8) for name in names}
        ranges: set[tuple[int, int]] = set()
        for at in range(0, len(offsets), _BLOCK):
            heads = whole[offsets[at : at + _BLOCK, None].astype(np.int64) + np.arange(_HEAD)]
            for name, key in keys.items():
                for index in (at + (heads[:, : len(key)] == key).all(axis=1).nonzero()[0]).tolist():
                    if len(ranges) < _MOST_NAMESAKES and self._read_name(int(offsets[index])) == name:
                        ranges.add((int(starts[index]), int(ends[index])))
        return ranges

    def name_at(self, index: int) -> str:
        """Return the name of a symbol by its index."""
        return self._read_name(int(self._arrays[2][index]))

    def _read_name(self, offset: int) -> str:
        end = self.names.find(b"\0", offset, offset + MAX_NAME_BYTES)
        name = self.names[offset : end if end >= 0 else offset + MAX_NAME_BYTES].decode("utf-8", "replace")
        return name.partition("@")[0] or name


EMPTY = SymbolTable(starts=b"", ends=b"", offsets=b"", names=b"\0")


def check_symbols(table: SymbolTable, path: object) -> SymbolTable:
    """Return a table from a file. Raises DataError if its arrays contradict each other."""
    import numpy as np

    count = len(table.starts) // 8
    shapes = (len(table.starts), len(table.ends), len(table.offsets)) == (8 * count, 8 * count, 4 * count)
    if not shapes or not table.names.startswith(b"\0"):
        raise DataError(path, "damaged symbol table")
    starts, ends, offsets = table._arrays
    if count and (
        bool(np.any(starts[1:] < starts[:-1])) or bool(np.any(ends <= starts)) or int(offsets.max()) >= len(table.names)
    ):
        raise DataError(path, "damaged symbol table")
    return table


@loader(0)
def read_symbols(elf: Elf) -> SymbolTable:
    """Return every sized function symbol of a file: .symtab, then those of .gnu_debugdata and .dynsym.

    Raises DataError.
    """
    symtab = _read_section(elf, SHT_SYMTAB, elf.meter)
    tables = [symtab, _read_debugdata(elf), _read_section(elf, SHT_DYNSYM, elf.meter)]
    if symtab is None:
        tables.append(_read_go_symbols(elf))
    return _merge([table for table in tables if table is not None])


def _read_go_symbols(elf: Elf) -> _RawSymbols | None:
    import numpy as np

    functions = read_go_functions(elf)
    if functions is None:
        return None
    starts, sizes, places, names = functions
    return _RawSymbols(starts, sizes, places, np.full(len(starts), _STB_LOCAL, np.uint8), names)


class _RawSymbols(msgspec.Struct, frozen=True):
    starts: np.ndarray
    sizes: np.ndarray
    offsets: np.ndarray
    binding: np.ndarray
    strings: bytes


def _read_section(elf: Elf, kind: int, meter: BudgetMeter | None) -> _RawSymbols | None:
    import numpy as np

    section = next((candidate for candidate in elf.sections if candidate.kind == kind and candidate.size), None)
    if section is None:
        return None
    if section.entry_bytes != 24 or section.link >= len(elf.sections):
        raise DataError(elf.path, "symbol table of an unknown shape")
    linked = elf.sections[section.link]
    if linked.kind != SHT_STRTAB:
        raise DataError(elf.path, "symbol table without its names")
    count = section.size // 24
    if count > MAX_SYMBOLS:
        raise DataError(elf.path, f"more than {MAX_SYMBOLS:,} symbols")
    if meter is not None:
        meter.take(count * (SYMBOL_BYTES - section.entry_bytes), elf.path)
    data = section_bytes(elf, section)
    count = min(count, len(data) // 24)
    layout = [("name", "<u4"), ("info", "u1"), ("other", "u1"), ("index", "<u2"), ("value", "<u8"), ("size", "<u8")]
    rows = np.frombuffer(data[: count * 24], np.dtype(layout))
    strings = section_bytes(elf, linked, MAX_STRINGS_BYTES)
    kinds = rows["info"] & 15
    keep = (
        ((kinds == _STT_FUNC) | (kinds == _STT_GNU_IFUNC))
        & (rows["index"] != 0)
        & (rows["size"] > 0)
        & (rows["size"] < 1 << 40)
        & (rows["value"] < 1 << 62)
        & (rows["name"] > 0)
        & (rows["name"] < len(strings))
    )
    rows = rows[keep]
    return _RawSymbols(rows["value"], rows["size"], rows["name"], rows["info"] >> 4, strings)


def _find_debugdata_limit(elf: Elf, packed_bytes: int) -> int:
    # It compresses five times. Data that compress fifty times are not a symbol table.
    most = min(DEBUGDATA_LIMIT_BYTES, (8 << 20) + 50 * packed_bytes)
    return most if elf.meter is None else min(most, PROCESS_BYTES)


def _read_debugdata(elf: Elf) -> _RawSymbols | None:
    section = elf.section(".gnu_debugdata")
    if section is None:
        return None
    packed = section_bytes(elf, section, 64 << 20)
    try:
        # The memory limit bounds the dictionary that a hostile xz header can request.
        worker = lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=128 << 20)
        plain = worker.decompress(packed, _find_debugdata_limit(elf, len(packed)))
    except lzma.LZMAError as error:
        raise DataError(elf.path, f".gnu_debugdata cannot be decompressed ({error})") from error
    if elf.meter is not None:
        elf.meter.take(len(plain), elf.path)
    if not worker.eof:
        raise DataError(elf.path, f".gnu_debugdata is larger than {DEBUGDATA_LIMIT_BYTES >> 20} MiB or cut short")
    return _read_section(parse_elf(plain, f"{elf.path}(.gnu_debugdata)"), SHT_SYMTAB, elf.meter)


def _merge(tables: list[_RawSymbols]) -> SymbolTable:
    """Return one symbol per address. Names stay in the files' own string tables.

    Symbols can share bytes there, so a copy of each name could be many times the size of the file.
    """
    import numpy as np

    if not tables:
        return EMPTY
    places = np.cumsum([1, *(len(table.strings) + 1 for table in tables)])
    names = b"\0" + b"".join(table.strings + b"\0" for table in tables)
    starts = np.concatenate([table.starts for table in tables])
    order = np.argsort(starts, kind="stable")
    starts = starts[order]
    first = np.ones(len(starts), bool)
    first[1:] = starts[1:] != starts[:-1]
    offsets = np.concatenate([table.offsets + np.uint32(at) for table, at in zip(tables, places, strict=False)])
    if not first.all():
        tied = ~first
        tied[:-1] |= tied[1:]
        aliases = order[tied]
        order[tied] = aliases[_sort_aliases(tables, names, aliases, offsets[aliases], starts[tied])]
    chosen = order[first]
    starts = starts[first]
    del order, first
    sizes = np.concatenate([table.sizes for table in tables])
    return SymbolTable(
        starts=starts.astype("<u8").tobytes(),
        ends=(starts + sizes[chosen]).astype("<u8").tobytes(),
        offsets=offsets[chosen].astype("<u4").tobytes(),
        names=names,
    )


def _sort_aliases(tables: list[_RawSymbols], names: bytes, rows: Any, offsets: Any, starts: Any) -> Any:
    """Return the order of aliases (the symbols `rows`): by address, the preferred one first.

    The earlier source comes first, then the name that a program calls (`nanosleep`, not `__nanosleep`), then global
    before weak before local, then the shorter.
    """
    import numpy as np

    source = np.repeat(np.arange(len(tables), dtype=np.uint8), [len(table.starts) for table in tables])[rows]
    binding = np.concatenate([table.binding for table in tables])[rows]
    weak = ((binding == _STB_WEAK) + 2 * (binding == _STB_LOCAL)).astype(np.uint8)
    underscores, lengths = _measure_names(names, offsets)
    return np.lexsort((offsets, lengths, weak, underscores, source, starts))


def _measure_names(names: bytes, offsets: Any) -> Any:
    """Return two rows: the number of leading underscores of each name, and its length, up to _LONGEST_ALIAS."""
    import numpy as np

    whole = np.frombuffer(names + bytes(_LONGEST_ALIAS), np.uint8)
    lengths = np.zeros((2, len(offsets)), np.uint8)
    for at in range(0, len(offsets), _BLOCK):
        window = whole[offsets[at : at + _BLOCK, None].astype(np.int64) + np.arange(_LONGEST_ALIAS)]
        ended = (window == 0) | (window == ord("@"))
        lengths[0, at : at + _BLOCK] = (window != ord("_")).argmax(axis=1)
        lengths[1, at : at + _BLOCK] = np.where(ended.any(axis=1), ended.argmax(axis=1), _LONGEST_ALIAS)
    return lengths
