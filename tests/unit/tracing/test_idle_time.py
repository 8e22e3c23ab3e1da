# SPDX-License-Identifier: Apache-2.0
"""Residency from traced idle periods, for hosts whose kernel counts none."""

from __future__ import annotations

import numpy as np
import pytest

from powerprof.model.records import Window
from powerprof.tracing.captures import CpuEdge
from powerprof.tracing.idle_data import CPU_TOTAL, compute_traced_residency

MS = 1_000_000
OWN = 4711


def totals(*rows: tuple[int, int, int, int, int]) -> np.ndarray:
    """(CPU, state, exits, idle ms, pid of the last thread) as sums of CPUs."""
    found = np.zeros(2, dtype=CPU_TOTAL)
    for cpu, state, count, idle_ms, pid in rows:
        found[cpu]["count"][state], found[cpu]["idle_ns"][state] = count, idle_ms * MS
        found[cpu]["last_tgid"] = pid
    return found


def residency(sums: np.ndarray, stat: float | None = 90.0) -> Window:
    return compute_traced_residency(
        sums, EDGES, stat_idle_percent=stat, own_pid=OWN, started_at="2026-01-01T00:00:00.000Z"
    )


EDGES = {0: CpuEdge(0, 1000 * MS, 2000 * MS, None), 1: CpuEdge(1, 1100 * MS, 2100 * MS, None)}


def test_idle_time_is_the_sum_over_all_cpus() -> None:
    window = residency(totals((0, 1, 2, 700, 7), (1, 1, 1, 800, 9)))
    assert window.idle_percent == pytest.approx(100 * 1500 / 2000)
    assert window.c0_percent == pytest.approx(25.0)
    assert window.wakeups_hz == pytest.approx(3.0)
    (state,) = window.states
    assert (state.name, state.entries_count) == ("idle", 3)
    assert state.average_residency_ms == pytest.approx(500.0)
    assert any("90.00 % idle, the trace 75.00 %" in note for note in window.notes)


def test_an_idle_loop_that_polls_runs() -> None:
    window = residency(totals((0, 0, 1, 400, 7), (1, 1, 1, 200, 7)))
    assert {state.name: state.polling for state in window.states} == {"poll": True, "idle": False}
    assert window.idle_percent == pytest.approx(10.0)


def test_the_exits_of_the_window_s_own_end_are_in_no_rate() -> None:
    window = residency(totals((0, 1, 2, 800, OWN), (1, 1, 1, 900, OWN)))
    assert window.edge_exits_count == 2
    assert window.wakeups_hz == pytest.approx(1.0)


def test_without_any_exit_the_idle_time_is_proc_stat_s() -> None:
    assert residency(totals(), stat=0.0).c0_percent == 100.0
    assert residency(totals(), stat=97.0).c0_percent == 3.0
    assert residency(totals(), stat=None).c0_percent is None


def test_idle_time_beyond_the_window_is_residual() -> None:
    """Clocks of the trace and of the edges differ: 101 % of the time was idle."""
    window = residency(totals((0, 1, 2, 1_010, 7), (1, 1, 1, 1_010, 9)))
    assert (window.idle_percent, window.c0_percent) == (pytest.approx(101.0), 0.0)
    assert window.residual_percent == pytest.approx(1.0)
    assert residency(totals((0, 1, 2, 700, 7))).residual_percent == 0.0
    assert window.window_s == pytest.approx(1.0) and window.edge_exits_count == 0


def test_windows_without_cpus_or_exits() -> None:
    assert residency(totals()).idle_percent == 90.0 and residency(totals(), stat=None).idle_percent is None
    assert residency(totals(), stat=None).residual_percent is None
