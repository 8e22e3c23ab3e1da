# SPDX-License-Identifier: Apache-2.0
"""A store of the unwind and symbol tables of processes' modules, from their files or the cache."""

from __future__ import annotations

import os
import stat
from collections import OrderedDict
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from powerprof.stacks import symtab, unwind_tables
from powerprof.stacks.elf import Elf, parse_elf, read_elf
from powerprof.stacks.image import Mapping, ProcessImage
from powerprof.stacks.inline import InlineReader, open_inline
from powerprof.stacks.symtab import SymbolTable
from powerprof.stacks.time_budget import Budget, BudgetMeter, DebugBudget
from powerprof.stacks.unwind_tables import UnwindTable
from powerprof.system.errors import DataError, PowerprofError
from powerprof.system.folders import Folder
from powerprof.system.foreign_data import loader, reading
from powerprof.system.paths import cache_folder
from powerprof.system.reader_process import Opened, shared

SCHEMA = 3
_LIMIT_BYTES = 768 << 20
# Limit of the tables of all files in memory. The largest server's take 20 MB.
_HELD_BYTES = 48 << 20


class ModuleTables(msgspec.Struct, frozen=True, kw_only=True):
    """The tables of one ELF file, as the caches hold them."""

    schema: int
    key: str
    unwind: UnwindTable
    symbols: SymbolTable
    debug: SymbolTable | None = None


@loader(1)
def decode_tables(data: bytes, path: object, key: str | None = None, *, own: bool = False) -> ModuleTables:
    """Return saved tables. Raises DataError if they are damaged or belong to another file than `key`.

    `own`: from a folder that only we can write. Checks that were made before writing are skipped: they take ten times
    as long as all else.
    """
    try:
        module = msgspec.msgpack.decode(data, type=ModuleTables)
    except msgspec.MsgspecError as error:
        raise DataError(path, f"not a saved table ({error})") from error
    if module.schema != SCHEMA or (key is not None and module.key != key):
        raise DataError(path, "a table of another file or version")
    unwind_tables.check_table(module.unwind, path, own=own)
    symtab.check_symbols(module.symbols, path)
    if module.debug is not None:
        symtab.check_symbols(module.debug, path)
    return module


def save_tables(kept: ModuleTables | SymbolTable, directory: Path, name: str) -> None:
    """Write tables atomically, readable by the owner only. Raises OSError."""
    with Folder.open(directory) as folder:
        folder.write(name, msgspec.msgpack.encode(kept))


def _measure(module: ModuleTables | str) -> int:
    """Return the size of a module's tables in bytes; 0 for a failure reason."""
    if isinstance(module, str):
        return 0
    tables = [table for table in (module.symbols, module.debug) if table is not None]
    symbols = sum(len(table.starts) + len(table.ends) + len(table.offsets) + len(table.names) for table in tables)
    return symbols + len(module.unwind.eh_frame) + len(module.unwind.starts) + len(module.unwind.ends) + 1


class TableStore:
    """A store that reads each table once.

    Without `downloads` no debuginfod server is queried.
    """

    def __init__(self, *, use_cache: bool = True, downloads: bool = True) -> None:
        self.downloads = downloads
        self.budget = Budget()
        self.debug_budget = DebugBudget()
        self._use_cache = use_cache
        self._known: OrderedDict[tuple[str, str, str | None, bool], ModuleTables | str] = OrderedDict()
        self._held_bytes = 0
        # By file: processes that map a library share its debug information.
        self._debug: dict[str, SymbolTable] = {}
        self._inline: dict[str, InlineReader | None] = {}
        # For `debuginfo.read_debug`: by file, then by the root of the process.
        self.debug_info: dict[Any, dict[Any, Any]] = {}

    def unwind_table(self, image: ProcessImage, mapping: Mapping) -> UnwindTable | str:
        """Return a module's unwind table, or the reason for its absence."""
        module = self.tables(image, mapping)
        return module if isinstance(module, str) else module.unwind

    def tables(self, image: ProcessImage, mapping: Mapping) -> ModuleTables | str:
        """Return the tables of a module's file, or the reason for their absence."""
        if mapping.path == "[vdso]" and image.vdso:
            key: tuple[str, str, str | None, bool] = (f"[vdso] {hash(image.vdso):x}", "", None, False)
        elif not mapping.inode:
            return "code that no file holds"
        else:
            key = self.file_key(mapping)
        tables = self._known.get(key)
        if tables is None:
            tables = self._known[key] = self._find(image, mapping)
            self._held_bytes += _measure(tables)
            self._evict_oldest()
        self._known.move_to_end(key)
        return tables

    @staticmethod
    def file_key(mapping: Mapping) -> tuple[str, str, str | None, bool]:
        """Return the identity of a mapped file, whatever process maps it."""
        identity = f"{mapping.device}-{mapping.inode}-{mapping.size_bytes}-{mapping.mtime_ns}"
        return identity, mapping.path, mapping.build_id, mapping.bias is None

    def _evict_oldest(self) -> None:
        """Evict the least recently used tables until within the limit. Keep the cached reasons for failures."""
        for key in list(self._known)[:-1] if self._held_bytes > _HELD_BYTES else ():
            if (size := _measure(self._known[key])) > 0:
                del self._known[key]
                self._held_bytes -= size
            if self._held_bytes <= _HELD_BYTES:
                return

    def _find(self, image: ProcessImage, mapping: Mapping) -> ModuleTables | str:
        try:
            if mapping.path == "[vdso]":
                return _extract(parse_elf(image.vdso or b"", "[vdso]"), "vdso")
            if mapping.bias is None:
                return mapping.note or "its file could not be read"
            opened = open_module(image, mapping)
            if not isinstance(opened, Opened):
                return opened
            with opened, reading(mapping.path), self.budget.metered(image.pid, opened.is_trusted) as meter:
                return self._read_file(opened, mapping, meter)
        except DataError as error:
            return error.reason
        except OSError as error:
            return (error.strerror or str(error)).lower()

    def _read_file(self, opened: Opened, mapping: Mapping, meter: BudgetMeter | None) -> ModuleTables:
        directory = _find_cache_directory() if self._use_cache else None
        name = f"{mapping.build_id or 'none'}-{opened.key}.tables"
        if directory is not None:
            with suppress(DataError, OSError):
                return decode_tables(_read_bounded(directory / name), name, opened.key, own=True)
        module = _extract(read_elf(opened.fd, mapping.path, meter), opened.key)
        if directory is not None:
            with suppress(OSError):
                save_tables(module, directory, name)
        return module

    def debug_symbols(self, opened: Opened, elf: Elf) -> SymbolTable:
        """Return the symbols of a separate debug file, cached on disk. Raises DataError if it is damaged."""
        name = f"{elf.build_id or 'none'}-{opened.key}.debug"
        if name not in self._debug:
            self._debug[name] = self._read_debug_table(elf, name)
        return self._debug[name]

    def inline(self, opened: Opened, elf: Elf) -> InlineReader | None:
        """Return the reader of a file's DWARF; None without DWARF or for an untrusted file."""
        if not opened.is_trusted:
            return None
        if opened.key not in self._inline:
            self._inline[opened.key] = open_inline(opened, elf, self.debug_budget)
        return self._inline[opened.key]

    def _read_debug_table(self, elf: Elf, name: str) -> SymbolTable:
        directory = _find_cache_directory() if self._use_cache else None
        if directory is not None:
            with suppress(DataError, OSError, msgspec.MsgspecError):
                table = msgspec.msgpack.decode(_read_bounded(directory / name), type=SymbolTable)
                return symtab.check_symbols(table, name)
        table = symtab.read_symbols(elf)
        if directory is not None:
            with suppress(OSError):
                save_tables(table, directory, name)
        return table


def _extract(elf: Elf, key: str) -> ModuleTables:
    try:
        symbols = symtab.read_symbols(elf)
    except DataError:
        # A damaged symbol table loses the names only.
        symbols = symtab.EMPTY
    return ModuleTables(schema=SCHEMA, key=key, unwind=unwind_tables.extract_table(elf, symbols), symbols=symbols)


def _read_bounded(path: Path) -> bytes:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    with os.fdopen(fd, "rb") as file:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode) or status.st_size > _LIMIT_BYTES:
            raise DataError(path, "not a saved table")
        # The exact size: Python allocates the requested memory first.
        return file.read(status.st_size)


def _find_cache_directory() -> Path | None:
    """Return the folder of tables that are kept between runs; None if other accounts could write it."""
    try:
        return cache_folder("symbols")
    except PowerprofError:
        return None


def open_module(image: ProcessImage, mapping: Mapping) -> Opened | str:
    """Open the file of a mapping: the living process's, else the file of that name here with the same build id.

    Returns the reason if neither can be opened.
    """
    place = (*(mapping.opened_at or (mapping.start, mapping.end)), mapping.inode, mapping.path)
    opened = shared().open_mapped(image.pid, place)
    if isinstance(opened, Opened):
        if _is_same(opened, mapping):
            return opened
        os.close(opened.fd)
    if mapping.build_id is None:
        return opened if isinstance(opened, str) else "changed on disk since it was started"
    here = shared().open_in_root(image.pid, Path("/"), mapping.path)
    if isinstance(here, Opened):
        if _is_same(here, mapping):
            return here
        os.close(here.fd)
        return "replaced on disk since it was started"
    return here


def open_probed(image: ProcessImage, mapping: Mapping) -> Opened | str:
    """Open a file for a probe as `open_module` does; refuse a copy, because the kernel probes by inode."""
    opened = open_module(image, mapping)
    if isinstance(opened, Opened) and opened.is_copy:
        os.close(opened.fd)
        return "its readers may have to wait for another process (FUSE, a network, an overlay, a writer on XFS)"
    return opened


def _is_same(opened: Opened, mapping: Mapping) -> bool:
    unchanged = (opened.size_bytes, opened.mtime_ns) == (mapping.size_bytes, mapping.mtime_ns)
    if mapping.build_id is None or (unchanged and opened.inode == mapping.inode):
        return unchanged
    try:
        return read_elf(opened.fd, mapping.path).build_id == mapping.build_id
    except DataError:
        return False
