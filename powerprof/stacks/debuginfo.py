# SPDX-License-Identifier: Apache-2.0
"""What debug information adds to a module: the full symbol table, inlined calls, source lines."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass

from powerprof.errors import DataError
from powerprof.processes.reader_process import Opened
from powerprof.stacks.debugfiles import find_debug_file
from powerprof.stacks.elf import Elf, read_elf
from powerprof.stacks.image import Mapping, ProcessImage
from powerprof.stacks.inline import InlineReader
from powerprof.stacks.store import TableStore, open_module
from powerprof.stacks.symtab import SymbolTable


@dataclass(frozen=True)
class DebugInfo:
    """What was found beside the module itself. `notes` say what was left out and why.

    `source` is how the separate debug file was found (`DebugFile`).
    """

    symbols: SymbolTable | None
    inline: InlineReader | None
    notes: tuple[str, ...] = ()
    source: str | None = None


def read_debug(store: TableStore, image: ProcessImage, mapping: Mapping, *, inline: bool) -> DebugInfo:
    """The debug information of a module: its own DWARF, else that of its separate debug file, whose symbols count."""
    symbols: SymbolTable | None = None
    reader: InlineReader | None = None
    notes: list[str] = []
    with ExitStack() as stack:
        own = open_module(image, mapping)
        own_elf = _enter(stack, store, image, own, mapping, notes)
        found = find_debug_file(image, mapping, own_elf, store.budget, download=store.downloads)
        separate = found.opened if found is not None else None
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
    return DebugInfo(symbols, reader, tuple(notes), found.source if found is not None and symbols is not None else None)


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
