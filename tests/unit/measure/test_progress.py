# SPDX-License-Identifier: Apache-2.0
"""The line of progress: its time is that of the plan, then that of the measured steps."""

from __future__ import annotations

import time

import pytest

from powerprof.measure.progress import Countdown, announce


class _Clock:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        monkeypatch.setattr(time, "monotonic", lambda: self.now)
        monkeypatch.setattr(time, "time", lambda: self.now)
        monkeypatch.setattr(time, "localtime", time.gmtime)


def test_progress_counts_down_to_the_end_of_the_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, lines = _Clock(monkeypatch), list[str]()
    progress = Countdown(lines.append, 300.0)
    for passed_s in (0.0, 150.0, 270.5, 400.0):
        clock.now = 1000.0 + passed_s
        progress("window")
    left = ["about 5 min left", "about 2 min left", "30 s left"]
    assert lines == [*(f"window · {time_left}, until 00:21:40" for time_left in left), "window"]


@pytest.mark.parametrize("pace_s", [5.0, 10.0, 30.0])
@pytest.mark.parametrize("total", [4, 12])
def test_the_time_left_is_that_of_the_measured_steps(
    monkeypatch: pytest.MonkeyPatch, pace_s: float, total: int
) -> None:
    clock, lines = _Clock(monkeypatch), list[str]()
    progress = Countdown(lines.append, 20.0 + total * 10.0 + 8.0)
    clock.now += 20.0
    begun = clock.now
    for done in range(total):
        clock.now = begun + pace_s * done
        progress.step("pair", done, total, 10.0, 8.0)
        if done:
            left_s = pace_s * (total - done) + 8.0
            assert f"until {time.strftime('%H:%M:%S', time.gmtime(clock.now + left_s))}" in lines[-1]
            assert left_s >= 90 or f"{left_s:.0f} s left" in lines[-1]


def test_a_second_series_of_steps_begins_with_its_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, lines = _Clock(monkeypatch), list[str]()
    progress = Countdown(lines.append, 40.0)
    progress.step("pair 1", 0, 2, 10.0)
    clock.now += 60.0
    progress.step("pair 2", 1, 2, 10.0)
    clock.now += 60.0
    progress.step("control", 0, 2, 10.0)
    assert "20 s left" in lines[-1]


def test_each_part_of_a_plan_has_the_time_of_the_later_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, lines = _Clock(monkeypatch), list[str]()
    progress = Countdown(lines.append, 30.0)
    for passed_s, left_s in ((0.0, 30.0), (12.0, 20.0), (45.0, 10.0)):
        clock.now = 1000.0 + passed_s
        progress.part("window", left_s)
        end = time.strftime("%H:%M:%S", time.gmtime(clock.now + left_s))
        assert lines[-1] == f"window · {left_s:.0f} s left, until {end}"
    announce(lines.append, "tracing mariadbd", 10.0)
    assert lines[-1].startswith("tracing mariadbd · 10 s left, until ")


def test_the_pace_is_that_of_the_steps_since_the_first_line(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, lines = _Clock(monkeypatch), list[str]()
    progress = Countdown(lines.append, 40.0)
    progress.step("pair 4", 3, 9, 10.0, 5.0)
    assert "65 s left" in lines[-1]
    clock.now += 14.0
    progress.step("pair 6", 5, 9, 10.0, 5.0)
    # 7 s per pair, four to go.
    assert "33 s left" in lines[-1]
