# SPDX-License-Identifier: Apache-2.0
"""Find the calls of functions in programs of x86-64, and the instructions before them."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from powerprof.stacks import function_ranges
from powerprof.stacks.effects import decode_instructions
from powerprof.stacks.elf import PF_X, Elf
from powerprof.system.errors import DataError

MOST_SEGMENT_BYTES = 128 << 20  # MySQL 9.7 has 42 MB of code
CALL_BYTES = 5
_CALL = 0xE8  # call rel32
_MOST_FUNCTION_BYTES = 1 << 18
_MOST_BEFORE = 8


def find_call_returns(elf: Elf, functions: Collection[int]) -> Iterator[tuple[int, int]]:
    """Yield (return address, called function) of each call of these functions, as link-time addresses.

    Other bytes that look like a call would have to contain the exact distance by chance.
    """
    import numpy as np

    for segment in elf.loads():
        if not segment.flags & PF_X or not CALL_BYTES <= segment.file_bytes <= MOST_SEGMENT_BYTES:
            continue
        code = np.frombuffer(elf.read(segment.offset, segment.file_bytes), np.uint8)
        at = (code[:-4] == _CALL).nonzero()[0]
        distances = code[at[:, None] + np.arange(1, CALL_BYTES)].copy().view("<i4")[:, 0].astype(np.int64)
        returns = segment.vaddr + at + CALL_BYTES
        for function in functions:
            yield from ((int(place), function) for place in returns[returns + distances == function])


class ProgramFunctions:
    """The functions of a program by its unwind table, to distinguish instructions from other bytes."""

    def __init__(self, elf: Elf) -> None:
        self._elf = elf
        section = elf.section(".eh_frame")
        self._table: function_ranges.FunctionRanges | None = None
        if section is not None:
            try:
                data = elf.read(section.offset, section.size)
                self._table = function_ranges.read_fde_functions(
                    data, section.vaddr, elf.path, elf.machine.return_column
                )
            except DataError:
                self._table = None

    def before(self, vaddr: int) -> list[tuple[str, str]] | None:
        """Return up to _MOST_BEFORE instructions (word, operands) before the one at `vaddr`.

        Return None if no instruction is known to begin there, because a breakpoint inside one would break the program.
        """
        if self._table is None:
            return None
        starts, ends = self._table.starts, self._table.ends
        index = int(starts.searchsorted(vaddr, "right")) - 1
        if index < 0 or not starts[index] <= vaddr < ends[index]:
            return None
        start, size = int(starts[index]), int(ends[index] - starts[index])
        segment = next((one for one in self._elf.loads() if one.vaddr <= start < one.vaddr + one.file_bytes), None)
        if segment is None or size > _MOST_FUNCTION_BYTES:
            return None
        code = self._elf.read(segment.offset + start - segment.vaddr, size)
        seen: list[tuple[str, str]] = []
        found, at = None, start
        for address, length, words, operands in decode_instructions(code, start):
            if address == vaddr:
                found = seen[-_MOST_BEFORE:]
            seen.append((words[-1], operands))
            at = address + length
        return found if at == start + size else None
