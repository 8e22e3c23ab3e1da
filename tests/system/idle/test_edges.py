# SPDX-License-Identifier: Apache-2.0
"""Edges of windows on this very host: no root, no BPF, and nothing of it left behind."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from powerprof.measure import procfs
from powerprof.measure.cpuidle import CpuidleReader
from powerprof.measure.idle_counters import Snapshot
from powerprof.measure.idle_edges import read_edge
from powerprof.measure.residency import compute_residency
from powerprof.model.records import Window
from tests.unit.measure.fake_cpu import C1, POLL, FakeCpus

pytestmark = pytest.mark.alone  # judges the idleness or the speed of this host

_BUSY = """
import time
while True:
    end = time.process_time() + 0.03
    while time.process_time() < end: pass
    time.sleep(0.07)
"""


def usage_delta(before: Snapshot, after: Snapshot) -> int:
    """Δusage of all states over the CPUs in both: the idle exits that the kernel counted, forced ones too."""
    both = sorted(set(before.cpus) & set(after.cpus))
    return sum(sum(after.cpus[cpu].usage) - sum(before.cpus[cpu].usage) for cpu in both)


@contextmanager
def thirty_percent(cpu: int) -> Iterator[int]:
    """A process that takes 30 ms of one CPU, sleeps 70 ms, and so on."""
    process = subprocess.Popen([sys.executable, "-c", _BUSY])
    try:
        os.sched_setaffinity(process.pid, {cpu})
        time.sleep(0.2)
        yield process.pid
    finally:
        process.kill()
        process.wait()


@pytest.fixture
def reader() -> Iterator[CpuidleReader]:
    with CpuidleReader() as reader:
        yield reader


def only(snapshot: Snapshot, cpu: int) -> Snapshot:
    return Snapshot({cpu: snapshot.cpus[cpu]})


def one_window(reader: CpuidleReader, seconds: float) -> tuple[Snapshot, Snapshot, Window]:
    before = read_edge(reader)
    time.sleep(seconds)
    after = read_edge(reader)
    return before, after, compute_residency(before, after, started_at="")


@pytest.mark.cpuidle
def test_affinity_is_as_before(reader: CpuidleReader) -> None:
    allowed = os.sched_getaffinity(0)
    snapshot = read_edge(reader)
    assert os.sched_getaffinity(0) == allowed
    assert all(reading.resolved for cpu, reading in snapshot.cpus.items() if cpu in allowed)


def test_affinity_is_restored_after_a_failure(tmp_path: Path) -> None:
    cpus = FakeCpus(tmp_path, [[POLL, C1]])
    with CpuidleReader(tmp_path) as reader:
        (cpus.state(0, 1) / "usage").unlink()
        (cpus.state(0, 1) / "usage").mkdir()
        allowed = os.sched_getaffinity(0)
        with pytest.raises(Exception, match="is a directory"):
            read_edge(reader)
    assert os.sched_getaffinity(0) == allowed


@pytest.mark.cpuidle
def test_states_never_sum_to_more_than_the_time(reader: CpuidleReader) -> None:
    """Plain differences overshoot by the length of an idle period, tens of milliseconds here; resolved ones by
    what the clocks of counter and window differ: 0.1 ms in 200 ms."""
    for _ in range(5):
        _, _, window = one_window(reader, 0.2)
        assert window.residual_percent is not None and window.residual_percent <= 0.05
        assert window.c0_percent is not None and 0.0 <= window.c0_percent <= 100.0


@pytest.mark.cpuidle
def test_a_known_load_is_seen_in_full(reader: CpuidleReader) -> None:
    """The CPU runs at least as long as our process did on it, and idles as long as the kernel's accounting says. The
    kernel is asked on both sides of each edge: however late a busy host reads, the truth lies in between.
    """
    cpu = max(reader.cpus)

    def accounted_s(pid: int) -> tuple[float, float]:
        used, stat = procfs.process_cpu_ns(pid), procfs.read_stat().cpus[cpu]
        assert used is not None
        return used / 1e9, stat["idle"] + stat["iowait"]

    with thirty_percent(cpu) as pid:
        outside = [accounted_s(pid)]
        before = read_edge(reader)
        inside = [accounted_s(pid)]
        time.sleep(1.5)
        inside.append(accounted_s(pid))
        after = read_edge(reader)
        outside.append(accounted_s(pid))
    window = compute_residency(only(before, cpu), only(after, cpu), started_at="")
    assert window.window_s and window.c0_percent is not None
    ran_s = inside[1][0] - inside[0][0]
    # 0.45 s where it is alone.
    assert ran_s > 0.1
    # A running process's time is brought to account by ticks of up to 10 ms.
    assert window.c0_percent / 100 * window.window_s >= ran_s - 0.012
    assert window.states[-1].residency_percent == pytest.approx(100.0 - window.c0_percent, abs=0.01)
    idle_s = window.states[-1].residency_percent / 100 * window.window_s
    polled_s = sum(state.polling_percent or 0.0 for state in window.states) / 100 * window.window_s
    # /proc/stat counts in ticks of 10 ms, and polling before sleep as idle time.
    assert inside[1][1] - inside[0][1] - polled_s - 0.02 <= idle_s <= outside[1][1] - outside[0][1] + 0.02


@pytest.mark.cpuidle
def test_exits_are_conserved(reader: CpuidleReader) -> None:
    """Every exit that the kernel counted is either a wake-up of the window or one that reading it caused."""
    before, after, window = one_window(reader, 0.3)
    assert window.window_s and window.wakeups_hz is not None
    counted = round(window.wakeups_hz * window.window_s) + window.edge_exits_count
    assert counted == usage_delta(before, after)
    # One forced exit a CPU, and one more where it slept again between the two readings of its counters.
    assert window.edge_exits_count <= 2 * len(reader.cpus)


def test_a_cpu_outside_of_our_set_is_noted(tmp_path: Path) -> None:
    """CPU 5000 is none that this process may run on, as in a container with a cpuset."""
    cpus = FakeCpus(tmp_path, [[POLL, C1]])
    (cpus.folder / "cpu0").rename(cpus.folder / "cpu5000")
    cpus.online([5000])
    with CpuidleReader(tmp_path) as reader:
        snapshot = read_edge(reader)
    assert not snapshot.cpus[5000].resolved
    assert snapshot.notes == ("CPU 5000 is outside our CPU set: its open idle periods are not resolved",)


def test_recorded_cpus_are_not_ours_to_wake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    FakeCpus(tmp_path, [[POLL, C1]])
    monkeypatch.setenv("POWERPROF_SYSFS", str(tmp_path))
    with CpuidleReader() as reader:
        snapshot = read_edge(reader)
    assert not snapshot.cpus[0].resolved
    assert snapshot.notes == ("recorded counters: open idle periods are not resolved",)
