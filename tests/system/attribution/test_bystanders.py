# SPDX-License-Identifier: Apache-2.0
"""Blame stays off bystanders: who was interrupted woke nobody, who was throttled did not sleep, children count."""

from __future__ import annotations

import os
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
import pytest

from powerprof.measure.window import read_group_cpu_ns
from powerprof.system.programs import start, stop
from powerprof.system.targets import cgroup_pids
from powerprof.system.tasks import read_switches
from tests.system.attribution.conftest import Attributed, compile_c, running

Attribute = Callable[..., Attributed]
_RPS = Path("/sys/class/net/lo/queues/rx-0/rps_cpus")
_WINDOWS = 5


@pytest.fixture(scope="module")
def program(programs_dir: Path) -> Path:
    """bystanders.c, compiled."""
    return compile_c("bystanders", programs_dir)


@contextmanager
def cgroup(name: str, pid: int | None = None, quota_us: int | None = None) -> Iterator[Path]:
    """A control group of either version, where CPU time can be limited, with one process in it."""
    first = Path("/sys/fs/cgroup/cpu")
    folder = (first if first.is_dir() else Path("/sys/fs/cgroup")) / f"{name}-{os.getpid()}"
    folder.mkdir()
    try:
        if quota_us is not None and (folder / "cpu.cfs_quota_us").exists():
            (folder / "cpu.cfs_period_us").write_text("50000")
            (folder / "cpu.cfs_quota_us").write_text(str(quota_us))
        elif quota_us is not None:
            (folder.parent / "cgroup.subtree_control").write_text("+cpu")
            (folder / "cpu.max").write_text(f"{quota_us} 50000")
        if pid is not None:
            (folder / "cgroup.procs").write_text(str(pid))
        yield folder
    finally:
        while left := (folder / "cgroup.procs").read_text().split():
            for line in left:
                with suppress(ProcessLookupError):  # its children end all the time
                    (folder.parent / "cgroup.procs").write_text(line)
        folder.rmdir()


@pytest.fixture
def steered() -> Iterator[int]:
    """Packets of the loopback device are handled on the last CPU."""
    before, cpu = _RPS.read_text(), max(os.sched_getaffinity(0))
    _RPS.write_text(f"{1 << cpu:x}")
    try:
        yield cpu
    finally:
        _RPS.write_text(before)


def test_softirq_wakings_are_not_blamed_on_the_interrupted_thread(
    attribute: Attribute, program: Path, steered: int
) -> None:
    """An IPI makes the spinner's CPU handle packets on its way out: who spins there wakes nobody."""
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("needs two CPUs")
    with running(program, "rps", 1000, steered, min(os.sched_getaffinity(0))) as found:
        window = attribute(found["pid"], duration=2)
    origins, by_spinner = Counter[str](), 0
    for row in window.rows:
        if row["thread"]["tid"] == found["receiver"]:
            origins[row["origin"]] += row["wakings_count"]
            by_spinner += row["wakings_count"] * (row["waker"] is not None and row["waker"]["tid"] == found["spinner"])
    assert origins.total() > 200
    assert by_spinner == 0
    assert origins["device"] + origins["kernel"] >= 0.99 * origins.total()
    # Where the spinner stood at each of them is no cause. Exits of other programs have causes, too.
    entries = window.captured.cause_entries()
    causes = entries[(entries["next_tid"] == found["receiver"]) | (entries["waker_tid"] == found["spinner"])]
    assert len(causes) < 50
    assert not [waking for waking in window.captured.wakings if waking.waker_tid == found["spinner"]]


@pytest.mark.alone  # it needs an idle CPU
def test_throttled_thread_has_no_wakings(attribute: Attribute, program: Path) -> None:
    """Runnable all the time, it runs when its quota is refilled: exits of their own class, no wakings, no site."""
    with running(program, "spin") as found, cgroup("throttled", found["pid"], 15_000):
        for _ in range(_WINDOWS):
            before = read_switches(found["pid"])[found["pid"]]
            window = attribute(found["pid"], duration=3)
            slept = read_switches(found["pid"])[found["pid"]] - before
            assert sum(row["wakings_count"] for row in window.rows) <= slept
            assert {row["origin"] for row in window.record["wakeups"] if row["stack"]} <= (
                {"own_timer", "other_process", "kernel"} if slept else set()
            )
            runnable = [row for row in window.record["wakeups"] if row["origin"] == "runnable"]
            if window.record["wakeups"]:
                assert (
                    sum(row["count"] for row in runnable)
                    >= sum(row["count"] for row in window.record["wakeups"]) - slept
                )
                break  # other programs left it an idle CPU
    if not window.record["wakeups"]:
        pytest.fail("other programs left it no idle CPU in any window")
    assert all(row["detail"] == "throttled or moved" and row["waker"] is None for row in runnable)


def _noted(window: Attributed, notes: Path) -> int:
    at, captured = np.fromfile(notes, dtype="<i8"), window.captured
    return int(np.sum((at >= captured.counted_from_ns) & (at <= captured.counted_to_ns)))


def _at(window: Attributed, function: str) -> tuple[int, set[str]]:
    """Wakings where the stack has a function, and the programs whose threads those were."""
    rows = [row for row in window.rows if function in {frame["function"] for frame in row["stack"]}]
    return sum(row["wakings_count"] for row in rows), {row["thread"]["process"] for row in rows}


@pytest.mark.parametrize(
    ("how", "who", "sleeps"), [("by name", "family", 25), ("by name", "alone", 2), ("by cgroup", "family", 25)]
)
def test_short_lived_children_are_members(
    attribute: Attribute, program: Path, tmp_path: Path, how: str, who: str, sleeps: int
) -> None:
    """Four children a second that live for 150 ms: each is of the target from its first sleep on. Where they live for
    10 ms there is mostly none when a server that is alone otherwise is looked for."""
    notes = tmp_path / "notes"
    with running(program, who, notes, 4, sleeps) as found:
        if how == "by name":
            window = attribute("bystanders", duration=4)
        else:
            with cgroup("family", found["pid"]) as folder:
                window = attribute(folder, duration=4, by="--cgroup")
    noted = _noted(window, notes)
    assert noted > 8 * sleeps
    wakings, programs = _at(window, "short_sleep")
    traced = (found["pid"], window.record["target"]["pids"], window.record["notes"])
    assert wakings == pytest.approx(noted, rel=0.02, abs=3), traced
    assert programs == {"bystanders"}


@pytest.fixture
def counting_group() -> Iterator[Path]:
    """A control group whose CPU time is counted, of either version."""
    for root in ("cpuacct", "unified", "."):
        parent = Path("/sys/fs/cgroup") / root
        if parent.is_dir():
            folder = Path(tempfile.mkdtemp(prefix="visited-", dir=parent))
            if read_group_cpu_ns(folder) is not None:
                break
            folder.rmdir()
    else:
        pytest.fail("this host counts no group's CPU time")
    yield folder
    for pid in cgroup_pids(folder):
        with suppress(ProcessLookupError):
            os.kill(pid, 9)
    while cgroup_pids(folder):
        time.sleep(0.02)
    folder.rmdir()


@pytest.mark.parametrize("visits", [True, False])
def test_unseen_processes_of_a_group_have_a_note(attribute: Attribute, counting_group: Path, visits: bool) -> None:
    """As a container's health check: moved into the group, and over in half a second. What stays is seen."""
    enters = f"echo $$ > {counting_group}/cgroup.procs"
    works = "i=0; while [ $i -lt 60000 ]; do i=$((i + 1)); done"
    stays = start(["sh", "-c", f"{enters}; while :; do {works}; sleep 0.3; done"], measured=True)
    comes = (
        start(["sh", "-c", f"while :; do sh -c '{enters}; {works}'; sleep 0.2; done"], measured=True)
        if visits
        else None
    )
    try:
        while not cgroup_pids(counting_group):
            time.sleep(0.02)
        window = attribute(counting_group, duration=3, by="--cgroup")
    finally:
        for process in filter(None, (stays, comes)):
            stop(process)
    said = [note for note in window.record["notes"] if "joined it and ended unobserved" in note]
    assert len(said) == visits
