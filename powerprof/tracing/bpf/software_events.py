# SPDX-License-Identifier: Apache-2.0
"""Runs a loaded BPF program at a software event of perf, on every CPU that is online."""

from __future__ import annotations

import errno
import os

from powerprof.closeable import Closeable
from powerprof.errors import PowerprofError
from powerprof.files import reason_of
from powerprof.sources.cpuidle import online_cpus
from powerprof.sources.perf_event import TYPE_SOFTWARE, open_sampler, set_program
from powerprof.tracing.bpf.features import not_permitted

# PERF_COUNT_SW_… of include/uapi/linux/perf_event.h.
CPU_CLOCK, MINOR_FAULTS, MAJOR_FAULTS = 0, 5, 6


class Sampler(Closeable):
    """Open events, which a program sees while the context is open; `descriptors` are their counters."""

    def __init__(self, program: int) -> None:
        self._program = program
        self.descriptors: list[int] = []

    def open(self, event: int, *, period: int = 0, frequency_hz: int = 0) -> None:
        """One more event. Raises CapabilityError, PowerprofError where the kernel refuses it."""
        for cpu in online_cpus():
            try:
                opened = open_sampler(TYPE_SOFTWARE, event, cpu, period=period, frequency_hz=frequency_hz)
                self.descriptors.append(opened)
                set_program(opened, self._program)
            except OSError as error:
                if error.errno == errno.ENODEV:
                    continue  # the CPU went offline
                self.close()
                if error.errno in (errno.EPERM, errno.EACCES):
                    raise not_permitted() from error
                raise PowerprofError(
                    f"cannot sample on CPU {cpu} ({reason_of(error)})",
                    "end other profilers, and allow more open files (ulimit -n)",
                ) from error

    def close(self) -> None:
        """Sample no more."""
        while self.descriptors:
            os.close(self.descriptors.pop())
