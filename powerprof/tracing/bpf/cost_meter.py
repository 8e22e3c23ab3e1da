# SPDX-License-Identifier: Apache-2.0
"""Measure the CPU time that a program costs the host, entries included.

The kernel's clock of BPF programs (`bpf_stats`) reads a clock twice in each run, which costs as much as the cheapest
programs. So it runs until the price of an event is known, and then the kernel's own counters of events give the cost.
The clock does not see the entry into a program from its tracepoint: that is a constant for each run.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable
from typing import NamedTuple

from powerprof.measure.cpuidle import CpuidleReader
from powerprof.measure.window import WindowPart
from powerprof.system.closeable import Closeable
from powerprof.tracing.bpf.loaded import LoadedProgram

# Measured with empty programs at sched_switch and sched_waking (Linux 6.18, a guest on an EPYC): 50 to 140 ns for each
# entry, and 35 to 170 ns for each run while the kernel's clock of programs runs.
ENTRY_S, CLOCK_S = 90e-9, 100e-9
# An idle exit costs as much as this many context switches without one.
_EXIT_WEIGHT = 3.5
# The price is known after this many events.
ENOUGH = 5_000
# The prices of an event, in seconds, if the kernel does not report the time in programs.
_RUN_PRICE_S, _ENTRY_PRICE_S = 0.35e-6, 0.15e-6
_LOOK_S = 1.0


class EventCounter(Closeable):
    """Counts the host's context switches and idle exits, by the kernel's own counters."""

    def __init__(self) -> None:
        self._file = os.open("/proc/stat", os.O_RDONLY | os.O_CLOEXEC)
        self._reader = CpuidleReader()

    def close(self) -> None:
        os.close(self._file)
        self._reader.close()

    def read(self) -> float:
        """Return the weighted number of events since boot."""
        words = _read_all(self._file).split()
        switches = int(words[words.index(b"ctxt") + 1])
        exits = sum(sum(self._reader.usage(cpu) or ()) for cpu in self._reader.cpus)
        # Without idle counters, every second switch is taken for one that ends or begins idle.
        return switches + _EXIT_WEIGHT * (exits if self._reader.cpus else switches / 2)


def _read_all(file: int) -> bytes:
    data = b""
    while chunk := os.pread(file, 1 << 16, len(data)):
        data += chunk
    return data


class ProgramCost(NamedTuple):
    """CPU seconds within programs, and to enter them."""

    run_s: float
    entry_s: float

    @property
    def whole_s(self) -> float:
        """The sum."""
        return self.run_s + self.entry_s


class CostMeter(Closeable, WindowPart):
    """The cost of a program in one window. `events` returns the weighted number of events since boot."""

    def __init__(
        self,
        program: LoadedProgram,
        events: Callable[[], float],
        traps: Callable[[], tuple[float, int]] | None = None,
        *,
        enough: float = ENOUGH,
    ) -> None:
        """Switch the kernel's clock on. This needs a privilege.

        `enough`: after these events the price of one is known, and the clock stops. `traps` returns the time to enter
        programs from probes so far, in seconds, and the number of these entries.
        """
        self._program, self._events, self._enough = program, events, enough
        self._traps = traps or (lambda: (0.0, 0))
        program.count_run_time()
        # Whether the kernel reports the time in programs.
        self.is_known = False
        # Whether another part of the window reads the cost at least as often.
        self.is_driven = False

    def close(self) -> None:
        """Stop the kernel's clock."""
        self._program.stop_counting()

    def begin(self) -> None:
        """Begin the window."""
        self._runs = self._program.read_runs() if self._program.is_counting else None
        self.is_known = self._runs is not None
        self._spent, self._prices = ProgramCost(0.0, 0.0), ProgramCost(_RUN_PRICE_S, _ENTRY_PRICE_S)
        self._is_priced, self._is_attached = self._runs is None, True
        self._first_s = time.process_time()
        self._last, self._traced_events, self._first_traps = self._events(), 0.0, self._traps()

    @property
    def read_interval_s(self) -> float:
        """The interval of looks until the price is known, in seconds."""
        return math.inf if self._is_priced or self.is_driven else _LOOK_S

    def read(self) -> None:
        """Look whether the price is known."""
        self.spent()

    def spent(self) -> ProgramCost:
        """Return the cost since the window began."""
        trap_s, count = self._traps()
        spent = self._spend_on_programs(count - self._first_traps[1])
        return ProgramCost(spent.run_s, spent.entry_s + trap_s - self._first_traps[0])

    def _spend_on_programs(self, traps_count: int) -> ProgramCost:
        """Return the cost without the traps of probes. `traps_count`: runs whose entry is one of these."""
        now = self._events()
        grown, self._last = now - self._last, now
        if not self._is_attached:
            return self._spent
        if self._is_priced:
            run_s, entry_s = self._spent
            self._spent = ProgramCost(run_s + grown * self._prices.run_s, entry_s + grown * self._prices.entry_s)
            return self._spent
        self._traced_events += grown
        runs = self._program.read_runs()
        if runs is None or self._runs is None:
            return self._spent
        run_s, count = runs[0] - self._runs[0], runs[1] - self._runs[1]
        entry_s = max(0, count - traps_count) * ENTRY_S
        self._spent = ProgramCost(run_s, entry_s + count * CLOCK_S)
        if self._traced_events >= self._enough:
            self._program.stop_counting()
            self._prices = ProgramCost(run_s / self._traced_events, entry_s / self._traced_events)
            self._is_priced = True
        return self._spent

    def own_s(self) -> float:
        """Return the CPU time of this process since the window began, in seconds."""
        return time.process_time() - self._first_s

    def end(self) -> None:
        """End the window."""
        self.process_s = self.own_s()

    def pause(self) -> None:
        """Note that the program is detached from now on."""
        self.spent()
        self._is_attached = False

    def resume(self) -> None:
        """Note that the program is attached again."""
        self.spent()
        self._is_attached = True

    def collect(self) -> ProgramCost | None:
        """Return the cost until now and end the clock; None if the kernel did not report the time of programs."""
        spent = self.spent()
        self._program.stop_counting()
        return spent if self.is_known else None
