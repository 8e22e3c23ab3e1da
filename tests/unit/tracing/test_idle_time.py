# SPDX-License-Identifier: Apache-2.0
"""Residency from traced idle periods, for hosts whose kernel counts none."""

from __future__ import annotations

import numpy as np
import pytest

from powerprof.records import Window
from powerprof.tracing.edge import CpuEdge, in_window
from powerprof.tracing.idle_time import traced_residency
from powerprof.tracing.layout import IDLE_EXIT

MS = 1_000_000
OWN = 4711


def periods(*rows: tuple[int, int, int, int, int]) -> np.ndarray:
    """(cpu, enter ms, exit ms, state, pid of the thread that ran) as idle exits."""
    found = np.zeros(len(rows), dtype=IDLE_EXIT)
    for one, (cpu, enter, leave, state, pid) in zip(found, rows, strict=True):
        one["cpu"], one["enter_ns"], one["exit_ns"], one["state"] = cpu, enter * MS, leave * MS, state
        one["next_tgid"] = pid
    return found


def residency(exits: np.ndarray, edges: dict[int, CpuEdge], lost: int = 0, stat: float | None = 90.0) -> Window:
    return traced_residency(
        in_window(exits, edges),
        edges,
        lost_count=lost,
        stat_idle_percent=stat,
        own_pid=OWN,
        started_at="2026-01-01T00:00:00.000Z",
    )


EDGES = {0: CpuEdge(1000 * MS, 2000 * MS, None), 1: CpuEdge(1100 * MS, 2100 * MS, None)}


def test_idle_time_is_the_sum_of_the_periods_of_all_cpus() -> None:
    exits = periods((0, 1100, 1500, 1, 7), (0, 1600, 1900, 1, 7), (1, 1200, 2000, 1, 9))
    window = residency(exits, EDGES)
    assert window.idle_percent == pytest.approx(100 * 1500 / 2000)
    assert window.c0_percent == pytest.approx(25.0)
    assert window.wakeups_hz == pytest.approx(3.0)
    (state,) = window.states
    assert (state.name, state.entries_count) == ("idle", 3)
    assert state.average_residency_ms == pytest.approx(500.0)
    assert any("90.00 % idle beside the traced 75.00 %" in note for note in window.notes)


def test_periods_that_end_outside_of_their_cpus_window_are_not_in_it() -> None:
    exits = periods((0, 800, 900, 1, 7), (0, 1500, 1600, 1, 7), (1, 1000, 1050, 1, 7), (1, 2050, 2101, 1, 7))
    assert residency(exits, EDGES).idle_percent == pytest.approx(5.0)


def test_an_idle_loop_that_polls_runs() -> None:
    window = residency(periods((0, 1100, 1500, 0, 7), (1, 1200, 1400, 1, 7)), EDGES)
    assert {state.name: state.polling for state in window.states} == {"poll": True, "idle": False}
    assert window.idle_percent == pytest.approx(10.0)


def test_the_exits_of_the_window_s_own_end_are_in_no_rate() -> None:
    exits = periods((0, 1100, 1500, 1, OWN), (0, 1600, 1999, 1, OWN), (1, 1200, 2099, 1, OWN))
    window = residency(exits, EDGES)
    assert window.edge_exits_count == 2
    assert window.wakeups_hz == pytest.approx(1.0)
    assert sum(state.entries_count for state in window.states) == 1


def test_with_lost_records_the_idle_time_is_proc_stat_s() -> None:
    window = residency(periods((0, 1100, 1500, 1, 7)), EDGES, lost=3, stat=88.0)
    assert (window.idle_percent, window.c0_percent, window.states) == (88.0, 12.0, [])
    assert any("3 idle exits were lost" in note for note in window.notes)


def test_without_any_exit_the_idle_time_is_proc_stat_s() -> None:
    assert residency(periods(), EDGES, stat=0.0).c0_percent == 100.0
    assert residency(periods(), EDGES, stat=97.0).c0_percent == 3.0
    assert residency(periods(), EDGES, stat=None).c0_percent is None
