# SPDX-License-Identifier: Apache-2.0
"""Functions of a Go program by the table of Go's runtime, which a stripped program still has.

Format: Go's internal/abi and runtime/symtab.go (pcHeader, moduledata), as of Go 1.18 and later.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from powerprof.stacks.elf import PF_X, SHF_COMPRESSED, Elf, Section, section_bytes
from powerprof.stacks.time_budget import SYMBOL_BYTES

if TYPE_CHECKING:
    import numpy as np

_SECTIONS = (".gopclntab", ".data.rel.ro.gopclntab")
# Sections in which the linker may put a module's record, by version and kind of program.
_MODULE_SECTIONS = (".go.module", ".noptrdata", ".data", ".data.rel.ro")
_MAGICS = (0xFFFFFFF0, 0xFFFFFFF1)
# magic, padding, minimal instruction size, pointer size; number of functions, of files, start of the text; offsets in
# the table of names, units, files, tables of values, functions.
_HEADER = struct.Struct("<IHBB8Q")
# The words of a module's record: the table, six slices of three words, then findfunctab, minpc, maxpc, text, etext.
_MODULE = struct.Struct("<24Q")
_MAX_FUNCTIONS = 4_000_000
_MAX_PLACES = 64
_MOST_BYTES = 64 << 20
_GOTABLE_BLOCK = 1 << 14
# The records of a block, which linkers write one after the other: about 100 bytes each, 2 KB at most.
_MOST_RECORDS_BYTES = 8 << 20
_ROW_BYTES = 8


def read_go_functions(elf: Elf) -> tuple[np.ndarray, np.ndarray, np.ndarray, bytes] | None:
    """Return (starts, sizes, offsets of names, names) of a Go program's functions, link-time.

    None for another program, or if the table contradicts itself. Raises DataError if the file is damaged.
    """
    import numpy as np

    section = next((section for name in _SECTIONS if (section := elf.section(name)) is not None), None)
    if section is None or section.flags & SHF_COMPRESSED or section.size < _HEADER.size:
        return None
    magic, padding, _, pointer, count, _, text, names_at, units_at, _, _, functions_at = _HEADER.unpack(
        elf.read(section.offset, _HEADER.size)
    )
    if magic not in _MAGICS or padding or pointer != 8 or not 0 < count <= _MAX_FUNCTIONS:
        return None
    if not _HEADER.size <= names_at < units_at <= section.size or functions_at + _ROW_BYTES * count + 4 > section.size:
        return None
    if elf.meter is not None:
        # The header contains the number of functions.
        elf.meter.take(count * (SYMBOL_BYTES - _ROW_BYTES), elf.path)
    entries, of_names = np.empty(count + 1, "<u4"), np.empty(count, "<u4")
    for at in range(0, count, _GOTABLE_BLOCK):
        rows = min(_GOTABLE_BLOCK, count - at)
        # Each block ends with the start of the next one; the last one ends with the end of the code.
        block = np.frombuffer(elf.read(section.offset + functions_at + _ROW_BYTES * at, _ROW_BYTES * rows + 4), "<u4")
        entries[at : at + rows + 1] = block[0::2]
        places = block[1::2].astype(np.int64) + functions_at + 4
        first, end = int(places.min()), int(places.max()) + 4
        if end > section.size or end - first > _MOST_RECORDS_BYTES:
            return None
        records = np.frombuffer(elf.read(section.offset + first, end - first), np.uint8)
        # Records are not aligned.
        of_names[at : at + rows] = records[(places - first)[:, None] + np.arange(4)].view("<u4")[:, 0]
    text = text or _find_text(elf, section, names_at, count)
    if text is None or np.any(entries[1:] < entries[:-1]) or not _is_code(elf, text, text + int(entries[-1])):
        return None
    names = elf.read(section.offset + names_at, units_at - names_at)
    keep = (entries[1:] > entries[:-1]) & (of_names < len(names))
    sizes = (entries[1:] - entries[:-1])[keep]
    return entries[:-1][keep].astype(np.uint64) + np.uint64(text), sizes, of_names[keep], names


def _is_code(elf: Elf, start: int, end: int) -> bool:
    return any(
        load.flags & PF_X and load.vaddr <= start <= end <= load.vaddr + load.memory_bytes for load in elf.loads()
    )


def _find_text(elf: Elf, table: Section, names_at: int, count: int) -> int | None:
    """Return the start of the text, to which functions of Go 1.26 and later are relative; None if it is unknown.

    It is in the module's record, which is recognised by its references to this table.
    """
    key = table.vaddr.to_bytes(8, "little")
    for name in _MODULE_SECTIONS:
        section = elf.section(name)
        if section is None or section.size > _MOST_BYTES:
            continue
        data = section_bytes(elf, section)
        at = data.find(key)
        for _ in range(_MAX_PLACES):
            if at < 0:
                break
            if at + _MODULE.size <= len(data):
                words = _MODULE.unpack_from(data, at)
                low, high, text, end = words[20:24]
                if words[1] == table.vaddr + names_at and words[17] == count + 1 and text <= low <= high <= end:
                    return int(text)
            at = data.find(key, at + 1)
    return None
