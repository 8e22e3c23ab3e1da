# SPDX-License-Identifier: Apache-2.0
"""A CPU that goes and comes back: a running exporter leaves it out of that interval, samplers open it again."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from powerprof.attribution.profile import build_on_cpu_profile
from powerprof.live.monitor import HostMonitor, MonitorPlan
from powerprof.measure import cpuidle
from powerprof.measure.cpuidle import online_cpus
from powerprof.measure.window import OpenWindow
from powerprof.report.notes import word_notes
from powerprof.system.targets import resolve
from powerprof.tracing.idle import IdleTracer, WindowTracer, trace_exits
from powerprof.tracing.profile import OnCpuTracer

pytestmark = pytest.mark.alone  # judges the idleness or the speed of this host

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


@pytest.fixture(params=["driver", "no driver"])
def counters(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "no driver":
        monkeypatch.setattr(cpuidle, "_STATE", re.compile("no state"))


def test_a_cpu_that_goes_and_comes_back(unpluggable: None, counters: None) -> None:
    plan = MonitorPlan(target=resolve((), cgroup=None, system=True), interval_s=0.5, ask_servers=False, settle=False)
    with HostMonitor(plan, lambda _: None) as monitor:
        whole = monitor.next()
        switch(False)
        going, without = monitor.next(), monitor.next()
        switch(True)
        coming, again = monitor.next(), monitor.next()
    # A CPU that was away is one that we may run on again.
    assert LAST in os.sched_getaffinity(0)
    assert not [
        note for interval in (coming, again) for note in word_notes(interval.notes) if "outside our CPU set" in note
    ]
    assert [one.cpus for one in (whole, without, again)] == [whole.cpus, whole.cpus - 1, whole.cpus]
    said = f"CPU {LAST} came or went: left out of this interval"
    assert [said in one.notes for one in (whole, going, without, coming, again)] == [False, True, False, True, False]
    for one in (whole, going, without, coming, again):
        # What each CPU idled and ran is its time, also beside one that comes.
        idle_s = sum(seconds for (_, state), seconds in one.idle_s.items() if state not in one.polling)
        assert idle_s + one.c0_s == pytest.approx(one.window_s * one.cpus, rel=0.02)
        assert one.lost_count == 0
        assert sum(one.mechanisms.values()) == one.exits_count


def idles(tracer: IdleTracer) -> None:
    """Wait until the CPU has gone idle once more."""
    before = int(tracer.cpus.states()["period"]["sequence"][LAST])
    deadline = time.monotonic() + 60
    while int(tracer.cpus.states()["period"]["sequence"][LAST]) <= before + 1:
        assert time.monotonic() < deadline, "other programs left it no idle CPU"
        time.sleep(0.01)


def test_the_time_offline_is_nobody_s_running_time(unpluggable: None) -> None:
    """Whoever ran last before the CPU went did not run until it came back."""
    with trace_exits() as tracer, WindowTracer(tracer) as opened:
        running = OpenWindow(*opened.parts)
        idles(tracer)
        switch(False)
        gone_ns = time.monotonic_ns()
        time.sleep(1.0)
        switch(True)
        idles(tracer)
        window = opened.collect(running.end())
    mine = window.trace.sample[window.trace.sample["cpu"] == LAST]
    before = mine[(mine["exit_ns"] < gone_ns) & (mine["next_ns"] > 0)]
    after = mine[mine["enter_ns"] > gone_ns]
    assert len(before) and len(after)
    assert int(before["next_ns"].max()) <= gone_ns


@pytest.mark.cpuidle
def test_counters_that_began_again_are_not_compared(unpluggable: None) -> None:
    """They begin at 0 when the CPU comes back, and after a while they have passed their old values."""
    with trace_exits() as tracer, WindowTracer(tracer) as opened:
        for _ in range(3):
            running = OpenWindow(*opened.parts)
            switch(False)
            switch(True)
            for _ in range(5):
                idles(tracer)
            window = opened.collect(running.end())
            edge = window.edges[LAST]
            assert (edge.usage_delta_count, edge.traced_count > 0) == (None, True)
            (note,) = [note for note in word_notes(window.residency.notes) if "left out" in note]
            assert note.startswith(f"CPU {LAST}: ")


_WORK = """
import os, sys, time
print(flush=True)
sys.stdin.readline()
os.sched_setaffinity(0, {int(sys.argv[1])})
end = time.process_time() + 1.5
while time.process_time() < end:
    pass
print(flush=True)
sys.stdin.readline()
"""


def test_a_profile_has_the_work_on_a_cpu_that_came_back(unpluggable: None) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", _WORK, str(LAST)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdin is not None and process.stdout is not None
    try:
        process.stdout.readline()
        with OnCpuTracer([process.pid]) as tracer:
            window = OpenWindow(tracer)
            window.wait(0.3)
            switch(False)
            window.wait(0.3)
            switch(True)
            window.wait(0.3)
            process.stdin.write("\n")
            process.stdin.flush()
            window.wait(60.0, until=process.stdout.fileno())
            capture = tracer.collect(window.end())
        profile = build_on_cpu_profile(capture)
    finally:
        process.kill()
        process.communicate()
    assert profile.target_c0_ms == profile.clock_c0_ms == pytest.approx(1500, abs=30)
    assert profile.low_c0_ms is not None and profile.high_c0_ms is not None
    assert 0.9 * profile.low_c0_ms < 1500 < 1.1 * profile.high_c0_ms
    notes = word_notes(profile.notes)
    assert [note for note in notes if note.startswith(f"CPU {LAST} went offline or came back during the window")]
    assert not [note for note in notes if "by its CPU clock" in note]
