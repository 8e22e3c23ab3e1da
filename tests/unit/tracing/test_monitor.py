# SPDX-License-Identifier: Apache-2.0
"""Idle counters of a CPU that idles while they are read: the tracer adds the open period."""

from __future__ import annotations

import numpy as np

from powerprof.measure.idle_counters import CpuReading, StateInfo
from powerprof.tracing.bpf.shared_numbers import CpuPhase
from powerprof.tracing.idle_data import CPU_STATE
from powerprof.tracing.monitor import add_open_period

STATES = (StateInfo("POLL", True), StateInfo("C1", False))


def reading(at_ns: int) -> CpuReading:
    return CpuReading(0, at_ns, STATES, (5, 1000), (1, 10), (0, 0), (0, 0), (0, 0))


def cpu(phase: CpuPhase, enter_ns: int, state: int = 1) -> np.ndarray:
    found = np.zeros((), dtype=CPU_STATE)
    found["phase"], found["period"]["enter_ns"], found["period"]["state"] = phase, enter_ns, state
    return found


def test_an_open_period_is_added_to_its_state() -> None:
    look = cpu(CpuPhase.IDLE, 4_000_000)
    found = add_open_period(reading(9_000_000), look, look)
    assert (found.time_us, found.usage, found.resolved) == ((5, 6000), (1, 10), True)


def test_a_running_cpu_has_no_open_period() -> None:
    for phase in (CpuPhase.UNKNOWN, CpuPhase.LEFT, CpuPhase.RUNNING):
        look = cpu(phase, 4_000_000)
        found = add_open_period(reading(9_000_000), look, look)
        assert (found.time_us, found.resolved) == ((5, 1000), True)


def test_two_different_states_leave_the_reading_unresolved() -> None:
    before = cpu(CpuPhase.IDLE, 4_000_000)
    for after in (cpu(CpuPhase.IDLE, 5_000_000), cpu(CpuPhase.RUNNING, 4_000_000)):
        found = add_open_period(reading(9_000_000), before, after)
        assert (found.time_us, found.resolved) == ((5, 1000), False)
