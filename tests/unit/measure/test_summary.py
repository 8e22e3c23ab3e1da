# SPDX-License-Identifier: Apache-2.0
"""Repeated windows put together."""

from __future__ import annotations

import pytest

from powerprof.measure.sampling import estimate, make_phase
from powerprof.model.records import Estimate, StateResidency, Window


def test_students_interval() -> None:
    """s = 1, n = 5: 2.7764 / √5 on both sides of the mean."""
    values = [10 + step * 0.6324555320336759 for step in (-2, -1, 0, 1, 2)]
    found = estimate(values)
    assert found is not None and found.low is not None and found.high is not None
    assert found.mean == pytest.approx(10.0)
    assert found.high - found.mean == pytest.approx(2.7764451 / 5**0.5)
    assert found.mean - found.low == pytest.approx(2.7764451 / 5**0.5)


def test_one_window_has_no_interval_and_none_no_mean() -> None:
    assert estimate([3.0]) == Estimate(mean=3.0, low=None, high=None)
    assert estimate([3.0, None, float("nan")]) == Estimate(mean=3.0, low=None, high=None)
    assert estimate([None]) is None
    assert estimate([]) is None


def window(c0: float | None, deep_us: float, entries: int, names: tuple[str, ...] = ("C1",)) -> Window:
    states = [
        StateResidency(
            name=name,
            residency_percent=deep_us / 1e4,
            average_residency_ms=deep_us / entries / 1e3,
            entries_hz=float(entries),
            time_us=deep_us,
            entries_count=entries,
        )
        for name in names
    ]
    return Window(
        started_at="",
        window_s=1.0,
        cpus=1,
        c0_percent=c0,
        idle_percent=None if c0 is None else 100 - c0,
        wakeups_hz=float(entries),
        states=states,
        notes=["a note"],
    )


def test_a_phase_is_the_mean_of_its_windows() -> None:
    phase = make_phase("server", [window(10.0, 900_000, 10), window(20.0, 800_000, 30)])
    assert (phase.name, phase.c0_percent, phase.wakeups_hz, phase.cpus) == ("server", 15.0, 20.0, 1)
    state = phase.states[0]
    assert (state.residency_percent, state.entries_hz, state.entries_count) == (85.0, 20.0, 40)
    assert state.average_residency_ms == pytest.approx(1_700_000 / 40 / 1e3)
    assert phase.intervals["c0_percent"].mean == 15.0
    assert phase.intervals["residency_percent:C1"].mean == 85.0
    assert phase.notes == ["a note"]


def test_a_state_that_one_window_does_not_have_was_not_entered_there() -> None:
    phase = make_phase("x", [window(0.0, 500_000, 5, ("C1", "C6")), window(50.0, 500_000, 5)])
    assert {state.name: state.residency_percent for state in phase.states} == {"C1": 50.0, "C6": 25.0}


def test_one_window_has_no_intervals() -> None:
    assert make_phase("x", [window(1.0, 1.0, 1)]).intervals == {}


def test_unknown_stays_unknown() -> None:
    assert make_phase("x", [window(None, 1.0, 1)]).c0_percent is None
