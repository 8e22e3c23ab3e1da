# SPDX-License-Identifier: Apache-2.0
"""What a program's runs take in a window, by the kernel's clock, which itself takes two looks at a clock in each run.

Where events are many their price is known after a second: the clock stops, and the others are taken to cost as much.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from powerprof.closeable import Closeable
from powerprof.sources.procfs import read_stat
from powerprof.tracing.bpf.loaded import LoadedProgram
from powerprof.windows.runner import Part

ENOUGH = 5_000
_LOOK_EVERY_S = 1.0


def _context_switches() -> int:
    return read_stat().context_switches_count


class Price(Closeable, Part):
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
