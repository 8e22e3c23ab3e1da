# SPDX-License-Identifier: Apache-2.0
"""Samples when which thread of a process runs, without its stack: to be joined with what somebody else knows."""

from __future__ import annotations

import numpy as np

from powerprof.closeable import Closeable
from powerprof.processes.namespaces import check_process_ids
from powerprof.tracing.bpf.loaded import LoadedProgram
from powerprof.tracing.bpf.software_events import CPU_CLOCK, Sampler
from powerprof.windows.runner import Part

SAMPLE_HZ = 499  # no divisor of timers' usual rates
_TICKS = 1 << 18
_TICK = np.dtype([("at_ns", "<u8"), ("tid", "<u8")])


class TickSampler(Closeable, Part):
    """The sampler of one process; a context manager that removes it. Raises CapabilityError where it cannot run."""

    def __init__(self, pid: int) -> None:
        check_process_ids()
        self.program = LoadedProgram("ticks.bpf.c", {"TICKS": _TICKS})
        self.program.put("target", 0, pid.to_bytes(8, "little"))
        self._sampler = Sampler(self.program.descriptor("sample__tick"))

    def close(self) -> None:
        self._sampler.close()
        self.program.close()

    def begin(self) -> None:
        """Sample from now on. Raises CapabilityError, PowerprofError."""
        self._sampler.open(CPU_CLOCK, frequency_hz=SAMPLE_HZ)

    def end(self) -> None:
        self._sampler.close()

    def collect(self) -> tuple[list[tuple[int, int]], int]:
        """(CLOCK_MONOTONIC in ns, thread) of each sample, and how many there was no room for."""
        seen = int.from_bytes(self.program.get("seen", 0), "little")
        kept = min(seen, _TICKS)
        rows = np.frombuffer(self.program.table_bytes("ticks"), dtype=_TICK)[:kept]
        return sorted((int(at_ns), int(tid)) for at_ns, tid in rows), seen - kept
