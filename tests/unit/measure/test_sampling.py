# SPDX-License-Identifier: Apache-2.0
"""Windows: deadlines, meters, interruption, hosts without counters."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from powerprof.measure.sampling import WindowInterrupted, WindowMeter
from powerprof.model.records import EnergyReading, Window
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


def test_an_interrupted_window_keeps_what_it_measured(interrupting: None) -> None:
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
        fake_stat(tmp_path / "proc", [(20, 80), (0, 100)])
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
