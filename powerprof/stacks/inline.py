# SPDX-License-Identifier: Apache-2.0
"""Inlined calls and source lines from DWARF.

Debug information is read only if it belongs to root or the caller and no other account may write it. Without it a frame
has its function's name only. Files that would take too much memory or time are left out, with a note.
"""

from __future__ import annotations

import os
import time

import msgspec
from msgspec.structs import replace

from powerprof.stacks.demangle import demangle
from powerprof.stacks.dwarf import Dwarf
from powerprof.stacks.dwarf_units import DAMAGE
from powerprof.stacks.elf import Elf
from powerprof.stacks.time_budget import DebugBudget, DebugBudgetError
from powerprof.system.errors import DataError
from powerprof.system.reader_process import Opened

TOO_MUCH = "inlined calls not shown (its debug information takes too much memory or time)"


class Inlined(msgspec.Struct, frozen=True):
    """One level at an address, innermost first; the last level is the function itself (`inlined` False)."""

    name: str | None
    source: str | None
    inlined: bool


class InlineReader:
    """The DWARF of one file, by link-time addresses; `note` is the reason if reading stopped."""

    def __init__(self, elf: Elf, budget: DebugBudget) -> None:
        self._elf, self._budget = elf, budget
        self._dwarf = Dwarf(elf, budget)
        self.note: str | None = None

    def __del__(self) -> None:
        os.close(self._elf.fd)

    def levels(self, vaddr: int) -> tuple[Inlined, ...]:
        """Return the levels at the address of an instruction (not a return address); () if there are none."""
        if self.note is not None:
            return ()
        if self._budget.seconds_left < 0:
            return self._give_up(TOO_MUCH)
        began_s = time.thread_time()
        try:
            calls, line = self._dwarf.calls(vaddr)
        except DebugBudgetError:
            return self._give_up(TOO_MUCH)
        except DataError as error:
            return self._give_up(f"inlined calls not shown ({error.reason})")
        except DAMAGE:
            # Damaged debug information loses the inlined frames and not the report.
            return ()
        finally:
            self._budget.seconds_left -= time.thread_time() - began_s
        source = None if line is None else f"{line[0]}:{line[1]}"
        levels: list[Inlined] = []
        for number, call in reversed(list(enumerate(calls))):
            levels.append(Inlined(demangle(call.name) if call.name else None, source, number > 0))
            source = f"{call.call_file}:{call.call_line}" if call.call_file and call.call_line else None
        return tuple(levels) if any(level.name or level.source for level in levels) else ()

    def _give_up(self, note: str) -> tuple[Inlined, ...]:
        self.note = note
        self._dwarf.release()
        return ()


def open_inline(opened: Opened, elf: Elf, budget: DebugBudget) -> InlineReader | None:
    """Return a reader of a file's DWARF; None without DWARF or for an untrusted file. `opened` stays open."""
    if not opened.is_trusted or elf.section(".debug_info") is None or elf.section(".debug_abbrev") is None:
        return None
    return InlineReader(replace(elf, fd=os.dup(opened.fd), meter=None), budget)
