# SPDX-License-Identifier: Apache-2.0
"""How much may come into a program's tables and ring buffers until the kernel calls their reader (filled.bpf.h)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from powerprof.tracing.bpf.loaded import LoadedProgram
from powerprof.tracing.bpf.shared_numbers import Filling
from powerprof.tracing.idle.layout import FILLED, TABLES

_ENDLESS = 1 << 62
Array = npt.NDArray[Any]


class Fillings:
    """What fills in one program."""

    def __init__(self, program: LoadedProgram, living: Callable[[], Mapping[Filling, int]]) -> None:
        """`living`: what the program has of them and, of tables, how many of the entries read so far are of threads
        that live. The others may fill without end."""
        self._program, self._living = program, living
        self.forget()

    def forget(self) -> None:
        """Nothing has come yet."""
        self._allow(np.zeros(len(Filling), dtype=FILLED))

    def drain(self, gather: Callable[[], object]) -> None:
        """Once the ring buffers are empty: full tables are emptied by `gather`, and the kernel may call again."""
        filled = self._read()
        tables = filled[list(TABLES)]
        if np.any(tables["amount"] >= tables["limit"]):
            # First: what is made meanwhile is in the half that is turned to.
            self._allow(np.zeros_like(filled))
            gather()
            self._allow(self._read())
        elif np.any(filled["is_called"]):
            self._allow(filled)

    def _read(self) -> Array:
        return np.frombuffer(self._program.table_bytes("filled"), dtype=FILLED)

    def _allow(self, filled: Array) -> None:
        """What came so far, and how much may come until we are called again."""
        living = self._living()
        for filling in Filling:
            one = filled[filling].copy()
            one["limit"], one["is_called"] = self._limit(filling, int(one["amount"]), living), 0
            self._program.put("filled", filling, one.tobytes())

    def _limit(self, filling: Filling, amount: int, living: Mapping[Filling, int]) -> int:
        if filling not in living:
            return _ENDLESS
        slots = self._program.slots(filling.name.lower())
        if filling not in TABLES:
            return amount + slots // 4
        # What lives comes again, and a quarter of the room.
        return min(slots // 4 + living[filling], slots * 3 // 4)
