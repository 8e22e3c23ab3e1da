# SPDX-License-Identifier: Apache-2.0
"""A kernel table of sums that is read again and again while it is added to, and never fills with the past.

Every entry lies in one of two halves, by a bit of its key. A read takes all entries of the half in use and says what
came since the read before. Threads come and go, and their entries stay, to be read and remembered: once most entries of
the half in use are of the past, or they are a third of the table, the kernel is turned to the other half, the last of
the old one is read when no program can be adding to it any more, and its entries are deleted. Nothing is stopped, lost
or counted twice.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from powerprof.tracing.bpf.loaded import LoadedProgram

Array = npt.NDArray[np.void]
# A program that had read the old half's number has added to its entry long since: it takes a microsecond.
GRACE_S = 0.02
# Fewer entries cost less to read than to start again: what regularity was seen is forgotten with them.
_FEW, _MOST_PAST = 1000, 4


class Halves:
    """Reads one such table; `turn` makes the kernel use a half from now on."""

    def __init__(
        self,
        program: LoadedProgram,
        name: str,
        dtypes: tuple[np.dtype[np.void], np.dtype[np.void]],
        half_of: tuple[str, int],
        *,
        sums: tuple[str, ...],
        turn: Callable[[int], None],
    ) -> None:
        """`sums`: the fields of the value that only grow; of these the growth is returned, the others are as they are.

        `half_of`: the field of the key that holds the half, and its bit.
        """
        self._program, self._name = program, name
        self._key, self._value = dtypes
        self._field, self._bit = half_of
        self._sums, self._turn = sums, turn
        self.dtype = np.dtype([*self._key.descr, *self._value.descr])
        self._slots = program.slots(name)
        self._half = 0
        self._places: dict[bytes, int] = {}
        self._values = np.zeros(0, dtype=self._value)

    def clear(self) -> None:
        """Forget everything: for a new window that nobody has opened yet."""
        self._program.clear(self._name)
        self._forget()

    def since(self, *, emptied: bool = False) -> Array:
        """What came since the last call, or since `clear`: entries with the half taken out of their keys.

        `emptied`: turn to the other half in any case.
        """
        keys, values = self._read()
        parts = [self._difference(keys, values)]
        if emptied or 3 * len(keys) > self._slots or len(keys) > max(_FEW, _MOST_PAST * len(parts[0])):
            old = self._half
            self._half = 1 - old
            self._turn(self._half)
            time.sleep(GRACE_S)
            keys, values = self._read()
            is_old = (keys[self._field] & self._bit != 0) == bool(old)
            parts.append(self._difference(keys[is_old], values[is_old]))
            self._program.delete(self._name, keys[is_old].tobytes())
            self._forget()
        return np.concatenate(parts)

    def _read(self) -> tuple[Array, Array]:
        keys, values = self._program.hash_bytes(self._name)
        return np.frombuffer(keys, dtype=self._key), np.frombuffer(values, dtype=self._value)

    def _difference(self, keys: Array, values: Array) -> Array:
        entries = np.zeros(len(keys), dtype=self.dtype)
        for part in (keys, values):
            for field in part.dtype.names or ():
                entries[field] = part[field]
        names = keys.view(f"S{self._key.itemsize}").tolist()
        places = np.array([self._places.get(name, -1) for name in names], dtype=np.int64)
        known = places >= 0
        for field in self._sums:
            entries[field][known] -= self._values[field][places[known]]
        self._places, self._values = dict(zip(names, range(len(names)), strict=True)), values
        entries[self._field] &= ~np.uint32(self._bit)
        moved: Array = entries[entries[self._sums[0]] > 0]
        return moved

    def _forget(self) -> None:
        self._places, self._values = {}, np.zeros(0, dtype=self._value)
