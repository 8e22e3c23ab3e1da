# SPDX-License-Identifier: Apache-2.0
"""What the monitor itself uses: its CPU time, and that of its BPF programs."""

from __future__ import annotations

import resource

from powerprof.sources.procfs import read_stat
from powerprof.tracing.bpf.loaded import LoadedProgram

# Reading the clock twice for each run of a program costs as much again as the cheap ones do, and only CAP_SYS_ADMIN may
# switch it on. So it runs for the first intervals, and what a context switch cost in the last of them stands for later.
COUNTED_INTERVALS = 4


def _cpu_s() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in used)


class OwnTime:
    """CPU time from interval to interval. What came before `begin` is in none."""

    def __init__(self, program: LoadedProgram) -> None:
        """While there still is the privilege to switch the programs' clock on."""
        self._program = program
        program.count_run_time()
        self.begin()

    def begin(self) -> None:
        """All is loaded."""
        self._cpu_s, self._switches = _cpu_s(), read_stat().context_switches_count
        self._number, self._per_switch_s = 0, 0.0

    def cpu_since(self) -> float:
        """Seconds since the call before."""
        now_s = _cpu_s()
        used, self._cpu_s = now_s - self._cpu_s, now_s
        return used

    def bpf_of(self, counted_s: float | None, switches_count: int) -> float | None:
        """Seconds in an interval's BPF programs: `counted_s` while the kernel counts them, an estimate afterwards.

        `switches_count`: the host's context switches since boot, at the interval's end.
        """
        if counted_s is None:
            return None
        switches, self._switches = switches_count - self._switches, switches_count
        self._number += 1
        if self._number > COUNTED_INTERVALS:
            return self._per_switch_s * switches
        self._per_switch_s = counted_s / max(1, switches)
        if self._number == COUNTED_INTERVALS:
            self._program.stop_counting()
        return counted_s
