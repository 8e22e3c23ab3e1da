# SPDX-License-Identifier: Apache-2.0
"""ELF files made by hand, sound ones to be bent, and processes that have mapped them."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from powerprof.stacks.image import Mapping, ProcessImage

EHDR, PHDR, SHDR = struct.Struct("<16sHHIQQQIHHHHHH"), struct.Struct("<IIQQQQQQ"), struct.Struct("<IIQQQQIIQQ")


@dataclass(frozen=True)
class Part:
    """One section: `link` is the index of another (1 is the first given)."""

    name: str
    kind: int
    data: bytes
    flags: int = 0
    link: int = 0
    entry_bytes: int = 0
    vaddr: int = 0


def symbol(name_at: int, value: int, size: int, info: int = 0x12) -> bytes:
    """A .symtab entry; info 0x12 is a global function."""
    return struct.pack("<IBBHQQ", name_at, info, 0, 1, value, size)


def make(parts: list[Part], *, machine: int = 62, kind: int = 3, entry: int = 0, memory_bytes: int = 0x10000) -> bytes:
    """An ELF file with one executable segment at 0 and the sections."""
    names = b"\0" + b"".join(part.name.encode() + b"\0" for part in parts) + b".shstrtab\0"
    body = bytearray(EHDR.size + PHDR.size)
    headers = [bytes(SHDR.size)]
    for part in [*parts, Part(".shstrtab", 3, names)]:
        at = len(body)
        name_at = names.index(b"\0" + part.name.encode() + b"\0") + 1
        headers.append(
            SHDR.pack(name_at, part.kind, part.flags, part.vaddr, at, len(part.data), part.link, 0, 8, part.entry_bytes)
        )
        body += part.data
        body += bytes(-len(body) % 8)
    sections_at = len(body)
    body += b"".join(headers)
    body[: EHDR.size] = EHDR.pack(
        b"\x7fELF\x02\x01\x01" + bytes(9),
        kind,
        machine,
        1,
        entry,
        EHDR.size,
        sections_at,
        0,
        EHDR.size,
        PHDR.size,
        1,
        SHDR.size,
        len(headers),
        len(headers) - 1,
    )
    body[EHDR.size : EHDR.size + PHDR.size] = PHDR.pack(1, 5, 0, 0, 0, len(body), max(memory_bytes, len(body)), 4096)
    return bytes(body)


def with_symbols(entries: list[tuple[str, int, int, int]]) -> bytes:
    """A file whose table has (name, value, size, info)."""
    strings = bytearray(b"\0")
    rows = [bytes(24)]
    for name, value, size, info in entries:
        rows.append(symbol(len(strings), value, size, info))
        strings += name.encode() + b"\0"
    return make([Part(".symtab", 2, b"".join(rows), link=2, entry_bytes=24), Part(".strtab", 3, bytes(strings))])


def with_go_table(functions: list[tuple[str, int]], end: int, text: int = 0x1000, *, told: bool = True) -> bytes:
    """A Go program without symbols: (name, distance from `text`) of each function, sorted, the last up to `end`.
    Without `told` the table does not say where they begin, as since Go 1.26: the record of the module does."""
    vaddr = 0x8000
    names, places = b"", []
    for name, _ in functions:
        places.append(len(names))
        names += name.encode() + b"\0"
    units_at = 72 + len(names)
    records_at = 8 * len(functions) + 4
    rows = b"".join(struct.pack("<II", at, records_at + 8 * number) for number, (_, at) in enumerate(functions))
    records = b"".join(struct.pack("<Ii", at, place) for (_, at), place in zip(functions, places, strict=True))
    offsets = (72, units_at, units_at, units_at, units_at)
    head = struct.pack("<IHBB8Q", 0xFFFFFFF1, 0, 1, 8, len(functions), 1, text if told else 0, *offsets)
    table = head + names + rows + struct.pack("<I", end) + records
    slices = [vaddr + 72, len(names), len(names), *(0,) * 12, vaddr, len(functions) + 1, len(functions) + 1]
    module = struct.pack("<24Q", vaddr, *slices, 0, text, text + end, text, text + end)
    return make(
        [
            Part(".gopclntab", 1, table, flags=2, vaddr=vaddr),
            Part(".noptrdata", 1, b"\0" * 24 + struct.pack("<Q", vaddr) + b"\0" * 40 + module, flags=3, vaddr=0xC000),
        ]
    )


def wide_go_table(count: int) -> bytes:
    """Return the section .gopclntab of `count` functions of four bytes, whose rows all lead to one record."""
    names = b"main.main\0"
    units_at, records_at = 72 + len(names), 8 * count + 4
    head = struct.pack("<IHBB8Q", 0xFFFFFFF1, 0, 1, 8, count, 1, 0x1000, 72, *[units_at] * 4)
    rows = np.stack((4 * np.arange(count, dtype="<u4"), np.full(count, records_at, "<u4")), axis=1)
    return head + names + rows.tobytes() + struct.pack("<IIi", 4 * count, 0, 0)


X86_CIE = b"\x01zR\0\x01\x78\x10\x01\x1b\x0c\x07\x08\x90\x01" + b"\0" * 2


def eh_frame(*functions: tuple[int, int, bytes], common: bytes = X86_CIE) -> bytes:
    """Return .eh_frame at 0x8000 of (start, size, instructions) with addresses relative to the entries."""
    table = struct.pack("<II", 4 + len(common), 0) + common
    for start, size, code in functions:
        at = len(table)
        body = struct.pack("<IiIB", at + 4, start - (0x8000 + at + 8), size, 0) + code
        body += b"\0" * (-len(body) % 4)
        table += struct.pack("<I", len(body)) + body
    return table


def note(build_id: bytes = b"\1\2\3\4") -> Part:
    """Return the section with the build id."""
    return Part(".note", 7, struct.pack("<III", 4, 4, 3) + b"GNU\0" + build_id)


def image_of(path: Path, *more: Mapping, pid: int = 4194303, **fields: Any) -> ProcessImage:
    """Return a process with this file at 0x10000, and with more mappings."""
    status = path.stat()
    values = {"bias": 0x10000, "build_id": "01020304", **fields}
    values |= {"inode": status.st_ino, "size_bytes": status.st_size, "mtime_ns": status.st_mtime_ns}
    file = Mapping(start=0x10000, end=0x20000, offset=0, path=str(path), device="0:0", **values)
    mappings = tuple(sorted((file, *more), key=lambda mapping: mapping.start))
    return ProcessImage(pid=pid, started_ticks=1, executable=str(path), mappings=mappings)
