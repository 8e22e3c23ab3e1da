# SPDX-License-Identifier: Apache-2.0
"""Inlined calls and source lines from DWARF, by drgn.

DWARF readers are native code and large. Only debug information that belongs to root or to the caller, and that
nobody else may write, is given to one; for the rest a frame has its function's name and no more.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

from powerprof.stacks.elf import Elf
from powerprof.stacks.opening import Opened

MAX_DWARF_BYTES = 1 << 30
MAX_INLINED = 64


@dataclass(frozen=True)
class Inlined:
    """One level at an address, innermost first: the last is the function itself (`inlined` False)."""

    name: str | None
    source: str | None
    inlined: bool


class InlineReader:
    """The DWARF of one file. Link-time addresses in, levels out."""

    def __init__(self, program: Any) -> None:
        self._program = program

    def levels(self, vaddr: int) -> tuple[Inlined, ...]:
        """What is inlined at an address (of an instruction, not a return address); () where nothing is known."""
        try:
            # Drgn takes each for a return address and looks at the byte before it.
            trace = self._program.stack_trace_from_pcs([vaddr + 1])
            calls = [_level(frame) for frame in list(trace)[:MAX_INLINED]]
        except Exception:  # whatever a DWARF reader trips over costs the inlined frames, never the report
            return ()
        return tuple(calls) if any(call.name or call.source for call in calls) else ()


def _level(frame: Any) -> Inlined:
    source = None
    try:
        name, line, _column = frame.source()
        source = f"{name}:{line}"
    except LookupError:
        pass
    return Inlined(frame.function_name, source, bool(frame.is_inline))


def open_inline(opened: Opened, elf: Elf, low: int, high: int, path: str) -> InlineReader | None:
    """A reader of a file's DWARF; None where it has none, or where it may not be trusted. `opened` stays open.

    [low, high) are the link-time addresses of the module.
    """
    if not opened.is_trusted or opened.size_bytes > MAX_DWARF_BYTES:
        return None
    if elf.section(".debug_info") is None or elf.section(".debug_abbrev") is None:
        return None
    import drgn

    program = drgn.Program(drgn.Platform(drgn.Architecture.X86_64))
    # A debug file may refer to another by name: nothing is looked for by itself.
    program.set_enabled_debug_info_finders([])
    try:
        module = program.extra_module(path, id=0, create=True)
        module.address_range = (low, high)
        module.try_file(path, fd=os.dup(opened.fd), force=True)
        if module.debug_file_bias != 0:
            return None
    except (LookupError, ValueError, ArithmeticError, OSError):
        return None
    return InlineReader(program)
