"""Symbol tables as sorted arrays: address → name by the symbol that covers it, never by the nearest.

Format: System V ABI, "Symbol Table"; GNU symbol versions are part of the name in some tables and are cut off.
"""

from __future__ import annotations

import lzma
from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import msgspec

from powerprof.errors import DataError
from powerprof.stacks.elf import SHT_DYNSYM, SHT_STRTAB, SHT_SYMTAB, Elf, parse_elf, section_bytes

if TYPE_CHECKING:
    import numpy as np

MAX_SYMBOLS = 8_000_000
MAX_NAME_BYTES = 4096
DEBUGDATA_LIMIT_BYTES = 256 << 20
_STT_FUNC, _STT_GNU_IFUNC = 2, 10
_STB_WEAK, _STB_LOCAL = 2, 0
# Symbols nest (`_start` in a section's range, assembler labels): how far back to look for one that still covers.
_LOOK_BACK = 64


class SymbolTable(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """Function symbols of one file, sorted by address. Arrays are little-endian: u64 starts and ends, u32 name places.

    `names` holds UTF-8 names ended by NUL.
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
        """How many symbols it has."""
        return len(self.starts) // 8

    def lookup(self, vaddr: int) -> tuple[str, int, int] | None:
        """(name, start, end) of the innermost symbol that covers a link-time address; None where none does."""
        starts, ends, offsets = self._arrays
        at = int(starts.searchsorted(vaddr, "right")) - 1
        for index in range(at, max(at - _LOOK_BACK, -1), -1):
            if vaddr < ends[index]:
                return self._name(int(offsets[index])), int(starts[index]), int(ends[index])
        return None

    def size_at(self, vaddr: int) -> int:
        """The length of the longest symbol that begins at an address; 0 where none does."""
        starts, ends, _ = self._arrays
        first, last = (int(starts.searchsorted(vaddr, side)) for side in ("left", "right"))
        return int(ends[first:last].max()) - vaddr if last > first else 0

    def ranges_of(self, names: Collection[str]) -> set[tuple[int, int]]:
        """[start, end) of every symbol that bears one of the names."""
        starts, ends, offsets = self._arrays
        wanted = {}
        for name in names:
            key = b"\0" + name.encode() + b"\0"
            at = self.names.find(key)
            if at >= 0:
                wanted[at + 1] = name
        found = set()
        for offset in wanted:
            for index in (offsets == offset).nonzero()[0]:
                found.add((int(starts[index]), int(ends[index])))
        return found

    def _name(self, offset: int) -> str:
        end = self.names.find(b"\0", offset, offset + MAX_NAME_BYTES)
        return self.names[offset : end if end >= 0 else offset + MAX_NAME_BYTES].decode("utf-8", "replace")


EMPTY = SymbolTable(starts=b"", ends=b"", offsets=b"", names=b"\0")


def check(table: SymbolTable, path: object) -> SymbolTable:
    """The table as it came from a file. Raises DataError where its arrays contradict each other."""
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


def read_symbols(elf: Elf) -> SymbolTable:
    """Every sized function symbol of a file: .symtab, then what .gnu_debugdata and .dynsym add. Raises DataError."""
    found = [_section_symbols(elf, SHT_SYMTAB)]
    found.append(_minidebuginfo(elf))
    found.append(_section_symbols(elf, SHT_DYNSYM))
    return _merge([one for one in found if one is not None])


@dataclass(frozen=True)
class _Raw:
    starts: np.ndarray
    sizes: np.ndarray
    offsets: np.ndarray
    binding: np.ndarray
    strings: bytes


def _section_symbols(elf: Elf, kind: int) -> _Raw | None:
    import numpy as np

    section = next((one for one in elf.sections if one.kind == kind and one.size), None)
    if section is None:
        return None
    if section.entry_bytes != 24 or section.link >= len(elf.sections):
        raise DataError(elf.path, "symbol table of an unknown shape")
    linked = elf.sections[section.link]
    if linked.kind != SHT_STRTAB:
        raise DataError(elf.path, "symbol table without its names")
    data = section_bytes(elf, section)
    count = len(data) // 24
    if count > MAX_SYMBOLS:
        raise DataError(elf.path, f"more than {MAX_SYMBOLS:,} symbols")
    layout = [("name", "<u4"), ("info", "u1"), ("other", "u1"), ("index", "<u2"), ("value", "<u8"), ("size", "<u8")]
    rows = np.frombuffer(data[: count * 24], np.dtype(layout))
    strings = section_bytes(elf, linked)
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
    return _Raw(rows["value"], rows["size"], rows["name"], rows["info"] >> 4, strings)


def _minidebuginfo(elf: Elf) -> _Raw | None:
    section = elf.section(".gnu_debugdata")
    if section is None:
        return None
    packed = section_bytes(elf, section, 64 << 20)
    try:
        # The memory limit bounds the dictionary that a hostile xz header may ask for.
        worker = lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=128 << 20)
        plain = worker.decompress(packed, DEBUGDATA_LIMIT_BYTES)
    except lzma.LZMAError as error:
        raise DataError(elf.path, f".gnu_debugdata cannot be decompressed ({error})") from error
    if not worker.eof:
        raise DataError(elf.path, f".gnu_debugdata is larger than {DEBUGDATA_LIMIT_BYTES >> 20} MiB or cut short")
    return _section_symbols(parse_elf(plain, f"{elf.path}(.gnu_debugdata)"), SHT_SYMTAB)


def _rank(name: str, binding: int, source: int) -> tuple[int, int, int, int, str]:
    # Aliases at one address: the earlier source, then the name that a program would call (`nanosleep`, not
    # `__nanosleep`), then global before weak before local, then the shorter.
    underscores = len(name) - len(name.lstrip("_"))
    return source, underscores, (2 if binding == _STB_LOCAL else binding == _STB_WEAK), len(name), name


def _merge(tables: list[_Raw]) -> SymbolTable:
    import numpy as np

    best: dict[int, tuple[tuple[int, int, int, int, str], int]] = {}
    for source, table in enumerate(tables):
        strings = table.strings
        for start, size, offset, binding in zip(
            table.starts.tolist(), table.sizes.tolist(), table.offsets.tolist(), table.binding.tolist(), strict=True
        ):
            end = strings.find(b"\0", offset, offset + MAX_NAME_BYTES)
            name = strings[offset : end if end >= 0 else offset + MAX_NAME_BYTES].decode("utf-8", "replace")
            name = name.partition("@")[0] or name
            rank = _rank(name, binding, source)
            known = best.get(start)
            if known is None or rank < known[0]:
                best[start] = (rank, start + size)
    names = bytearray(b"\0")
    places: dict[str, int] = {}
    offsets = []
    order = sorted(best)
    for start in order:
        name = best[start][0][4]
        if name not in places:
            places[name] = len(names)
            names += name.encode("utf-8", "replace") + b"\0"
        offsets.append(places[name])
    return SymbolTable(
        starts=np.array(order, "<u8").tobytes(),
        ends=np.array([best[one][1] for one in order], "<u8").tobytes(),
        offsets=np.array(offsets, "<u4").tobytes(),
        names=bytes(names),
    )
