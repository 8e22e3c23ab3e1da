# SPDX-License-Identifier: Apache-2.0
"""Read kernel tables of sums while they grow, run summing programs, and measure the cost of programs.

`DoubleBufferedTable` reads a table again and again. Every entry is in one of two halves, by a bit of its key. A read
takes all entries and returns their growth since the read before. Entries of ended threads stay until they are read. If
most entries belong to the past, or if they fill a third of the table, the kernel is turned to the other half, and the
old half is emptied after the last program has finished adding to it. Nothing is stopped, lost or counted twice.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from powerprof.measure.procfs import read_stat
from powerprof.measure.window import WindowPart
from powerprof.system.closeable import Closeable
from powerprof.system.tasks import check_process_ids
from powerprof.tracing.bpf.loaded import LoadedProgram
from powerprof.tracing.bpf.types import Btf
from powerprof.tracing.followed import LOOK_S, FollowedProcesses

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
        parts = [self._difference(keys, values)]
        if emptied or 3 * len(keys) > self._slots or len(keys) > max(_FEW, _MOST_PAST * len(parts[0])):
            old = self._half
            self._half = 1 - old
            self._turn(self._half)
            time.sleep(GRACE_S)
            keys, values = self._read()
            after_read()
            # The new half counts too: its entries are of the time until this reading.
            parts.append(self._difference(keys, values))
            is_old = (keys[self._field] & self._bit != 0) == bool(old)
            self._program.delete(self._name, keys[is_old].tobytes())
            self._remember(keys[~is_old], values[~is_old])
        return np.concatenate(parts)

    def _read(self) -> tuple[Array, Array]:
        keys, values = self._program.hash_bytes(self._name)
        return np.frombuffer(keys, dtype=self._key), np.frombuffer(values, dtype=self._value)

    def _difference(self, keys: Array, values: Array) -> Array:
        """Return the entries that grew since the last reading, and remember this one."""
        entries = np.zeros(len(keys), dtype=self.dtype)
        for part in (keys, values):
            for field in part.dtype.names or ():
                entries[field] = part[field]
        places = np.array([self._places.get(name, -1) for name in self._names(keys)], dtype=np.int64)
        known = places >= 0
        for field in self._sums:
            entries[field][known] -= self._values[field][places[known]]
        self._remember(keys, values)
        entries[self._field] &= ~np.uint32(self._bit)
        moved: Array = entries[entries[self._sums[0]] > 0]
        return moved

    def _remember(self, keys: Array, values: Array) -> None:
        self._places, self._values = {name: place for place, name in enumerate(self._names(keys))}, values

    def _names(self, keys: Array) -> list[bytes]:
        names: list[bytes] = keys.view(f"S{self._key.itemsize}").tolist()
        return names


# A program that sums into tables of the kernel while its window is open; each window begins with empty tables.

_MEMBER = (1).to_bytes(8, "little")


class SummingProgram(Closeable, WindowPart):
    """A loaded program that sums into tables while its window is open. A context manager that removes it.

    The program has the tables `targets`, `is_open` and `counters`. Each window begins with empty tables.
    """

    def __init__(
        self,
        name: str,
        definitions: Mapping[str, int | str],
        btf: Btf,
        followed: FollowedProcesses | None,
        tables: Sequence[str],
        entries: Mapping[str, Mapping[int, bytes]] | None = None,
    ) -> None:
        """Load `probes/bpf/<name>` for the followed processes, or for every process if its definitions request that.

        `tables` are emptied before each window. `entries` are written to other tables once.

        Raises CapabilityError if this host or user may not, PowerprofError if the kernel refuses the program.
        """
        check_process_ids()
        self._tables, self._followed = tables, followed
        self._ran_s: float | None = None
        self._counted: Sequence[int] = ()
        self._program = LoadedProgram(name, definitions, btf=btf)
        try:
            members = {"targets": dict.fromkeys(followed.pids if followed is not None else (), _MEMBER)}
            for table, rows in {**members, **(entries or {})}.items():
                for key, value in rows.items():
                    self._program.put(table, key, value)
            self._program.count_run_time()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        self._program.close()

    def open(self) -> None:
        """Empty the tables."""
        for table in self._tables:
            self._program.clear(table)
        self._ran_s, self._counted = self._program.run_time_s(), self._program.per_cpu_sum("counters")

    @property
    def read_interval_s(self) -> float:
        """The interval of looks for processes that join the target, in seconds."""
        return LOOK_S if self._followed is not None and self._followed.may_grow else math.inf

    def begin(self) -> None:
        """Start counting."""
        if self._followed is not None:
            self._followed.begin()
            self._add(self._followed.pids)
        self._count(1)

    def read(self) -> None:
        """Count the processes that joined the target."""
        if self._followed is not None:
            self._add(self._followed.find_new())

    def end(self) -> None:
        """Stop counting."""
        self._count(0)
        if self._followed is not None:
            self._followed.end()

    def _add(self, pids: Iterable[int]) -> None:
        for pid in pids:
            self._program.put("targets", pid, _MEMBER)

    def pids(self) -> list[int]:
        """Return the processes of the target; none for every process."""
        return self._followed.pids if self._followed is not None else []

    def notes(self) -> list[str]:
        """Return notes about processes that joined the target."""
        return self._followed.notes() if self._followed is not None else []

    def _count(self, value: int) -> None:
        self._program.put("is_open", 0, value.to_bytes(8, "little"))

    def rows(self, table: str) -> tuple[bytes, bytes]:
        """Return all keys and all values of a table as bytes."""
        return self._program.hash_bytes(table)

    def counters(self) -> list[int]:
        """Return the growth of each counter since the window was opened."""
        return [now - then for then, now in zip(self._counted, self._program.per_cpu_sum("counters"), strict=True)]

    def bpf_s(self) -> float | None:
        """Return the program's own CPU time in the window in seconds, or None if the kernel does not count it."""
        now_s = self._program.run_time_s()
        return None if now_s is None or self._ran_s is None else now_s - self._ran_s


# The kernel's clock of programs reads a clock twice in each run. If events are frequent, the cost of one is known after
# a second; then the clock stops, and all later events count with that cost.

ENOUGH = 5_000
_LOOK_EVERY_S = 1.0


def _context_switches() -> int:
    return read_stat().context_switches_count


class RunTimeMeter(Closeable, WindowPart):
    """A meter of the CPU time that a program uses in one window.

    `events` counts the events for which the program runs, by default context switches.
    """

    def __init__(
        self, program: LoadedProgram, events: Callable[[], int] = _context_switches, *, every_s: float = _LOOK_EVERY_S
    ) -> None:
        """Switch the kernel's clock on. This needs a privilege."""
        self._program, self._events, self._every_s = program, events, every_s
        self._over = threading.Event()
        program.count_run_time()
        self._priced: tuple[float, int] | None = None
        self._thread: threading.Thread | None = None

    def begin(self) -> None:
        """Begin the window, after privileges are given up: a thread keeps those that it starts with."""
        # If the clock was refused, its old value is not a time of this window.
        self._run_s = self._program.run_time_s() if self._program.is_counting else None
        self._count = self._events()
        thread = threading.Thread(target=self._watch, daemon=True)
        thread.start()
        # After the start: an interrupt during it would leave a thread that cannot be joined.
        self._thread = thread

    def _watch(self) -> None:
        while not self._over.wait(self._every_s):
            if (so_far := self._so_far()) is None:
                return
            if so_far[1] >= ENOUGH:
                self._program.stop_counting()
                self._priced = so_far
                return

    def _so_far(self) -> tuple[float, int] | None:
        run_s = self._program.run_time_s()
        return None if run_s is None or self._run_s is None else (run_s - self._run_s, self._events() - self._count)

    def close(self) -> None:
        """Stop the meter's thread."""
        self._over.set()
        if self._thread is not None:
            self._thread.join()

    def spent_s(self) -> float | None:
        """Return the time of all runs until now in seconds, or None if the kernel does not report it. End the clock."""
        self.close()
        if self._priced is None:
            so_far = self._so_far()
            return None if so_far is None else so_far[0]
        run_s, count = self._priced
        return run_s * (self._events() - self._count) / count
