# SPDX-License-Identifier: Apache-2.0
"""How often each CPU left idle, by perf's count of the cpu_idle tracepoint: for hosts without a cpuidle driver.

The idle loop fires it with or without a driver (kernel/sched/idle.c, default_idle_call). The counter is the kernel's:
nothing is compiled, recorded or read but one number a CPU, and it does not depend on our tracing. `idle_calls` of
/proc/timer_list is no such count: without a driver 6.1 shows about half of the idle periods there.

It is tried on each CPU before it is believed: perf drops events of a task that it takes for being inside an event
already, and that mark can be stuck on one CPU's idle task (seen on 6.18, where `perf stat` shows 0 there as well).
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable

from powerprof import paths
from powerprof.closeable import Closeable
from powerprof.errors import CapabilityError
from powerprof.files import reason_of
from powerprof.sources.edges import affinity_restored, move_to
from powerprof.sources.perf_event import TYPE_TRACEPOINT, open_counter, read_counter, set_filter
from powerprof.sources.tracefs import tracepoint_number

_TRACEPOINT = "power/cpu_idle"
_LEAVING = "state==4294967295"  # PWR_EVENT_EXIT, include/trace/events/power.h
_SWITCH, _TO_IDLE = "sched/sched_switch", "next_pid==0"
_TRIAL_SLEEPS, _TRIAL_SLEEP_S = 3, 0.0001


def _counting(number: int, cpu: int, condition: str) -> int:
    """A descriptor that counts a tracepoint on one CPU where the condition holds. Raises OSError."""
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
        """Begin to count. Raises CapabilityError where this process may not; CPUs that are gone are left out."""
        self._descriptors: dict[int, int] = {}
        number = tracepoint_number(_TRACEPOINT) if paths.is_this_host() else None
        if number is None:
            raise CapabilityError(f"the tracepoint {_TRACEPOINT} cannot be counted: no tracefs here", "run as root")
        try:
            for cpu in cpus:
                self._descriptors[cpu] = _counting(number, cpu, _LEAVING)
            self._try()
        except OSError as error:
            self.close()
            raise CapabilityError(
                f"the tracepoint {_TRACEPOINT} cannot be counted ({reason_of(error)})", "run as root"
            ) from error
        except BaseException:  # a signal too: the trial takes a moment
            self.close()
            raise

    def _try(self) -> None:
        """Sleep for instants on each CPU: where it switched to the idle task it must be seen to leave idle."""
        switch = tracepoint_number(_SWITCH)
        with affinity_restored():
            for cpu in self._descriptors:
                if switch is None or not move_to(cpu):
                    continue
                switches = _counting(switch, cpu, _TO_IDLE)
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
                        "--residency-source procfs does without; powerprof doctor says what works",
                    )

    def close(self) -> None:
        """Stop counting."""
        for descriptor in self._descriptors.values():
            os.close(descriptor)
        self._descriptors.clear()

    def read_cpu(self, cpu: int) -> int | None:
        """One CPU's exits since the counter was opened; None where it has gone. Cheapest on that CPU itself."""
        descriptor = self._descriptors.get(cpu)
        return None if descriptor is None else read_counter(descriptor)

    def read(self) -> dict[int, int]:
        """All CPUs' exits."""
        counts = {cpu: self.read_cpu(cpu) for cpu in self._descriptors}
        return {cpu: count for cpu, count in counts.items() if count is not None}
