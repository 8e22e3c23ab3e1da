# SPDX-License-Identifier: Apache-2.0
"""Traced windows and the paces of threads."""

from __future__ import annotations

import pytest

from powerprof.experiment.records import StormShare, TraceSummary
from powerprof.experiment.traced import PaceWindow, ThreadPace, pace_metrics, repeat_until_storm, summarise_paces
from powerprof.report.run import traced_lines
from tests.unit.report.sample_records import attribution


def _window(raged: float | None, began: bool = True) -> TraceSummary:
    storm = None
    if raged is not None:
        storm = StormShare(
            began=began, raged_percent=raged, restarts_count=0, counter="Connections", counter_hz=raged / 10
        )
    return TraceSummary(arm="b", members={"replica": 8123}, attribution=attribution(), storm=storm)


@pytest.mark.parametrize(
    ("windows", "taken"),
    [
        ([_window(None)], 1),
        ([_window(98.0)], 1),
        ([_window(3.0), _window(97.0)], 2),
        ([_window(3.0), _window(4.0), _window(5.0)], 3),
        # This server backs off: twice is enough to know.
        ([_window(0.0, began=False), _window(0.0, began=False)], 2),
        ([_window(0.0, began=False), _window(99.0)], 2),
    ],
)
def test_tracing_is_repeated_until_the_storm_is_active(windows: list[TraceSummary], taken: int) -> None:
    left, said = list(windows), []
    found = repeat_until_storm(lambda: left.pop(0), "duplicate-id", said.append)
    assert left == []
    assert found is windows[-1]
    assert len(said) == taken - 1


def test_a_window_without_its_storm_is_marked() -> None:
    calm = traced_lines(_window(12.0), "duplicate-id", 80)
    assert any("the storm was active 12 % of the time" in line for line in calm)
    raging = traced_lines(_window(97.0), "duplicate-id", 80)
    assert not any("the storm" in line for line in raging)


def _pace_window(**rates: float) -> PaceWindow:
    threads = [
        ThreadPace(thread=name, wakings_hz=hz, exits_hz=hz / 2, period_ms=1e3 / hz) for name, hz in rates.items()
    ]
    return PaceWindow(window_s=10.0, threads=threads)


def test_a_sleeping_thread_counts_as_zero() -> None:
    found = summarise_paces(
        [_pace_window(governor=97.0, master=1.0), _pace_window(governor=99.0), _pace_window(governor=98.0)]
    )
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
    wakings, exits = pace_metrics([_pace_window(a=90.0, b=10.0), _pace_window(a=94.0, b=10.0)])
    assert (wakings.name, wakings.values, wakings.estimate.mean) == ("server_wakings_hz", [100.0, 104.0], 102.0)
    assert (exits.name, exits.values) == ("server_exits_hz", [50.0, 52.0])
    assert pace_metrics([]) == [] and summarise_paces([]) == []
