# SPDX-License-Identifier: Apache-2.0
"""A CPU that goes and comes back under a running exporter: said, left out of that interval, measured again."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from powerprof.live.monitor import HostMonitor, MonitorPlan
from powerprof.processes.targets import resolve
from powerprof.sources.cpuidle import online_cpus

LAST = max(online_cpus())
SWITCH = Path(f"/sys/devices/system/cpu/cpu{LAST}/online")


def switch(on: bool) -> None:
    SWITCH.write_text(str(int(on)))
    deadline = time.monotonic() + 20
    while (LAST in online_cpus()) != on:
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.fixture
def unpluggable(root_bpf: None) -> Iterator[None]:
    """One CPU more than the last must be left, and the host must let it go."""
    if len(online_cpus()) < 2 or not SWITCH.exists():
        pytest.skip("no capability: a second CPU that can be taken offline")
    try:
        switch(False)
    except OSError as error:
        pytest.skip(f"no capability: taking a CPU offline ({error.strerror})")
    finally:
        switch(True)
    try:
        yield
    finally:
        switch(True)


def test_a_cpu_that_goes_and_comes_back(unpluggable: None) -> None:
    plan = MonitorPlan(target=resolve((), cgroup=None, system=True), interval_s=0.5, ask_servers=False, settle=False)
    with HostMonitor(plan, lambda _: None) as monitor:
        whole = monitor.next()
        switch(False)
        going, without = monitor.next(), monitor.next()
        switch(True)
        coming, again = monitor.next(), monitor.next()
    # A CPU that was away is one that we may run on again.
    assert LAST in os.sched_getaffinity(0)
    assert not [note for interval in (coming, again) for note in interval.notes if "outside our CPU set" in note]
    assert [one.cpus for one in (whole, without, again)] == [whole.cpus, whole.cpus - 1, whole.cpus]
    said = f"CPU {LAST} came or went: left out of this interval"
    assert [said in one.notes for one in (whole, going, without, coming, again)] == [False, True, False, True, False]
    for one in (whole, going, without, coming, again):
        # What each CPU idled and ran is its time, also beside one that comes.
        idle_s = sum(seconds for (_, state), seconds in one.idle_s.items() if state not in one.polling)
        assert idle_s + one.c0_s == pytest.approx(one.window_s * one.cpus, rel=0.02)
        assert one.lost_count == 0
        assert sum(one.mechanisms.values()) == one.exits_count
