# SPDX-License-Identifier: Apache-2.0
"""Every name of a file's functions, aliases and IFUNCs too: what a pattern is matched against."""

from __future__ import annotations

import struct
from collections.abc import Iterator

from powerprof.errors import DataError
from powerprof.stacks.elf import PT_TLS, SHT_DYNSYM, SHT_SYMTAB, Elf, Section, section_bytes
from powerprof.stacks.registers import AARCH64
from powerprof.stacks.symtab import SymbolTable

MAX_SYMBOLS = 8_000_000
_STT_OBJECT, _STT_FUNC, _STT_TLS, _STT_GNU_IFUNC = 1, 2, 6, 10
_SYMBOL = struct.Struct("<IBBHQQ")


def entries(table: SymbolTable) -> Iterator[tuple[int, str]]:
    """(link-time address, name) of every symbol."""
    for index, start in enumerate(struct.unpack(f"<{table.count}Q", table.starts)):
        yield start, table.name_at(index)


def own_symbols(elf: Elf) -> tuple[list[tuple[int, str]], set[int]]:
    """All names of the file's functions, aliases too, and the addresses of those that are IFUNCs."""
    symbols: list[tuple[int, str]] = []
    indirect: set[int] = set()
    for section, strings in _tables(elf):
        for name, value in _functions(elf, section, strings, indirect):
            symbols.append((value, name))
    return symbols, indirect


def object_address(elf: Elf, name: str) -> int | None:
    """The link-time address of a variable; None where the file does not tell."""
    return _value(elf, name, _STT_OBJECT)


def thread_offset(elf: Elf, name: str) -> int | None:
    """Where a program has a variable that each thread has its own of, from the thread's pointer on; None where the file
    does not tell. On x86-64 it lies before it, on arm64 behind two words ("ELF Handling For Thread-Local Storage",
    variants II and I)."""
    value = _value(elf, name, _STT_TLS)
    block = next((segment for segment in elf.segments if segment.kind == PT_TLS), None)
    if value is None or block is None:
        return None
    align = max(block.align, 1)
    if elf.machine is AARCH64:
        return value + (16 + align - 1) // align * align
    return value - (block.memory_bytes + align - 1) // align * align


def _value(elf: Elf, name: str, kind: int) -> int | None:
    wanted = name.encode() + b"\0"
    for section, strings in _tables(elf):
        data = section_bytes(elf, section)
        for name_at, info, _other, index, value, _ in _SYMBOL.iter_unpack(data[: len(data) // 24 * 24]):
            if info & 15 == kind and index and strings[name_at : name_at + len(wanted)] == wanted:
                return int(value)
    return None


def _tables(elf: Elf) -> Iterator[tuple[Section, bytes]]:
    """Symbol tables with their names."""
    for section in elf.sections:
        if section.kind not in (SHT_SYMTAB, SHT_DYNSYM) or not section.size or section.entry_bytes != _SYMBOL.size:
            continue
        if section.link >= len(elf.sections) or section.size // _SYMBOL.size > MAX_SYMBOLS:
            raise DataError(elf.path, "damaged symbol table")
        yield section, section_bytes(elf, elf.sections[section.link])


def _functions(elf: Elf, section: Section, strings: bytes, indirect: set[int]) -> Iterator[tuple[str, int]]:
    data = section_bytes(elf, section)
    for name_at, info, _other, index, value, size in _SYMBOL.iter_unpack(data[: len(data) // 24 * 24]):
        kind = info & 15
        if kind not in (_STT_FUNC, _STT_GNU_IFUNC) or not index or not size or name_at >= len(strings):
            continue
        if kind == _STT_GNU_IFUNC:
            indirect.add(value)
        end = strings.find(b"\0", name_at)
        raw = strings[name_at:end].decode("utf-8", "replace") if end > name_at else ""
        if raw:
            yield raw.partition("@")[0] or raw, value
