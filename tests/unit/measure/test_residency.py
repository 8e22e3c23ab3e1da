# SPDX-License-Identifier: Apache-2.0
"""Residencies from two snapshots, and from recordings of other machines."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from powerprof.measure.cpuidle import CpuidleReader
from powerprof.measure.idle_counters import CpuReading, Snapshot, StateInfo
from powerprof.measure.residency import _add_cpu, _Sums, compute_residency
from powerprof.measure.residency_recordings import read_recording
from powerprof.measure.residency_sources import ProcfsResidency
from powerprof.model.records import StateResidency, Window
from powerprof.system.errors import UsageError
from tests.unit.measure.fake_cpu import C1, C6, POLL, FakeCpus, fake_stat

SECOND = 1_000_000


def between(cpus: FakeCpus, happens: Callable[[], None], seconds: float | None = 1.0) -> Window:
    """One window over a fake tree, `seconds` long on every CPU, all idle periods resolved."""
    with CpuidleReader(cpus.root) as reader:
        before = reader.snapshot()
        happens()
        after = reader.snapshot()
    return compute_residency(at(before, 0.0), at(after, seconds), started_at="2026-01-01T00:00:00Z")


def at(snapshot: Snapshot, seconds: float | None) -> Snapshot:
    at_ns = None if seconds is None else int(seconds * 1e9)
    return Snapshot(
        {cpu: replace(reading, at_ns=at_ns, resolved=True) for cpu, reading in snapshot.cpus.items()}, snapshot.notes
    )


def state(window: Window, name: str) -> StateResidency:
    return next(item for item in window.states if item.name == name)


def total(window: Window) -> float:
    return sum(item.residency_percent or 0.0 for item in window.states) + (window.c0_percent or 0.0)


def test_polling_counts_as_running(tmp_path: Path) -> None:
    """60 % of the time in the polling loop saves nothing: C0 is 70 %, and all of it still sums to 100."""
    cpus = FakeCpus(tmp_path, [[POLL, C1]])

    def poll() -> None:
        cpus.add(0, 0, us=600_000, usage=1000)
        cpus.add(0, 1, us=300_000, usage=10)

    window = between(cpus, poll)
    polling = state(window, "POLL")
    assert window.c0_percent == pytest.approx(70.0)
    assert (polling.polling, polling.residency_percent) == (True, 0.0)
    assert polling.polling_percent == pytest.approx(60.0)
    assert polling.average_residency_ms == pytest.approx(0.6)
    assert total(window) == pytest.approx(100.0)
    assert window.wakeups_hz == pytest.approx(1010.0)


def test_states_are_merged_by_name_over_unlike_cpus(tmp_path: Path) -> None:
    cpus = FakeCpus(tmp_path, [[POLL, C1, C6], [POLL, C6]])

    def idle() -> None:
        cpus.add(0, 2, us=SECOND, usage=1)
        cpus.add(1, 1, us=SECOND // 2, usage=1)

    window = between(cpus, idle)
    assert [item.name for item in window.states] == ["POLL", "C1", "C6"]
    assert state(window, "C6").residency_percent == pytest.approx(75.0)


def test_an_offline_cpu_is_left_out_with_a_note(tmp_path: Path) -> None:
    cpus = FakeCpus(tmp_path, [[POLL, C1]] * 2)

    def unplug() -> None:
        cpus.add(0, 1, us=990_000, usage=5)
        cpus.online([0])

    window = between(cpus, unplug)
    assert (window.cpus, window.c0_percent) == (1, pytest.approx(1.0))
    assert window.notes == ["CPU 1 came or went during the window: left out"]


def test_counters_that_went_back_are_left_out_with_a_note(tmp_path: Path) -> None:
    """A driver that was loaded again starts at 0."""
    cpus = FakeCpus(tmp_path, [[POLL, C1]] * 2)
    cpus.add(1, 1, us=500, usage=5)

    def reset() -> None:
        cpus.add(0, 1, us=SECOND, usage=5)
        cpus.add(1, 1, us=-400, usage=1)

    window = between(cpus, reset)
    assert window.cpus == 1
    assert window.notes == ["CPU 1: the counters of C1 went backwards: left out"]


@pytest.mark.parametrize("grown", [0, 5, 18, 900])
def test_a_cpu_that_was_away_is_left_out_however_far_its_new_counters_have_grown(tmp_path: Path, grown: int) -> None:
    """33 exits were traced and 18 counted: the counters had begun again, and had passed their old values."""
    cpus = FakeCpus(tmp_path, [[POLL, C1]] * 2)
    cpus.add(1, 1, us=500, usage=5)

    def go_and_come_back() -> None:
        cpus.add(0, 1, us=SECOND, usage=5)
        cpus.remake(1)
        cpus.add(1, 1, us=500 * grown, usage=grown)

    window = between(cpus, go_and_come_back)
    assert (window.cpus, window.wakeups_hz) == (1, 5.0)
    (note,) = window.notes
    assert note == "CPU 1: it went offline and came back, or its idle driver or governor changed: left out"


STATES = (StateInfo("POLL", True), StateInfo("C1", False))


def reading(
    at_s: float | None, time_us: int, usage: int, *, cpu: int = 0, resolved: bool = True, forced: Sequence[int] = ()
) -> CpuReading:
    none = (None, None)
    at_ns = None if at_s is None else int(at_s * 1e9)
    return CpuReading(cpu, at_ns, STATES, (0, time_us), (0, usage), none, none, none, resolved, tuple(forced))


def window_of(before: Sequence[CpuReading], after: Sequence[CpuReading], elapsed_s: float | None = None) -> Window:
    snapshots = [Snapshot({item.cpu: item for item in items}) for items in (before, after)]
    return compute_residency(snapshots[0], snapshots[1], started_at="", elapsed_s=elapsed_s)


def test_each_cpu_has_a_window_of_its_own() -> None:
    """The edges are taken one CPU after the other: 1 s and 3 s here."""
    before = [reading(0, 0, 0), reading(0, 0, 0, cpu=1)]
    after = [reading(1, SECOND, 5), reading(3, 0, 1, cpu=1)]
    window = window_of(before, after)
    assert (window.window_s, window.c0_percent) == (2.0, 75.0)


def test_a_sleeping_cpu_is_never_called_busy() -> None:
    """Unresolved, and no exit in between: it slept all the time or it ran all the time. It does not count."""
    before = [reading(0, 0, 0, resolved=False), reading(0, 7, 3, cpu=1, resolved=False)]
    after = [reading(1, 980_000, 40, resolved=False), reading(1, 7, 3, cpu=1, resolved=False)]
    window = window_of(before, after)
    assert (window.cpus, window.c0_percent) == (1, pytest.approx(2.0))
    assert "CPU 1 entered and left no idle state (asleep or busy throughout): left out" in window.notes


def test_more_idle_than_time_is_reported_not_hidden() -> None:
    """An idle period that began 30 ms before the window ended in it."""
    window = window_of([reading(0, 0, 0, resolved=False)], [reading(1, 1_030_000, 20, resolved=False)])
    assert (window.c0_percent, window.idle_percent) == (0.0, 100.0)
    assert window.residual_percent == pytest.approx(3.0)
    assert state(window, "C1").residency_percent == pytest.approx(103.0)


def test_no_cpu_in_both_is_unknown_not_zero() -> None:
    window = window_of([reading(0, 0, 0)], [reading(1, 0, 0, cpu=1)])
    assert (window.c0_percent, window.idle_percent, window.wakeups_hz, window.states) == (None, None, None, [])
    assert window.notes[-1] == "no CPU with idle counters at both ends"


LOG = (
    "\t".join(
        [
            "Time_Of_Day_Seconds",
            "Core",
            "CPU",
            "Busy%",
            "Bzy_MHz",
            "POLL",
            "C1",
            "C6",
            "POLL%",
            "C1%",
            "C6%",
            "CPU%c6",
            "Pkg%pc6",
        ]
    )
    + """
100.0\t-\t-\t5.00\t2000\t5\t15\t10\t0.50\t20.00\t70.00\t60.00\t30.00
100.0\t0\t0\t6.00\t2000\t10\t10\t10\t1.00\t10.00\t80.00\t60.00\t30.00
100.0\t1\t1\t4.00\t2000\t0\t20\t10\t0.00\t30.00\t60.00\t60.00
"""
)


def shares(window: Window) -> dict[str, float]:
    return {state.name: state.residency_percent or 0.0 for state in window.states}


@pytest.mark.parametrize("machine", ["genoa0", "bdwup0", "adl0"])
def test_every_state_agrees_with_turbostat_within_a_point(recordings: Path, machine: str) -> None:
    """The dumps carry no wall time: these are shares of the idle time (C0 is 0.2 to 0.8 % of these machines).

    Largest differences: genoa0 C1 +0.5, bdwup0 C6 +0.7, adl0 C8 +0.2 points.
    """
    folder = recordings / machine
    dumps = read_recording(
        folder / "sys-cpuidle.before.raw.txt",
        folder / "sys-cpuidle.after.raw.txt",
        source=None,
        elapsed_s=None,
        read_at="",
    ).window
    log = read_recording(folder / "turbostat.raw.txt", None, source=None, elapsed_s=None, read_at="").window
    assert (dumps.c0_percent, dumps.percent_of) == (None, "idle_time")
    assert log.residency_source == "turbostat"
    assert set(shares(dumps)) == set(shares(log))
    for name, share in shares(log).items():
        assert shares(dumps)[name] == pytest.approx(share, abs=1.0), name


def test_c2_of_the_idle_epyc(recordings: Path) -> None:
    folder = recordings / "genoa0"
    window = read_recording(
        folder / "sys-cpuidle.before.raw.txt",
        folder / "sys-cpuidle.after.raw.txt",
        source="cpuidle",
        elapsed_s=None,
        read_at="",
    ).window
    assert window.cpus == 128
    assert shares(window)["C2"] == pytest.approx(98.81, abs=0.01)
    assert {state.name: state.entries_count for state in window.states} == {"POLL": 2455, "C1": 721249, "C2": 52102}


def test_with_the_wall_time_c0_is_known(recordings: Path) -> None:
    folder = recordings / "genoa0"
    window = read_recording(
        folder / "sys-cpuidle.before.raw.txt",
        folder / "sys-cpuidle.after.raw.txt",
        source=None,
        elapsed_s=140.0,
        read_at="",
    ).window
    assert window.c0_percent is not None and window.percent_of == "wall_time"
    assert sum(shares(window).values()) + window.c0_percent == pytest.approx(100.0)
    assert any(note.startswith("idle periods open at the edges of 128 CPUs") for note in window.notes)


def test_the_same_dump_twice_is_since_boot(recordings: Path) -> None:
    path = recordings / "sysfs-trees/lnl0-cpuidle.txt"
    once = read_recording(path, None, source=None, elapsed_s=None, read_at="")
    assert read_recording(path, path, source=None, elapsed_s=None, read_at="") == once
    assert once.window.notes[0] == "only one snapshot: the figures are those since boot"
    assert once.driver == "intel_idle, governor menu"


def test_a_source_that_does_not_fit_two_dumps(tmp_path: Path) -> None:
    for source in ("turbostat", "powertop", "procfs"):
        with pytest.raises(UsageError):
            read_recording(tmp_path, tmp_path, source=source, elapsed_s=None, read_at="")
    (tmp_path / "log").write_text(LOG)
    with pytest.raises(UsageError, match="a turbostat log has its own times"):
        read_recording(tmp_path / "log", None, source=None, elapsed_s=3.0, read_at="")


def test_an_elapsed_time_shorter_than_the_idle_time_is_not_used(tmp_path: Path) -> None:
    cpus = FakeCpus(tmp_path / "sys", [[POLL, C1, C6]] * 2)
    for name in ("before", "after"):
        (tmp_path / name).write_text(cpus.dump(bar=True))
        cpus.add(0, 1, us=4 * SECOND, usage=10)
        cpus.add(1, 2, us=12 * SECOND, usage=30)

    def read(elapsed_s: float) -> Window:
        return read_recording(
            tmp_path / "before", tmp_path / "after", source=None, elapsed_s=elapsed_s, read_at=""
        ).window

    assert read(10.0).c0_percent == pytest.approx(20.0)
    short = read(4.0)
    assert (short.c0_percent, short.wakeups_hz, short.percent_of) == (None, None, "idle_time")
    assert shares(short) == {"POLL": 0.0, "C1": 25.0, "C6": 75.0}
    assert short.notes[0] == "--elapsed is not used: the CPUs would have been idle for 200 % of these 4 s"


def test_a_cpu_idle_for_longer_than_its_window_is_left_out(tmp_path: Path) -> None:
    cpus = FakeCpus(tmp_path, [[POLL, C1]] * 2)

    def idle() -> None:
        cpus.add(0, 1, us=900_000, usage=10)
        cpus.add(1, 1, us=90_000_000, usage=10)

    window = between(cpus, idle)
    assert (window.c0_percent, window.cpus, window.unknown_cpus_count) == (pytest.approx(10.0), 1, 1)
    assert "CPU 1: its idle time grew by more than the time that passed: left out" in window.notes


# Two CPUs with every counter moving differently, windows of their own length, exits by reading, one CPU asleep.
ODD_STATES = (StateInfo("POLL", True), StateInfo("C1", False), StateInfo("C6", False))


def odd_reading(cpu: int, at_s: float, start: int, *, forced: Sequence[int] = (), stand: bool = False) -> CpuReading:
    """Return counters that have grown to `start`, each at its own pace."""
    time_us = tuple(1000 * start * n for n in (3, 70, 110))
    usage = tuple((0 if stand else start) * n for n in (2, 5, 9))
    above, below, rejected = (tuple(start * n for n in row) for row in ((0, 1, 4), (0, 3, 2), (6, 7, 8)))
    return CpuReading(
        cpu, int(at_s * 1e9), ODD_STATES, time_us, usage, above, below, rejected, not stand, tuple(forced)
    )


def test_every_counter_has_its_own_rate() -> None:
    before = [odd_reading(0, 10.0, 11), odd_reading(1, 10.5, 23), odd_reading(2, 10.0, 4, stand=True)]
    after = [
        odd_reading(0, 16.0, 19, forced=(0, 1, 2)),
        odd_reading(1, 16.5, 35, forced=(1, 0, 1)),
        odd_reading(2, 16.0, 4, stand=True),
    ]
    window = window_of(before, after)
    # 8 and 12 steps over 12 CPU seconds.
    assert (window.window_s, window.cpus, window.unknown_cpus_count, window.edge_exits_count) == (6.0, 2, 1, 5)
    idle_us = 20 * 1000 * (70 + 110)
    assert window.idle_percent == pytest.approx(100 * idle_us / 12e6)
    assert window.c0_percent == pytest.approx(100 - 100 * idle_us / 12e6)
    assert window.wakeups_hz == pytest.approx((20 * (2 + 5 + 9) - 5) / 6)
    assert total(window) == pytest.approx(100.0)
    forced = {"POLL": 1, "C1": 1, "C6": 3}
    for name, us, entries, above, below, rejected in (
        ("POLL", 3000, 2, 0, 0, 6),
        ("C1", 70_000, 5, 1, 3, 7),
        ("C6", 110_000, 9, 4, 2, 8),
    ):
        item, count = state(window, name), 20 * entries - forced[name]
        assert (item.time_us, item.entries_count) == (20 * us, count)
        assert item.average_residency_ms == pytest.approx(20 * us / count / 1000)
        assert item.entries_hz == pytest.approx(count / 6)
        assert (item.above_hz, item.below_hz, item.rejected_hz) == pytest.approx(
            (20 * above / 6, 20 * below / 6, 20 * rejected / 6)
        )
        percent = 100 * 20 * us / 12e6
        assert item.residency_percent == pytest.approx(0.0 if name == "POLL" else percent)
        assert item.polling_percent == (pytest.approx(percent) if name == "POLL" else None)


@pytest.mark.parametrize("name", ["above", "below", "rejected"])
def test_a_counter_that_one_edge_lacks_has_no_rate(name: str) -> None:
    before, after = odd_reading(0, 1.0, 11), odd_reading(0, 3.0, 19)
    for a, b in ((replace(before, **{name: (None,) * 3}), after), (before, replace(after, **{name: (None,) * 3}))):
        item = state(window_of([a], [b]), "C6")
        rates = {key: getattr(item, f"{key}_hz") for key in ("above", "below", "rejected")}
        assert [key for key, rate in rates.items() if rate is None] == [name]


@given(
    st.lists(st.tuples(st.integers(1, 50), st.integers(1, 50), st.floats(10.0, 90.0)), min_size=1, max_size=5),
    st.integers(2, 9),
)
def test_residencies_and_c0_sum_to_100_and_scale(cpus: list[tuple[int, int, float]], factor: int) -> None:
    def window(times: int) -> Window:
        before = [odd_reading(n, 10.0, start) for n, (start, _, _) in enumerate(cpus)]
        after = [odd_reading(n, 10.0 + times * s, start + times * steps) for n, (start, steps, s) in enumerate(cpus)]
        return window_of(before, after)

    one, many = window(1), window(factor)
    assert total(one) == pytest.approx(100.0)
    assert one.wakeups_hz == pytest.approx(sum(item.entries_hz or 0.0 for item in one.states))
    for name in ("c0_percent", "idle_percent", "wakeups_hz"):
        assert getattr(many, name) == pytest.approx(getattr(one, name), rel=1e-6), name
    assert many.window_s == pytest.approx(factor * (one.window_s or 0.0))
    for a, b in zip(one.states, many.states, strict=True):
        assert b.entries_count == factor * a.entries_count
        assert b.average_residency_ms == pytest.approx(a.average_residency_ms)


def test_open_idle_periods_bound_the_error_of_c0() -> None:
    before, after = odd_reading(0, 10.0, 11), odd_reading(0, 16.0, 19)
    window = window_of([replace(before, resolved=False)], [replace(after, resolved=False)])
    # Twice the average period of 8 · 183 ms in 8 · 16 exits, of 6 s: 0.38 points.
    assert window.notes == ["idle periods open at the edges of CPU 0 are not resolved: about ±0.38 points of C0"]


def test_two_readings_without_times_need_the_elapsed_one() -> None:
    before, after = (replace(odd_reading(0, 0.0, start), at_ns=None) for start in (11, 19))
    shares = window_of([before], [after])
    assert (shares.c0_percent, shares.percent_of, shares.window_s) == (None, "idle_time", None)
    assert state(shares, "C6").residency_percent == pytest.approx(100 * 110 / 180)
    assert state(shares, "C6").entries_hz is None and shares.wakeups_hz is None
    known = window_of([before], [after], elapsed_s=4.0)
    assert (known.window_s, known.percent_of) == (4.0, "wall_time")
    assert state(known, "C6").residency_percent == pytest.approx(100 * 0.88 / 4)
    assert known.wakeups_hz == pytest.approx(8 * 16 / 4)
    short = window_of([before], [after], elapsed_s=1.2)
    assert (short.c0_percent, short.residual_percent) == (0.0, pytest.approx(100 * 1.44 / 1.2 - 100))


def test_a_host_without_a_driver_counts_the_wake_ups_of_both_edges(fake_host: Path) -> None:
    counts = iter([{0: 1000, 1: 50, 2: 7}, {0: 1090, 1: 80, 3: 9000}])

    class Events:
        def read(self) -> dict[int, int]:
            return next(counts)

    source = ProcfsResidency(("a note",), events=Events())  # type: ignore[arg-type]
    source.start(None)
    source.stop()
    window = source.finish("")
    assert window.window_s is not None
    assert window.wakeups_hz == pytest.approx((90 + 30) / window.window_s)
    assert (window.residency_source, window.notes[0]) == ("procfs", "a note")


@pytest.fixture
def fake_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    fake_stat(tmp_path, [(10, 90), (30, 70)])
    monkeypatch.setenv("POWERPROF_PROCFS", str(tmp_path))
    return tmp_path


def test_a_single_dump_has_the_figures_since_boot(tmp_path: Path) -> None:
    cpus = FakeCpus(tmp_path, [[POLL, C1, C6]])
    cpus.add(0, 1, us=3_000_000, usage=40, above=6)
    cpus.add(0, 2, us=5_000_000, usage=10, below=4)
    dump = tmp_path / "dump.txt"
    dump.write_text(cpus.dump())
    window = read_recording(dump, None, source=None, elapsed_s=20.0, read_at="").window
    assert (window.c0_percent, window.wakeups_hz) == (pytest.approx(60.0), pytest.approx(50 / 20))
    assert [item.entries_count for item in window.states] == [0, 40, 10]
    assert [(item.above_hz, item.below_hz) for item in window.states[1:]] == [(0.3, 0.0), (0.0, 0.2)]


@pytest.mark.parametrize("seed", range(10))
def test_the_time_of_the_cpus_and_the_bound_of_open_periods_add_up(seed: int) -> None:
    """Each unresolved CPU may hide a period of average length at both edges."""
    draw = random.Random(seed)
    sums, bound_us, wall_us = _Sums(), 0.0, 0.0
    for cpu in range(5):
        seconds, idle_us, exits = draw.uniform(1, 5), draw.randint(1, 900_000), draw.randint(1, 90)
        is_resolved = draw.random() < 0.5
        old, new = reading(1.0, 0, 0, cpu=cpu), reading(1.0 + seconds, idle_us, exits, cpu=cpu)
        _add_cpu(sums, old, new, None, is_resolved)
        wall_us += seconds * 1e6
        bound_us += 0.0 if is_resolved else 2.0 * idle_us / exits
    assert sums.wall_us == pytest.approx(wall_us)
    assert sums.unresolved_us == pytest.approx(bound_us)
    assert len(sums.cpus) == 5
