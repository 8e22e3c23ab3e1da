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
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from powerprof.measure import oslayer
from powerprof.measure.joined_windows import join_two_windows, join_windows
from powerprof.measure.means import average_states, estimate, make_phase, make_run
from powerprof.measure.sampling import WindowInterrupted, WindowMeter
from powerprof.model.records import EnergyReading, Estimate, ProcessTime, StateResidency, Window
from powerprof.model.system_activity import OsRates
from powerprof.system.errors import Interrupted, UsageError
from tests.unit.measure.fake_cpu import C1, POLL, FakeCpus, fake_stat
from tests.unit.measure.odd_records import figures, odd


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
        self.notes = ["rapl: a note"]

    def sample(self) -> None:
        self.sampled_s.append(time.monotonic())

    def readings(self, start_s: float, end_s: float) -> list[EnergyReading]:
        watts = 2.0
        return [
            EnergyReading(
                source="rapl",
                domain="package-0",
                scope="package",
                kind="measured",
                watts=watts,
                joules=watts * (end_s - start_s),
            )
        ]


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


def test_one_window_has_no_intervals() -> None:
    assert make_phase("x", [window(1.0, 1.0, 1)]).intervals == {}


def test_unknown_stays_unknown() -> None:
    assert make_phase("x", [window(None, 1.0, 1)]).c0_percent is None


# Laws of two windows that are joined. Windows of 2 s and 6 s: every figure differs, and each has its own weight.
FIRST_S, SECOND_S = 2.0, 6.0
TOTAL_S = FIRST_S + SECOND_S


def odd_state(name: str, start: float, **fixed: Any) -> StateResidency:
    return odd(StateResidency, start, name=name, **fixed)


def odd_window(window_s: float, start: float) -> Window:
    energy = [
        odd(EnergyReading, start + 300 + n, source="rapl", domain=f"package-{n}", kind="measured") for n in (0, 1)
    ]
    return odd(
        Window,
        start,
        window_s=window_s,
        cpus=5,
        states=[odd_state("C1", start + 100), odd_state("C6", start + 150)],
        energy=energy,
        processes=[ProcessTime(name="server", cpu_s=start / 100, percent=9.0)],
        system=odd(OsRates, start + 200),
        notes=[f"note of {window_s:g} s", "common"],
    )


def weighted(a: float, b: float) -> float:
    return (a * FIRST_S + b * SECOND_S) / TOTAL_S


# The figures of a window that add up, and those that the first window keeps.
SUMMED = {"edge_exits_count", "tool_cpu_s", "tool_wakeups_count"}
KEPT = {"cpus", "frequency_mhz", "unknown_cpus_count"}


def test_two_windows_are_joined_by_time() -> None:
    first, second = odd_window(FIRST_S, 3.0), odd_window(SECOND_S, 71.0)
    joined = join_two_windows(first, second)
    assert joined.window_s == TOTAL_S
    for name, figure in figures(joined).items():
        a, b = getattr(first, name), getattr(second, name)
        expected = {"window_s": TOTAL_S}.get(name, a if name in KEPT else a + b if name in SUMMED else weighted(a, b))
        assert figure == pytest.approx(expected), name
    for state, a, b in zip(joined.states, first.states, second.states, strict=True):
        entries, time_us = a.entries_count + b.entries_count, a.time_us + b.time_us
        assert (state.name, state.entries_count, state.time_us) == (a.name, entries, pytest.approx(time_us))
        assert state.entries_hz == pytest.approx(entries / TOTAL_S)
        assert state.average_residency_ms == pytest.approx(time_us / entries / 1000)
        for name in ("residency_percent", "above_hz", "below_hz", "rejected_hz"):
            assert getattr(state, name) == pytest.approx(weighted(getattr(a, name), getattr(b, name))), name
    for reading, c, d in zip(joined.energy, first.energy, second.energy, strict=True):
        assert c.joules is not None and d.joules is not None
        assert (reading.domain, reading.joules) == (c.domain, pytest.approx(c.joules + d.joules))
        assert reading.watts == pytest.approx((c.joules + d.joules) / TOTAL_S)
    (process,) = joined.processes
    assert process.cpu_s == pytest.approx(0.03 + 0.71)
    assert process.percent == pytest.approx(100 * 0.74 / (TOTAL_S * 5))
    assert joined.system is not None
    assert joined.notes == ["note of 2 s", "common", "note of 6 s"]


@pytest.mark.parametrize("name", sorted(figures(odd_window(1.0, 1.0)).keys() - KEPT - {"window_s", "edge_exits_count"}))
def test_a_figure_that_one_window_lacks_is_unknown_in_both(name: str) -> None:
    first, second = odd_window(FIRST_S, 3.0), odd_window(SECOND_S, 71.0)
    for a, b in ((replace(first, **{name: None}), second), (first, replace(second, **{name: None}))):
        assert getattr(join_two_windows(a, b), name) is None


def test_energy_and_states_that_one_window_lacks_are_unknown() -> None:
    first, second = odd_window(FIRST_S, 3.0), odd_window(SECOND_S, 71.0)
    lost = replace(second, energy=[replace(second.energy[0], joules=None)], states=second.states[1:], system=None)
    joined = join_two_windows(first, lost)
    assert [(reading.joules, reading.watts) for reading in joined.energy] == [(None, None), (None, None)]
    assert [state.name for state in joined.states] == ["C6"]
    assert joined.system is None
    assert join_two_windows(replace(first, window_s=None), replace(second, window_s=None)).window_s is None


@given(st.lists(st.floats(0.3, 9.0), min_size=2, max_size=5))
def test_joined_windows_keep_the_sum_and_the_mean(lengths: list[float]) -> None:
    windows = [odd_window(length, 3.0 + 40 * number) for number, length in enumerate(lengths)]
    joined, total = join_windows(windows), sum(lengths)
    assert joined.window_s == pytest.approx(total)
    assert joined.wakeups_hz == pytest.approx(sum((w.wakeups_hz or 0) * (w.window_s or 0) for w in windows) / total)
    joules = sum(w.energy[0].joules or 0.0 for w in windows)
    assert joined.energy[0].joules == pytest.approx(joules)
    assert joined.energy[0].watts == pytest.approx(joules / total)


# Means of repeated windows.


def test_a_phase_has_the_means_of_its_windows() -> None:
    windows = [odd_window(FIRST_S, 3.0), odd_window(SECOND_S, 71.0), odd_window(4.0, 33.0)]
    phase = make_phase("idle", windows)
    for name in ("window_s", "c0_percent", "idle_percent", "wakeups_hz", "steal_percent"):
        assert getattr(phase, name) == pytest.approx(sum(getattr(w, name) for w in windows) / 3), name
    assert (phase.cpus, phase.windows) == (5, windows)
    for name in ("interrupts_hz", "context_switches_hz", "frequency_mhz", "wakeups_hz"):
        assert phase.intervals[name].mean == pytest.approx(sum(getattr(w, name) for w in windows) / 3), name
    shares = [w.states[1].residency_percent or 0.0 for w in windows]
    assert phase.intervals["residency_percent:C6"].mean == pytest.approx(sum(shares) / 3)
    (c1, _) = phase.states
    entries, time_us = sum(w.states[0].entries_count for w in windows), sum(w.states[0].time_us for w in windows)
    assert (c1.entries_count, c1.time_us) == (entries, pytest.approx(time_us))
    assert c1.average_residency_ms == pytest.approx(time_us / entries / 1000)
    for name in ("entries_hz", "above_hz", "below_hz", "rejected_hz", "polling_percent"):
        assert getattr(c1, name) == pytest.approx(sum(getattr(w.states[0], name) for w in windows) / 3), name
    assert phase.notes == ["note of 2 s", "common", "note of 6 s", "note of 4 s"]
    assert phase.system is not None
    joined = oslayer.join_os_rates(windows[0].system, 2.0, windows[1].system, 6.0)  # type: ignore[arg-type]
    assert phase.system == oslayer.join_os_rates(joined, 8.0, windows[2].system, 4.0)  # type: ignore[arg-type]


def test_a_state_counts_0_in_windows_that_did_not_enter_it_and_unknown_where_a_figure_is() -> None:
    with_c6, without = odd_window(2.0, 3.0), odd_window(2.0, 71.0)
    without = replace(without, states=without.states[:1])
    c6 = average_states([with_c6, without])[1]
    for name in ("residency_percent", "entries_hz", "above_hz"):
        assert getattr(c6, name) == pytest.approx(getattr(with_c6.states[1], name) / 2), name
    unknown = replace(with_c6, states=[replace(with_c6.states[0], residency_percent=None, above_hz=None)])
    c1 = average_states([unknown, without])[0]
    assert (c1.residency_percent, c1.above_hz) == (None, None)
    assert c1.entries_hz is not None
    assert make_phase("idle", [with_c6, replace(without, system=None)]).system is None


@pytest.mark.parametrize(("wakeups", "window_s", "rate_hz"), [(21, 6.0, 3.5), (None, 6.0, None), (21, None, None)])
def test_a_run_has_the_cost_of_powerprof(wakeups: int | None, window_s: float | None, rate_hz: float | None) -> None:
    window = replace(odd_window(6.0, 3.0), tool_wakeups_count=wakeups, window_s=window_s, tool_cpu_s=0.0042)
    run = make_run(window, host={})
    assert (run.tool.cpu_s, run.tool.wakeups_hz) == (0.0042, rate_hz)
    assert run.started_at == window.started_at and run.notes == window.notes


def test_a_group_has_its_share_of_all_cpus_known_or_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """CPU 1 enters no idle state, so its C0 is unknown, and its time still counts for the group."""
    cpus = FakeCpus(tmp_path / "sys", [[POLL, C1]] * 2)
    fake_stat(tmp_path / "proc", [(0, 0), (0, 0)])
    monkeypatch.setenv("POWERPROF_SYSFS", str(tmp_path / "sys"))
    monkeypatch.setenv("POWERPROF_PROCFS", str(tmp_path / "proc"))
    with WindowMeter(groups={"self": [os.getpid()]}) as meter:
        meter.open_window()
        cpus.add(0, 1, us=1000, usage=3)
        sum(range(2_000_000))
        window = meter.close_window()
    assert (window.cpus, window.unknown_cpus_count) == (1, 1)
    assert window.window_s is not None
    assert window.processes[0].percent == pytest.approx(100 * window.processes[0].cpu_s / (2 * window.window_s))
