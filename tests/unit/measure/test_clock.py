# SPDX-License-Identifier: Apache-2.0
"""How long the host was suspended, by two clocks; and the clock on the wall, which is set now and then."""

from __future__ import annotations

import time

import pytest

from powerprof.measure.window import SuspendClock, WallOffset, note_suspend
from tests.programs.suspended import SuspendedClock


def test_each_asking_tells_of_the_time_since_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, suspended = SuspendedClock(monkeypatch), SuspendClock()
    assert suspended.since_s() == 0.0
    clock.sleep(30.0)
    assert suspended.since_s() == pytest.approx(30.0, abs=0.01)
    assert suspended.since_s() == 0.0
    clock.sleep(0.25)
    clock.sleep(0.25)
    assert suspended.since_s() == pytest.approx(0.5, abs=0.01)


def test_a_reading_that_was_cut_in_two_is_taken_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between two clocks a busy host may let others run for a time slice: no suspend."""
    now_ns, cut = 10**12, [True, False, True]

    def gettime(clock: int) -> int:
        nonlocal now_ns
        now_ns += 1000
        if clock == time.CLOCK_BOOTTIME and cut and cut.pop(0):
            now_ns += 40_000_000
        return now_ns

    monkeypatch.setattr(time, "clock_gettime_ns", gettime)
    suspended = SuspendClock()
    assert suspended.since_s() == 0.0
    assert cut == []


def test_a_window_notes_a_suspend() -> None:
    assert note_suspend(0.0) == []
    assert note_suspend(12.34)[0].startswith("the host was suspended for 12.3 s within this window")


def test_the_wall_clock_is_remembered_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    ahead = 1000.0
    monkeypatch.setattr(time, "time", lambda: time.monotonic() + ahead)
    offset = WallOffset()
    for now_s in (1.0, 2.0, 3.0, 4.0):
        offset.note(now_s)
    ahead = 4600.0
    offset.note(5.0)
    for when_s, known in ((1.0, 1000.0), (2.9, 1000.0), (4.0, 1000.0), (5.0, 4600.0), (9.0, 4600.0)):
        assert offset.near(when_s) == pytest.approx(known, abs=0.01)
