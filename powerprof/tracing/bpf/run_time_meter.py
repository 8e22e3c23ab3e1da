# SPDX-License-Identifier: Apache-2.0
"""Measure the CPU time of a program in one window.

The kernel's clock of programs reads a clock twice in each run. If events are frequent, the cost of one is known after
a second; then the clock stops, and all later events count with that cost.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress

from powerprof.measure.procfs import read_stat
from powerprof.measure.window import WindowPart
from powerprof.system.closeable import Closeable
from powerprof.tracing.bpf.loaded import LoadedProgram

ENOUGH = 5_000
_LOOK_EVERY_S = 1.0


def _count_switches() -> int:
    return read_stat().context_switches_count


class RunTimeMeter(Closeable, WindowPart):
    """A meter of the CPU time that a program uses in one window.

    `events` counts the events for which the program runs, by default context switches.
    """

    def __init__(
        self, program: LoadedProgram, events: Callable[[], int] = _count_switches, *, every_s: float = _LOOK_EVERY_S
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
        with suppress(OSError):  # `spent_s` reads them again
            while not self._over.wait(self._every_s):
                if (so_far := self._measure()) is None:
                    return
                if so_far[1] >= ENOUGH:
                    self._program.stop_counting()
                    self._priced = so_far
                    return

    def _measure(self) -> tuple[float, int] | None:
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
            so_far = self._measure()
            return None if so_far is None else so_far[0]
        run_s, count = self._priced
        return run_s * (self._events() - self._count) / count
