# SPDX-License-Identifier: Apache-2.0
"""Which processes use the CPUs of a busy host: their clocks, read at the ends of intervals.

A busy host has few idle periods, so the causes that end them do not say what the CPUs do. The clocks cost a system call
a process; they are read only where the last interval was busy (and at the first one's beginning).
"""

from __future__ import annotations

import os

from powerprof.live.intervals import Used
from powerprof.processes.targets import name_of, processes
from powerprof.sources.procfs import process_cpu_ns

# From this share of all CPUs' time on the clocks are read again.
BUSY_SHARE = 0.5
# Processes below this share of one CPU are not named.
_LEAST_SHARE = 0.002


class BusyProcesses:
    """The processes' clocks from one interval's end to the next."""

    def __init__(self) -> None:
        self._clocks: dict[int, int] | None = _clocks()

    def used(self, busy_share: float | None, window_s: float) -> dict[str, Used] | None:
        """CPU time by name in the interval that ends now; None where it was idle, or the one before it was.

        `busy_share`: of all CPUs' time, in which they ran. powerprof itself is not in it, nor is what has ended.
        """
        if busy_share is None or busy_share < BUSY_SHARE:
            self._clocks = None
            return None
        before, self._clocks = self._clocks, _clocks()
        if before is None:
            return None
        spent = {pid: at_ns - before[pid] for pid, at_ns in self._clocks.items() if at_ns >= before.get(pid, at_ns + 1)}
        by_name: dict[str, list[int]] = {}
        for pid, used_ns in spent.items():
            if used_ns >= _LEAST_SHARE * window_s * 1e9 and (name := name_of(pid)) is not None:
                by_name.setdefault(name, []).append(used_ns)
        return {name: Used(len(used_ns), sum(used_ns) / 1e9) for name, used_ns in by_name.items()}


def _clocks() -> dict[int, int]:
    """CPU time of every process but this one, in nanoseconds."""
    found = {pid: process_cpu_ns(pid) for pid in processes() if pid != os.getpid()}
    return {pid: at_ns for pid, at_ns in found.items() if at_ns is not None}
