# SPDX-License-Identifier: Apache-2.0
"""Find the function at an address, as reports print it for code without a name."""

from __future__ import annotations

import re
from typing import NamedTuple

from powerprof.stacks.debuginfo import read_debug
from powerprof.stacks.demangle import demangle
from powerprof.stacks.elf import read_elf
from powerprof.stacks.image import ProcessImage
from powerprof.stacks.store import TableStore, open_module
from powerprof.system.errors import DataError
from powerprof.system.foreign_data import reading
from powerprof.system.reader_process import Opened
from powerprof.tracing.symbols import (
    COPIED,
    GO,
    Function,
    MatchedFunctions,
    ModuleFunctions,
    find_file_offset,
    find_functions,
    is_copied,
    is_stepped,
    iterate_symbols,
    read_function_symbols,
    why_not,
)

_PLACE = re.compile(r"([^:*?]+)([+ ])0x([0-9a-f]{1,16})")


class Place(NamedTuple):
    """An address as reports print it for code without a name: in a file (`module+0x…`), or in memory (`module 0x…`)."""

    module: str
    is_in_memory: bool
    address: int


def parse_place(pattern: str) -> Place | None:
    """Return the address that a pattern is; None for names of functions."""
    match = _PLACE.fullmatch(pattern.strip())
    return None if match is None else Place(match[1], match[2] == " ", int(match[3], 16))


def find_function_at(image: ProcessImage, place: Place, store: TableStore) -> MatchedFunctions:
    """Return the function at an address of a process, by its symbol or by its unwind information."""
    label = f"{place.module}{' ' if place.is_in_memory else '+'}{place.address:#x}"

    def refuse(why: str) -> MatchedFunctions:
        return MatchedFunctions((), ((label, why),), {})

    if place.module.startswith("[") or place.module.startswith("perf-"):
        return refuse("no file holds this code, and the kernel places probes in files")
    mappings = [
        one for one in image.mappings if place.module in (image.module_of(one), one.module) and one.bias is not None
    ]
    if not mappings:
        return refuse(f"the process has no code of a file {place.module}")
    mapping, vaddr = mappings[0], place.address
    if place.is_in_memory:
        inside = image.mapping_at(place.address)
        if inside not in mappings:
            return refuse(f"{place.module} is not at this address of the process")
        vaddr -= inside.bias or 0
    if is_copied(image, mapping, vaddr):
        return refuse(COPIED)
    tables = store.tables(image, mapping)
    if isinstance(tables, str):
        return refuse(tables)
    symbols = [tables.symbols]
    debug = read_debug(store, image, mapping, inline=False).symbols
    symbols += [debug] if debug is not None else []
    hit = next((hit for table in reversed(symbols) if (hit := table.lookup(vaddr)) is not None), None)
    start, end = hit[1:] if hit is not None else tables.unwind.range_at(vaddr) or (0, 0)
    if not start:
        return refuse("neither a symbol nor the unwind information of the file has a function there")
    opened = open_module(image, mapping)
    if not isinstance(opened, Opened):
        return refuse(opened)
    with opened:
        try:
            with reading(mapping.path):
                elf = read_elf(opened.fd, mapping.path)
                offset = find_file_offset(elf, start)
                is_indirect = start in read_function_symbols(elf)[1]
                why = why_not(hit[0] if hit is not None else "", is_indirect, offset, elf, start)
                if elf.section(".gopclntab") or elf.section(".go.buildinfo"):
                    why = GO
                if why is not None or offset is None:
                    return refuse(why or "not in the file's code")
                stepped = is_stepped(elf.read(offset, 2))
        except DataError as error:
            return refuse(error.reason)
    name = demangle(hit[0]) if hit is not None else f"{image.module_of(mapping)}+{start:#x}"
    function = Function(name, mapping.module, start, offset, stepped, None, end - start, has_name=hit is not None)
    starts = frozenset(vaddr for table in symbols for vaddr, _ in iterate_symbols(table)) | tables.unwind.all_starts()
    return MatchedFunctions((ModuleFunctions(mapping, (function,), starts),), (), {})


def find_probed(image: ProcessImage, pattern: str, store: TableStore) -> MatchedFunctions:
    """Return the functions of a process that a pattern or an address means. Raises UsageError for an invalid one."""
    place = parse_place(pattern)
    return find_functions(image, pattern, store) if place is None else find_function_at(image, place, store)
