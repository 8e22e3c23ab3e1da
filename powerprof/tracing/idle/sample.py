# SPDX-License-Identifier: Apache-2.0
"""Single idle periods as records: an even choice of them, within a limit."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from powerprof.tracing.bpf.loaded import LoadedProgram
from powerprof.tracing.bpf.shared_numbers import Flag, Shared
from powerprof.tracing.idle.aggregate import sample_hash
from powerprof.tracing.idle.layout import IDLE_EXIT
from powerprof.tracing.idle.shared import share

Array = npt.NDArray[Any]
# Records that a window keeps beside its sums: 11 MB, and one in two, four, … of them where more come.
SAMPLE_LIMIT = 50_000
_NONE = 0xFFFFFFFF


class Sample:
    """What came through the ring buffer of periods. `wanted` False: none is sent, for who needs the sums alone."""

    def __init__(self, program: LoadedProgram, *, wanted: bool = True) -> None:
        self._program, self._first_mask = program, 0 if wanted else _NONE
        self._records = bytearray()
        self._set_mask(self._first_mask)
        program.ring("exits", self._records.extend)

    def begin(self) -> None:
        """All are sent again, where any are."""
        self._set_mask(self._first_mask)

    def clear(self) -> None:
        """Forget what came."""
        self._records.clear()

    def limit(self) -> None:
        """Of those that are here, and that will come, keep half as often as it takes."""
        while len(self._records) > SAMPLE_LIMIT * IDLE_EXIT.itemsize:
            self._set_mask(self._mask << 1 | 1)
            self._records[:] = self._chosen(np.frombuffer(self._records, dtype=IDLE_EXIT)).tobytes()

    def take(self, still_open: Array) -> tuple[Array, int]:
        """Since `clear` or the last call, by time, those of `still_open` last; and of how many each is one."""
        sample = self._chosen(np.concatenate([np.frombuffer(self._records, dtype=IDLE_EXIT), still_open]))
        self._records.clear()
        is_open = sample["flags"] & np.uint32(Flag.OPEN) != 0
        return sample[np.lexsort((sample["exit_ns"], is_open))], self._mask + 1

    def _set_mask(self, mask: int) -> None:
        self._mask = mask
        share(self._program, Shared.SAMPLE_MASK, mask)

    def _chosen(self, exits: Array) -> Array:
        chosen: Array = exits[sample_hash(exits["cpu"], exits["sequence"]) & np.uint64(self._mask) == 0]
        return chosen
