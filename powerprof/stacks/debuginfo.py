# SPDX-License-Identifier: Apache-2.0
"""Debug information of a module: the full symbol table, inlined calls and source lines."""

from __future__ import annotations

from contextlib import ExitStack

import msgspec

from powerprof.stacks.debug_files import find_debug_file
from powerprof.stacks.elf import Elf, read_elf
from powerprof.stacks.image import Mapping, ProcessImage
from powerprof.stacks.inline import InlineReader
from powerprof.stacks.store import TableStore, open_module
from powerprof.stacks.symtab import SymbolTable
from powerprof.system.errors import DataError
from powerprof.system.reader_process import Opened, link_of
from powerprof.system.tasks import process_folder


class DebugInfo(msgspec.Struct, frozen=True):
    """The debug information of a module. `notes` give the reasons for omissions.

    `source` is how the separate debug file was found (`DebugFile`).
    """

    symbols: SymbolTable | None
    inline: InlineReader | None
    notes: tuple[str, ...] = ()
    source: str | None = None


def read_debug(store: TableStore, image: ProcessImage, mapping: Mapping, *, inline: bool) -> DebugInfo:
    """Return a module's debug information: DWARF from its own file or its debug file, symbols from the debug file.

    Each file is read once per file system root. A process that has ended has no root: it shares what was read for the
    same file of another process, because a server may start hundreds of workers.
    """
    key, root = (store.file_key(mapping), inline), _find_root(image.pid)
    known: dict[object, DebugInfo] = store.debug_info.setdefault(key, {})
    shared_info = known.get(root) if root is not None or not known else next(reversed(known.values()))
    if shared_info is None:
        shared_info = known[root] = _read_debug(store, image, mapping, inline=inline)
    return shared_info


def _find_root(pid: int) -> tuple[str, str] | None:
    """Return the mount namespace and root folder of a process; None if it has ended."""
    folder = process_folder(pid)
    namespace, root = link_of(folder / "ns/mnt"), link_of(folder / "root")
    return None if namespace is None or root is None else (namespace, root)


def _read_debug(store: TableStore, image: ProcessImage, mapping: Mapping, *, inline: bool) -> DebugInfo:
    symbols: SymbolTable | None = None
    reader: InlineReader | None = None
    notes: list[str] = []
    with ExitStack() as stack:
        own = open_module(image, mapping)
        own_elf = _enter(stack, store, image, own, mapping, notes)
        debug_file = find_debug_file(image, mapping, own_elf, store.budget, download=store.downloads)
        separate = debug_file.opened if debug_file is not None else None
        separate_elf = _enter(stack, store, image, separate, mapping, notes)
        if isinstance(separate, Opened) and separate_elf is not None:
            try:
                symbols = store.debug_symbols(separate, separate_elf)
            except DataError as error:
                notes.append(error.reason)
        for opened, elf in ((own, own_elf), (separate, separate_elf)):
            if not inline or reader is not None or not isinstance(opened, Opened) or elf is None:
                continue
            if elf.section(".debug_info") is not None and not opened.is_trusted:
                notes.append("inlined calls not shown (other users may write its debug information)")
            reader = store.inline(opened, elf)
    source = debug_file.source if debug_file is not None and symbols is not None else None
    return DebugInfo(symbols, reader, tuple(notes), source)


def _enter(
    stack: ExitStack,
    store: TableStore,
    image: ProcessImage,
    opened: Opened | str | None,
    mapping: Mapping,
    notes: list[str],
) -> Elf | None:
    if not isinstance(opened, Opened):
        return None
    stack.enter_context(opened)
    try:
        meter = stack.enter_context(store.budget.metered(image.pid, opened.is_trusted))
        return read_elf(opened.fd, mapping.path, meter)
    except DataError as error:
        notes.append(error.reason)
        return None
