# SPDX-License-Identifier: Apache-2.0
"""Read a large compressed section in parts, by states of the decompressor after every block.

The debug information of a MariaDB server has more than 150 MiB, and Debian compresses it. A state takes 40 KB, so the
places of such a file can be read in any order with some MiB of memory.
"""

from __future__ import annotations

import zlib
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager

from powerprof.stacks.elf import COMPRESSION_HEADER_BYTES, MAX_SECTION_BYTES, Elf, Section
from powerprof.stacks.time_budget import DebugBudget
from powerprof.system.errors import DataError

_BLOCK_BYTES = 1 << 20
_KEPT_BLOCKS = 4
# The window and the tables of zlib.
_STATE_BYTES = 48 << 10
_INPUT_BYTES = 64 << 10


class CompressedSection:
    """The uncompressed bytes of a section, in blocks. `size` is promised by its header."""

    def __init__(self, elf: Elf, section: Section, size: int, budget: DebugBudget) -> None:
        if size > MAX_SECTION_BYTES:
            raise DataError(elf.path, f"{section.name} is larger than {MAX_SECTION_BYTES >> 20} MiB")
        self._elf, self._section, self.size, self._budget = elf, section, size, budget
        self._begin = section.offset + COMPRESSION_HEADER_BYTES
        self._end = section.offset + section.size
        # The state of the decompressor and the place in the file at the beginning of each known block.
        self._states = [(zlib.decompressobj(), self._begin)]
        self._blocks: OrderedDict[int, bytes] = OrderedDict()
        self._held_bytes = (size // _BLOCK_BYTES + 1) * _STATE_BYTES + _KEPT_BLOCKS * _BLOCK_BYTES
        with budget.holding(self._held_bytes):
            pass

    def read(self, at: int, most: int) -> bytes:
        """Return up to `most` bytes from an offset. Raises DataError for damaged data."""
        end = min(at + most, self.size)
        parts = [self._read_block(number) for number in range(at // _BLOCK_BYTES, -(-end // _BLOCK_BYTES))]
        skipped = at % _BLOCK_BYTES
        return b"".join(parts)[skipped : skipped + max(0, end - at)]

    def release(self) -> None:
        """Return the memory to the budget."""
        self._states, self._blocks = self._states[:1], OrderedDict()
        self._budget.release(self._held_bytes)
        self._held_bytes = 0

    def _read_block(self, number: int) -> bytes:
        known = self._blocks.get(number)
        if known is None:
            while len(self._states) <= number:
                self._decompress(len(self._states) - 1)
            known = self._decompress(number)
        self._blocks.move_to_end(number)
        return known

    def _decompress(self, number: int) -> bytes:
        """Decompress a block from its state, and keep it with the state of the next one."""
        state, at = self._states[number]
        worker, plain = state.copy(), b""
        wanted = min(_BLOCK_BYTES, self.size - number * _BLOCK_BYTES)
        with self._naming_errors():
            while len(plain) < wanted:
                packed = self._elf.read(at, min(_INPUT_BYTES, self._end - at))
                part = worker.decompress(packed, wanted - len(plain))
                used = len(packed) - len(worker.unconsumed_tail) - len(worker.unused_data)
                if not part and not used:
                    raise zlib.error("it ends early")
                plain, at = plain + part, at + used
        if number + 1 == len(self._states):
            self._states.append((worker, at))
        self._blocks[number] = plain
        while len(self._blocks) > _KEPT_BLOCKS:
            self._blocks.popitem(last=False)
        return plain

    @contextmanager
    def _naming_errors(self) -> Iterator[None]:
        try:
            yield
        except zlib.error as error:
            raise DataError(self._elf.path, f"{self._section.name} cannot be decompressed ({error})") from error
