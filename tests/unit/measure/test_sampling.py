# SPDX-License-Identifier: Apache-2.0
"""Windows of a meter, and their means with intervals."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from powerprof.measure.sampling import WindowInterrupted, WindowMeter, estimate, make_phase
from powerprof.model.records import EnergyReading, Estimate, StateResidency, Window
from powerprof.system.errors import Interrupted, UsageError
from tests.unit.measure.fake_cpu import C1, POLL, FakeCpus, fake_stat


def measure_window(duration_s: float, **how: Any) -> Window:
    with WindowMeter(**how) as meter:
        return meter.measure(duration_s)


def test_a_window_of_this_host_sums_to_100() -> None:
    window = measure_window(0.2, groups={"self": [os.getpid()]})
    assert window.window_s == pytest.approx(0.2, abs=0.15)  # at least that long; later where the host is busy
    assert window.c0_percent is not None
    total = sum(state.residency_percent or 0.0 for state in window.states) + window.c0_percent
    assert not window.states or total == pytest.approx(100.0, abs=0.5)
    assert window.processes[0].cpu_s < 0.2
    assert window.tool_wakeups_count is not None and 1 <= window.tool_wakeups_count <= 5
    assert window.context_switches_hz is not None and window.context_switches_hz > 0


@pytest.fixture
def interrupting() -> Iterator[None]:
    """SIGALRM is answered as the command line answers SIGINT."""

    def answer(number: int, frame: FrameType | None) -> None:
        raise Interrupted("interrupted")

    before = signal.signal(signal.SIGALRM, answer)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0.0)
    signal.signal(signal.SIGALRM, before)


def test_an_interrupted_window_is_kept(interrupting: None) -> None:
    allowed = os.sched_getaffinity(0)
    with pytest.raises(WindowInterrupted) as error:
        measure_window(30.0, meters=Alarming())
    partial = error.value.partial
    assert partial.c0_percent is not None
    assert partial.window_s is not None and partial.window_s < 10.0
    assert partial.notes[-1] == "interrupted: the window is shorter than asked"
    assert os.sched_getaffinity(0) == allowed


class CountingMeters:
    """A meter that wraps after 40 ms."""

    max_interval_s = 0.04

    def __init__(self) -> None:
        self.sampled_s: list[float] = []

    def sample(self) -> None:
        self.sampled_s.append(time.monotonic())

    def readings(self, start_s: float, end_s: float) -> list[EnergyReading]:
        watts = 2.0
        return [
            EnergyReading(
                source="rapl", domain="package-0", kind="measured", watts=watts, joules=watts * (end_s - start_s)
            )
        ]

    def notes(self) -> list[str]:
        return ["rapl: a note"]


class Alarming(CountingMeters):
    """An alarm 100 ms after the window began, however long its edges took."""

    def sample(self) -> None:
        if not self.sampled_s:
            signal.setitimer(signal.ITIMER_REAL, 0.1)
        super().sample()


def test_meters_are_sampled_around_the_window_and_before_they_wrap() -> None:
    meters = CountingMeters()
    window = measure_window(0.2, meters=meters)
    # Both ends, and up to four in between: fewer where the host wakes us late.
    assert 3 <= len(meters.sampled_s) <= 6
    assert window.window_s is not None and window.energy[0].joules == pytest.approx(2.0 * window.window_s, abs=0.2)
    assert window.notes[-1] == "rapl: a note"


def test_a_host_without_driver_is_measured_by_proc_stat(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    FakeCpus(tmp_path / "sys", [[], []], driver="none")
    fake_stat(tmp_path / "proc", [(0, 0), (0, 0)])
    monkeypatch.setenv("POWERPROF_SYSFS", str(tmp_path / "sys"))
    monkeypatch.setenv("POWERPROF_PROCFS", str(tmp_path / "proc"))
    with WindowMeter() as meter:
        meter.open_window()
        fake_stat(tmp_path / "proc", [(2, 8), (0, 10)])
        window = meter.close_window()
    assert (window.c0_percent, window.idle_percent, window.user_percent) == (10.0, 90.0, 10.0)
    assert (window.states, window.wakeups_hz, window.cpus) == ([], None, 2)
    (note,) = window.notes
    assert note.startswith("no cpuidle driver: idle states are unknown, C0 is /proc/stat's")


def test_a_recorded_tree_is_not_mixed_with_this_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Moved sysfs: counters that stand still say nothing, and /proc of the running kernel is left alone."""
    cpus = FakeCpus(tmp_path, [[POLL, C1]] * 2)
    monkeypatch.setenv("POWERPROF_SYSFS", str(tmp_path))
    with WindowMeter() as meter:
        meter.open_window()
        cpus.add(0, 1, us=1000, usage=2)
        window = meter.close_window()
    assert (window.cpus, window.user_percent, window.frequency_mhz) == (1, None, None)
    assert "recorded counters: open idle periods are not resolved" in window.notes
    assert "CPU 1 entered and left no idle state (asleep or busy throughout): left out" in window.notes
    with pytest.raises(UsageError, match="powertop measures this host"):
        measure_window(0.1, residency_source="powertop")


def test_an_unknown_source_is_a_wrong_command_line() -> None:
    with pytest.raises(UsageError) as error:
        measure_window(0.1, residency_source="guess")
    assert error.value.exit_code == 2


def test_students_interval() -> None:
    """s = 1, n = 5: 2.7764 / √5 on both sides of the mean."""
    values = [10 + step * 0.6324555320336759 for step in (-2, -1, 0, 1, 2)]
    found = estimate(values)
    assert found is not None and found.low is not None and found.high is not None
    assert found.mean == pytest.approx(10.0)
    assert found.high - found.mean == pytest.approx(2.7764451 / 5**0.5)
    assert found.mean - found.low == pytest.approx(2.7764451 / 5**0.5)


def test_one_window_has_no_interval() -> None:
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
