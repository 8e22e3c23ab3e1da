# SPDX-License-Identifier: Apache-2.0
"""Idle exits of each CPU by perf's count of the cpu_idle tracepoint, for hosts without a cpuidle driver.

The idle loop fires the tracepoint with or without a driver (kernel/sched/idle.c, default_idle_call). The count is the
kernel's: it needs no compilation and no recording, only one number per CPU, and it does not depend on our tracing.
`idle_calls` of /proc/timer_list is no substitute: without a driver Linux 6.1 shows about half of the idle periods
there.

A trial on each CPU comes first. perf drops events of a task that it takes to be inside an event already, and that mark
can be stuck on one CPU's idle task (seen on 6.18, where `perf stat` shows 0 too).
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable

from powerprof.measure.idle_edges import pin_to_cpu, restore_affinity
from powerprof.measure.perf_events import TYPE_TRACEPOINT, open_counter, read_counter, set_filter, tracepoint_number
from powerprof.system import paths
from powerprof.system.closeable import Closeable
from powerprof.system.errors import CapabilityError, reason_of
from powerprof.system.next_steps import command_line

_SWITCH, _TO_IDLE = "sched/sched_switch", "next_pid==0"
_TRIAL_SLEEPS, _TRIAL_SLEEP_S = 3, 0.0001
_TRACEPOINT = "power/cpu_idle"
_LEAVING = "state==4294967295"  # PWR_EVENT_EXIT, include/trace/events/power.h


def _open_filtered(number: int, cpu: int, condition: str) -> int:
    """Return a descriptor that counts a tracepoint on one CPU if the condition holds. Raise OSError."""
    descriptor = open_counter(TYPE_TRACEPOINT, number, cpu)
    try:
        set_filter(descriptor, condition)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


class IdleEvents(Closeable):
    """Counts the idle exits of each CPU while the context is open."""

    def __init__(self, cpus: Iterable[int]) -> None:
        """Begin to count. Raises CapabilityError if this process may not. CPUs that no longer exist are left out."""
        self._descriptors: dict[int, int] = {}
        number = tracepoint_number(_TRACEPOINT) if paths.is_this_host() else None
        if number is None:
            raise CapabilityError(f"the tracepoint {_TRACEPOINT} cannot be counted: no tracefs here", "run as root")
        try:
            for cpu in cpus:
                self._descriptors[cpu] = _open_filtered(number, cpu, _LEAVING)
            self._check_counting()
        except OSError as error:
            self.close()
            raise CapabilityError(
                f"the tracepoint {_TRACEPOINT} cannot be counted ({reason_of(error)})", "run as root"
            ) from error
        except BaseException:  # a signal too: the trial takes a moment
            self.close()
            raise

    def _check_counting(self) -> None:
        """Sleep briefly on each CPU. If it switches to the idle task without an idle exit, raise CapabilityError."""
        switch = tracepoint_number(_SWITCH)
        with restore_affinity():
            for cpu in self._descriptors:
                if switch is None or not pin_to_cpu(cpu):
                    continue
                switches = _open_filtered(switch, cpu, _TO_IDLE)
                before = self.read_cpu(cpu)
                try:
                    for _ in range(_TRIAL_SLEEPS):
                        time.sleep(_TRIAL_SLEEP_S)
                    idled, counted = read_counter(switches) or 0, (self.read_cpu(cpu) or 0) - (before or 0)
                finally:
                    os.close(switches)
                if idled >= _TRIAL_SLEEPS - 1 and not counted:
                    raise CapabilityError(
                        f"perf does not count the tracepoint {_TRACEPOINT} on CPU {cpu}",
                        f"use --residency-source procfs; for what works: {command_line('doctor')}",
                    )

    def close(self) -> None:
        """Stop counting."""
        for descriptor in self._descriptors.values():
            os.close(descriptor)
        self._descriptors.clear()

    def read_cpu(self, cpu: int) -> int | None:
        """Return one CPU's exits since the counter was opened.

        None if the CPU no longer exists. It is cheapest on that CPU itself.
        """
        descriptor = self._descriptors.get(cpu)
        return None if descriptor is None else read_counter(descriptor)

    def read(self) -> dict[int, int]:
        """Return all CPUs' exits."""
        counts = {cpu: self.read_cpu(cpu) for cpu in self._descriptors}
        return {cpu: count for cpu, count in counts.items() if count is not None}
