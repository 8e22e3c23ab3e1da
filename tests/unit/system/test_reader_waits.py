# SPDX-License-Identifier: Apache-2.0
"""The limits of the time that foreign processes may cost their reader."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from powerprof.system import reader_waits, signals
from powerprof.system.reader_waits import ChildSleep, ReaderWaits, WaitLimits, Waits


def test_waits_are_forgiven_slowly(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = [1000.0]
    monkeypatch.setattr(reader_waits, "time", SimpleNamespace(monotonic=lambda: now_s[0]))
    waits = Waits(since_s=1000.0)
    waits.add(3.0, 0.0, 0)
    # 0.005 s are forgiven per second: 1 s within 200 s, and everything within 800 s.
    now_s[0] = 1200.0
    waits.add(1.5, 0.0, 0)
    assert waits.waited_s == pytest.approx(3.5)
    now_s[0] = 1300.0
    waits.add(0.25, 0.0, 0)
    assert waits.waited_s == pytest.approx(3.25)
    now_s[0] = 9000.0
    waits.add(2.0, 3.0, 0)
    assert waits.waited_s == pytest.approx(2.0)
    # 0.02 s of CPU time are forgiven per second.
    now_s[0] = 9050.0
    waits.add(0.0, 0.5, 0)
    assert (waits.waited_s, waits.worked_s) == (pytest.approx(1.75), pytest.approx(2.5))


@pytest.mark.parametrize(
    ("left", "waited_s", "worked_s", "is_exhausted"),
    [(1, 4.9, 7.9, False), (2, 0.0, 0.0, True), (0, 5.0, 0.0, True), (0, 0.0, 8.0, True), (2, 5.0, 8.0, True)],
)
def test_each_limit_is_enough(left: int, waited_s: float, worked_s: float, is_exhausted: bool) -> None:
    waits = Waits(left, waited_s, worked_s=worked_s)
    assert waits.is_exhausted(WaitLimits(2, 5.0, 8.0)) is is_exhausted


def test_time_on_a_cpu_or_waiting_for_one_is_no_sleep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = [50.0]
    monkeypatch.setattr(reader_waits, "time", SimpleNamespace(monotonic=lambda: now_s[0]))
    monkeypatch.setattr(reader_waits, "Path", lambda path: tmp_path)

    def show(on_cpu_ns: int, waiting_ns: int, state: str) -> None:
        (tmp_path / "schedstat").write_text(f"{on_cpu_ns} {waiting_ns} 77\n")
        (tmp_path / "stat").write_text(f"9 (a) R (b) {state} 1 2\n")

    show(5_000_000_000, 7_000_000_000, "S")
    sleep = ChildSleep(9)
    # 4 s later it was on a CPU for 0.5 s and has waited for one for 1.25 s.
    now_s[0] = 54.0
    show(5_500_000_000, 8_250_000_000, "S")
    assert sleep.slept_s() == pytest.approx(2.25)
    show(5_500_000_000, 8_250_000_000, "R")
    assert sleep.slept_s() == 0.0


@pytest.mark.parametrize("is_late", [False, True])
@pytest.mark.parametrize(("is_person", "slept_s", "left"), [(True, 1.5, 1), (False, 1.5, 1), (True, -2.0, 0)])
def test_waits_count_for_people_or_system_accounts_and_after_a_signal(
    monkeypatch: pytest.MonkeyPatch, is_person: bool, slept_s: float, left: int, is_late: bool
) -> None:
    monkeypatch.setattr(signals, "has_arrived", lambda: is_late)
    waits = ReaderWaits()
    waits.add(is_person, slept_s, 0.75, left)
    counted = (max(0.0, slept_s), 0.75, left)
    totals = [(one.waited_s, one.worked_s, one.left_behind) for one in (waits.of_people, waits.of_system)]
    assert totals == ([counted, (0.0, 0.0, 0)] if is_person else [(0.0, 0.0, 0), counted])
    assert waits.after_signal.left_behind == left * is_late


@pytest.mark.parametrize(
    ("waited_s", "is_late", "is_left_out"), [(0.4, True, False), (0.6, True, True), (0.6, False, False)]
)
def test_after_a_signal_all_processes_share_half_a_second(
    monkeypatch: pytest.MonkeyPatch, waited_s: float, is_late: bool, is_left_out: bool
) -> None:
    monkeypatch.setattr(signals, "has_arrived", lambda: is_late)
    waits = ReaderWaits(after_signal=Waits(waited_s=waited_s))
    assert [waits.is_left_out(pid, pid == 7) for pid in (7, 8)] == [is_left_out] * 2
    assert waits.silent == [7, 8] * is_left_out
