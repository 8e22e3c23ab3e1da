# SPDX-License-Identifier: Apache-2.0
"""Sources of function names of the files that a process has mapped, and how many functions they name."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Literal

import msgspec

from powerprof.stacks.debuginfo import read_debug
from powerprof.stacks.elf import SHT_DYNSYM, SHT_SYMTAB, Elf, read_elf
from powerprof.stacks.go_functions import read_go_functions
from powerprof.stacks.image import Mapping, ProcessImage
from powerprof.stacks.store import ModuleTables, TableStore, open_module
from powerprof.stacks.symtab import SymbolTable
from powerprof.system.errors import DataError
from powerprof.system.reader_process import Opened

NamesFrom = Literal["symtab", "gopclntab", "gnu_debugdata", "dynsym"]


def is_complete(names_from: str | None, debug_from: str | None, functions_count: int | None) -> bool:
    """Return whether a debug file cannot add names. Functions besides Go's in a stripped Go program have FDEs."""
    return debug_from is not None or names_from == "symtab" or (names_from == "gopclntab" and not functions_count)


class FileNames(msgspec.Struct, frozen=True, kw_only=True):
    """The names of functions in one mapped file.

    `names_from` is the most complete table of the file itself, `debug_from` is how its debug file was found
    (`build_id`, `debuglink`, `debuginfod`); None: no such source. `functions_count` is the size of its unwind table,
    `named_count` the number of these functions with a symbol; None without such a table. `note`: a read failure.
    """

    path: str
    module: str
    build_id: str | None
    names_from: NamesFrom | None = None
    debug_from: str | None = None
    functions_count: int | None = None
    named_count: int | None = None
    note: str | None = None

    @property
    def is_complete(self) -> bool:
        """Whether a debug file cannot add names."""
        return is_complete(self.names_from, self.debug_from, self.functions_count)


def mapped_files(image: ProcessImage, chosen: Callable[[str], bool] = lambda module: True) -> list[Mapping]:
    """Return the mapped code files of a process, each once, its program first; `chosen` selects by module name."""
    files: dict[tuple[str, str, int], Mapping] = {}
    for mapping in image.mappings:
        if mapping.is_file and chosen(image.module_of(mapping)):
            files.setdefault((mapping.path, mapping.device, mapping.inode), mapping)
    return sorted(files.values(), key=lambda mapping: (mapping.path != image.executable, mapping.path))


def survey_names(image: ProcessImage, mappings: Iterable[Mapping], store: TableStore) -> list[FileNames]:
    """Return the names in each file."""
    return [_read_names(image, mapping, store) for mapping in mappings]


def _read_names(image: ProcessImage, mapping: Mapping, store: TableStore) -> FileNames:
    file = FileNames(path=mapping.path, module=image.module_of(mapping), build_id=mapping.build_id)
    tables = store.tables(image, mapping)
    if isinstance(tables, str):
        return msgspec.structs.replace(file, note=tables)
    debug = read_debug(store, image, mapping, inline=False)
    count, named = _count_functions(tables, debug.symbols)
    return msgspec.structs.replace(
        file,
        names_from=_find_names_source(image, mapping, store),
        debug_from=debug.source,
        functions_count=count,
        named_count=named,
        note="; ".join(debug.notes) or None,
    )


def _find_names_source(image: ProcessImage, mapping: Mapping, store: TableStore) -> NamesFrom | None:
    opened = open_module(image, mapping)
    if not isinstance(opened, Opened):
        return None
    try:
        with opened, store.budget.metered(image.pid, opened.is_trusted) as meter:
            return _choose_table(read_elf(opened.fd, mapping.path, meter))
    except DataError:
        return None


def _choose_table(elf: Elf) -> NamesFrom | None:
    kinds = {section.kind for section in elf.sections if section.size}
    if SHT_SYMTAB in kinds:
        return "symtab"
    if read_go_functions(elf) is not None:
        return "gopclntab"
    if elf.section(".gnu_debugdata") is not None:
        return "gnu_debugdata"
    return "dynsym" if SHT_DYNSYM in kinds else None


def _count_functions(tables: ModuleTables, debug: SymbolTable | None) -> tuple[int | None, int | None]:
    """Return the number of functions in the unwind table, and of those whose start a symbol covers."""
    import numpy as np

    starts = np.frombuffer(tables.unwind.starts, "<u8")
    if not len(starts):
        return None, None
    named = np.zeros(len(starts), bool)
    for table in (tables.symbols, debug):
        if table is not None and table.count:
            named |= _find_covered(table, starts)
    return len(starts), int(named.sum())


def _find_covered(table: SymbolTable, addresses: Any) -> Any:
    import numpy as np

    starts, ends = np.frombuffer(table.starts, "<u8"), np.frombuffer(table.ends, "<u8")
    at = starts.searchsorted(addresses, "right")
    # Symbols nest, so an address is covered up to the furthest end of all earlier symbols.
    furthest = np.concatenate([np.zeros(1, "<u8"), np.maximum.accumulate(ends)])
    return furthest[at] > addresses
