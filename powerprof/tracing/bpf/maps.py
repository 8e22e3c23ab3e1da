# SPDX-License-Identifier: Apache-2.0
"""Read kernel tables of sums while they grow.

`DoubleBufferedTable` reads a table again and again. Every entry is in one of two halves, by a bit of its key. A read
takes all entries and returns their growth since the read before. Entries of ended threads stay until they are read. If
most entries belong to the past, or if they fill a third of the table, the kernel is turned to the other half, and the
old half is emptied after the last program has finished adding to it. Nothing is stopped, lost or counted twice.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from powerprof.tracing.bpf.loaded import LoadedProgram

Array = npt.NDArray[np.void]
# A program that has read the number of the old half adds to its entry within a microsecond.
GRACE_S = 0.02
# Fewer entries cost less to read than to drop: dropping them loses the regularity of their intervals.
_FEW, _MOST_PAST = 1000, 4


class DoubleBufferedTable:
    """A kernel table in two halves. `turn` makes the kernel use a half from now on."""

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
        """Read the table `name` with these types of keys and values.

        `half_of`: the field of the key that holds the half, and its bit. `sums`: the fields of the value that only
        grow; their growth is returned. The other fields are returned unchanged.
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
        """Empty the table and forget its readings, before a window opens."""
        self._program.clear(self._name)
        self._places, self._values = {}, np.zeros(0, dtype=self._value)

    def since(self, *, emptied: bool = False, after_read: Callable[[], object] = lambda: None) -> Array:
        """Return the growth since the last call or `clear`, as entries with the half removed from their keys.

        A key may occur twice if the kernel was turned to the other half. `emptied`: turn in any case. `after_read` is
        called directly after the table was read for the last time: what it reads is of the same moment.
        """
        keys, values = self._read()
        after_read()
        parts = [self._find_growth(keys, values)]
        if emptied or 3 * len(keys) > self._slots or len(keys) > max(_FEW, _MOST_PAST * len(parts[0])):
            old = self._half
            self._half = 1 - old
            self._turn(self._half)
            time.sleep(GRACE_S)
            keys, values = self._read()
            after_read()
            # The new half counts too: its entries are of the time until this reading.
            parts.append(self._find_growth(keys, values))
            is_old = (keys[self._field] & self._bit != 0) == bool(old)
            self._program.delete(self._name, keys[is_old].tobytes())
            self._remember(keys[~is_old], values[~is_old])
        return np.concatenate(parts)

    def _read(self) -> tuple[Array, Array]:
        keys, values = self._program.hash_bytes(self._name)
        return np.frombuffer(keys, dtype=self._key), np.frombuffer(values, dtype=self._value)

    def _find_growth(self, keys: Array, values: Array) -> Array:
        """Return the entries that grew since the last reading, and remember this one."""
        entries = np.zeros(len(keys), dtype=self.dtype)
        for part in (keys, values):
            for field in part.dtype.names or ():
                entries[field] = part[field]
        places = np.array([self._places.get(name, -1) for name in self._list_keys(keys)], dtype=np.int64)
        known = places >= 0
        for field in self._sums:
            entries[field][known] -= self._values[field][places[known]]
        self._remember(keys, values)
        entries[self._field] &= ~np.uint32(self._bit)
        moved: Array = entries[entries[self._sums[0]] > 0]
        return moved

    def _remember(self, keys: Array, values: Array) -> None:
        self._places, self._values = {name: place for place, name in enumerate(self._list_keys(keys))}, values

    def _list_keys(self, keys: Array) -> list[bytes]:
        names: list[bytes] = keys.view(f"S{self._key.itemsize}").tolist()
        return names
