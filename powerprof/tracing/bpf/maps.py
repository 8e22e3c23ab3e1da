# SPDX-License-Identifier: Apache-2.0
"""A kernel table of sums that is read again and again while it is added to, and never fills with the past.

Every entry lies in one of two halves, by a bit of its key. A read takes all entries of the half in use and says what
came since the read before. Threads come and go, and their entries stay, to be read and remembered: once most entries of
the half in use are of the past, or they are a third of the table, the kernel is turned to the other half, the last of
the old one is read when no program can be adding to it any more, and its entries are deleted. Nothing is stopped, lost
or counted twice.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from powerprof.measure.procfs import read_stat
from powerprof.measure.window import WindowPart
from powerprof.system.closeable import Closeable
from powerprof.system.tasks import check_process_ids
from powerprof.tracing.bpf.loaded import LoadedProgram
from powerprof.tracing.bpf.types import Btf

Array = npt.NDArray[np.void]
# A program that had read the old half's number has added to its entry long since: it takes a microsecond.
GRACE_S = 0.02
# Fewer entries cost less to read than to start again: what regularity was seen is forgotten with them.
_FEW, _MOST_PAST = 1000, 4


class DoubleBufferedTable:
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


# A program that sums into tables of the kernel while its window is open; each window begins with empty tables.

_MEMBER = (1).to_bytes(8, "little")


class SummingProgram(Closeable, WindowPart):
    """One with the tables `targets`, `is_open` and `counters`, loaded; a context manager that removes it.

    `lost` and the like are what its `counters` rose by since the window was opened, and so is its own time.
    """

    def __init__(
        self,
        name: str,
        definitions: Mapping[str, int | str],
        btf: Btf,
        pids: Sequence[int] | None,
        tables: Sequence[str],
        entries: Mapping[str, Mapping[int, bytes]] | None = None,
    ) -> None:
        """Load `probes/bpf/<name>` for these processes, None where its definitions say every one. `tables` are emptied
        before each window, `entries` are put into others once.

        Raises CapabilityError where this host or user may not, PowerprofError where the kernel refuses the program.
        """
        check_process_ids()
        self._tables = tables
        self._ran_s: float | None = None
        self._counted: Sequence[int] = ()
        self._program = LoadedProgram(name, definitions, btf=btf)
        try:
            members = {"targets": dict.fromkeys(pids or (), _MEMBER)}
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
        """Tables with nothing of a window before."""
        for table in self._tables:
            self._program.clear(table)
        self._ran_s, self._counted = self._program.run_time_s(), self._program.per_cpu_sum("counters")

    def begin(self) -> None:
        """The program counts from here."""
        self._count(1)

    def end(self) -> None:
        """To here."""
        self._count(0)

    def _count(self, value: int) -> None:
        self._program.put("is_open", 0, value.to_bytes(8, "little"))

    def rows(self, table: str) -> tuple[bytes, bytes]:
        """Every key and every value of a table, one after the other."""
        return self._program.hash_bytes(table)

    def counters(self) -> list[int]:
        """What each has risen by since the window was opened."""
        return [now - then for then, now in zip(self._counted, self._program.per_cpu_sum("counters"), strict=True)]

    def bpf_s(self) -> float | None:
        """The program's own CPU time in the window; None where the kernel does not count it."""
        now_s = self._program.run_time_s()
        return None if now_s is None or self._ran_s is None else now_s - self._ran_s


# What a program's runs take in a window, by the kernel's clock, which itself takes two looks at a clock in each run.
#
# Where events are many their price is known after a second: the clock stops, and the others are taken to cost as much.

ENOUGH = 5_000
_LOOK_EVERY_S = 1.0


def _context_switches() -> int:
    return read_stat().context_switches_count


class RunTimeMeter(Closeable, WindowPart):
    """The clock of one window, running from the beginning on.

    `events` counts what the programs run for, context switches by default.
    """

    def __init__(
        self, program: LoadedProgram, events: Callable[[], int] = _context_switches, *, every_s: float = _LOOK_EVERY_S
    ) -> None:
        """Switch the clock on, which takes a privilege."""
        self._program, self._events, self._every_s = program, events, every_s
        self._over = threading.Event()
        program.count_run_time()
        self._priced: tuple[float, int] | None = None
        self._thread: threading.Thread | None = None

    def begin(self) -> None:
        """The window begins. To be called after privileges are given up: a thread keeps those that it began with."""
        # Where the clock is refused, what it counted before stands still: that is no time of this window.
        self._run_s = self._program.run_time_s() if self._program.is_counting else None
        self._count = self._events()
        thread = threading.Thread(target=self._watch, daemon=True)
        thread.start()
        # Not before: an interrupt in the start would leave a thread that nobody can join.
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
        """Look no more."""
        self._over.set()
        if self._thread is not None:
            self._thread.join()

    def spent_s(self) -> float | None:
        """The time of all runs until now; None where the kernel does not tell. Ends the clock."""
        self.close()
        if self._priced is None:
            so_far = self._so_far()
            return None if so_far is None else so_far[0]
        run_s, count = self._priced
        return run_s * (self._events() - self._count) / count
