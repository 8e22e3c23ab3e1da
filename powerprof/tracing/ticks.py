# SPDX-License-Identifier: Apache-2.0
"""Samples when which thread of a process runs, without its stack: to be joined with what somebody else knows."""

from __future__ import annotations

import struct
from typing import Any

from powerprof.closing import Closing
from powerprof.errors import CapabilityError
from powerprof.processes.namespaces import check_process_ids
from powerprof.tracing.program import Program, explain

SAMPLE_HZ = 499  # no divisor of timers' usual rates
_TICKS = 1 << 18
_SOFTWARE, _CPU_CLOCK = 1, 0
_TICK = struct.Struct("<QQ")


class TickSampler(Closing):
    """The sampler of one process; a context manager that removes it. Raises CapabilityError where it cannot run."""

    def __init__(self, pid: int) -> None:
        check_process_ids()
        self._program = Program("ticks.bpf.c", {"TARGET": pid, "TICKS": _TICKS})
        self._on = False

    def close(self) -> None:
        self.stop()
        self._program.close()

    def start(self) -> None:
        """Sample from now on. Raises CapabilityError."""
        try:
            self._program.bpf.attach_perf_event(
                ev_type=_SOFTWARE, ev_config=_CPU_CLOCK, fn_name="on_event", sample_freq=SAMPLE_HZ
            )
        except Exception as error:  # bcc's only kind
            raise CapabilityError("cannot sample", explain(error, "cpu-clock").message) from error
        self._on = True

    def stop(self) -> None:
        """Sample no more."""
        if self._on:
            self._program.bpf.detach_perf_event(ev_type=_SOFTWARE, ev_config=_CPU_CLOCK)
            self._on = False

    def ticks(self) -> tuple[list[tuple[int, int]], int]:
        """(CLOCK_MONOTONIC in ns, thread) of each sample, and how many there was no room for."""
        bpf: Any = self._program.bpf
        seen = int(bpf["seen"][0].value)
        kept = min(seen, _TICKS)
        data = [_TICK.unpack(bytes(bpf["ticks"][at])) for at in range(kept)]
        return sorted((at_ns, tid) for at_ns, tid in data), seen - kept
