# SPDX-License-Identifier: Apache-2.0
"""How often threads wake over several windows, and what is known to change it."""

from __future__ import annotations

import pytest

from powerprof.experiment.traced import PaceWindow, ThreadPace, pace_metrics, summarise_paces


def _window(**rates: float) -> PaceWindow:
    threads = [
        ThreadPace(thread=name, wakings_hz=hz, exits_hz=hz / 2, period_ms=1e3 / hz) for name, hz in rates.items()
    ]
    return PaceWindow(window_s=10.0, threads=threads)


def test_a_thread_that_slept_through_a_window_counts_as_nought_there() -> None:
    found = summarise_paces([_window(governor=97.0, master=1.0), _window(governor=99.0), _window(governor=98.0)])
    assert [one.thread for one in found] == ["governor", "master"]
    governor, master = found
    assert governor.wakings is not None and master.wakings is not None
    assert governor.wakings.mean == pytest.approx(98.0)
    # Student's t of two degrees of freedom: 4.303 standard errors of 1/√3.
    assert (governor.wakings.low, governor.wakings.high) == (
        pytest.approx(95.52, abs=0.01),
        pytest.approx(100.48, abs=0.01),
    )
    assert governor.period_ms == pytest.approx(10.2, abs=0.02)
    assert master.wakings.mean == pytest.approx(1 / 3)
    assert master.wakings.low == 0.0
    # Regular in one window of three is not regular.
    assert master.period_ms is None


def test_the_server_is_the_sum_of_its_threads() -> None:
    wakings, exits = pace_metrics([_window(a=90.0, b=10.0), _window(a=94.0, b=10.0)])
    assert (wakings.name, wakings.values, wakings.estimate.mean) == ("server_wakings_hz", [100.0, 104.0], 102.0)
    assert (exits.name, exits.values) == ("server_exits_hz", [50.0, 52.0])
    assert pace_metrics([]) == [] and summarise_paces([]) == []
