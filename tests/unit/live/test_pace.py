# SPDX-License-Identifier: Apache-2.0
"""Intervals are as long as was asked, whatever lies between two of them; and who uses busy CPUs."""

from __future__ import annotations

import pytest

from powerprof.live import monitor
from powerprof.live.intervals import CpuUse
from powerprof.live.monitor import BusyProcesses, IntervalClock


def test_what_follows_an_interval_is_in_the_time_of_the_next() -> None:
    pace, now_s, ends = IntervalClock(1.0, 100.0), 100.0, []
    for after_s in (0.0, 0.3, 0.05, 0.4, 0.1):
        now_s = pace.next_end_s(now_s + after_s)
        ends.append(now_s)
    assert ends == pytest.approx([101.0, 102.0, 103.0, 104.0, 105.0])


def test_what_comes_too_late_begins_anew() -> None:
    """Naming took 3.1 s once: the next interval is half as long from there on, and the ones after it whole."""
    pace = IntervalClock(1.0, 0.0)
    first = pace.next_end_s(0.0)
    late = pace.next_end_s(first + 3.1)
    assert (first, late) == pytest.approx((1.0, 4.6))
    assert pace.next_end_s(late + 0.1) == pytest.approx(5.6)


def test_clocks_are_read_while_the_cpus_are_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    second = 10**9
    readings = iter(
        [
            {1: 0, 2: 5 * second, 3: second},
            {1: 2 * second, 2: 5 * second, 3: 2 * second, 4: second},  # 4 has come: since when is unknown
            {1: 3 * second},
            {1: 4 * second},
        ]
    )
    monkeypatch.setattr(monitor, "_read_clocks", lambda: next(readings))
    monkeypatch.setattr(monitor, "name_of", {1: "cc1", 2: "sshd", 3: "cc1", 4: "new"}.get)
    look = BusyProcesses()
    assert look.measure(0.8, 5.0) == {"cc1": CpuUse(2, 3.0)}
    assert look.measure(0.1, 5.0) is None  # idle: no clock is read
    assert look.measure(0.9, 5.0) is None  # nothing to compare with
    assert look.measure(0.9, 5.0) == {"cc1": CpuUse(1, 1.0)}
