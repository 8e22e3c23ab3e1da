# SPDX-License-Identifier: Apache-2.0
"""Repeated reads of a trace: each exit is in exactly one read, as cpuidle counts them."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator

import pytest

from powerprof.tracing import idle_program as build
from powerprof.tracing.idle import TracedWindow, trace_exits
from powerprof.tracing.monitor import TraceMonitor

pytestmark = pytest.mark.alone  # judges the idleness or the speed of this host


@pytest.fixture
def sleeps() -> Iterator[None]:
    """Run short-lived processes that sleep once. Each is a separate cause."""
    process = subprocess.Popen(["sh", "-c", "while :; do sleep 0.002; done"])
    try:
        yield
    finally:
        process.kill()
        process.wait()


def reads(monitor: TraceMonitor, count: int, every_s: float) -> list[TracedWindow]:
    found = []
    for _ in range(count):
        time.sleep(every_s)
        found.append(monitor.read())
    return found


def count_exits(windows: list[TracedWindow]) -> tuple[int, int]:
    """Return the exits by cause, lost ones included, and cpuidle's count or, without a driver, the CPUs' sums."""
    causes = sum(int(one.trace.causes["count"].sum()) + one.trace.lost_count for one in windows)
    edges = [edge for one in windows for edge in one.edges.values()]
    if all(edge.usage_delta_count is None for edge in edges):
        return causes, sum(edge.traced_count or 0 for edge in edges)
    return causes, sum(edge.usage_delta_count or 0 for edge in edges)


def test_every_exit_is_in_exactly_one_read(root_bpf: None, sleeps: None) -> None:
    with trace_exits() as tracer, TraceMonitor(tracer) as monitor:
        windows = reads(monitor, 6, 0.3)
    causes, counted = count_exits(windows)
    cpus = os.cpu_count() or 1
    assert abs(causes - counted) <= 0.01 * counted + 2 * cpus
    for one in windows:
        totals = int(one.trace.totals["count"].sum())
        assert int(one.trace.causes["count"].sum()) + one.trace.lost_count == pytest.approx(totals, abs=2 * cpus)
        assert one.window_s == pytest.approx(0.3, abs=0.25)
        assert one.residency.cpus == len(one.edges) == len(os.sched_getaffinity(0))


def test_a_table_is_emptied_before_it_fills(root_bpf: None, sleeps: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hundreds of processes pass a table of 300 entries without a loss if it is read often enough."""
    monkeypatch.setattr(build, "CAUSES", 300)
    with trace_exits() as tracer, TraceMonitor(tracer) as monitor:
        windows = reads(monitor, 30, 0.1)
    causes, counted = count_exits(windows)
    assert sum(one.trace.lost_count for one in windows) == 0
    assert abs(causes - counted) <= 0.01 * counted + 2 * (os.cpu_count() or 1)


def test_idle_and_running_time_are_the_wall_time_of_each_interval(root_bpf: None) -> None:
    """No CPU is woken for a read, and its open idle period counts."""
    with trace_exits() as tracer, TraceMonitor(tracer) as monitor:
        windows = reads(monitor, 8, 0.2)
    for one in windows:
        idle, c0 = one.residency.idle_percent, one.residency.c0_percent
        assert idle is not None
        assert c0 is not None
        assert one.stat_idle_percent is not None
        assert (one.residency.residual_percent or 0.0) < 2.0
    whole = sum((one.residency.idle_percent or 0.0) * one.window_s for one in windows) / sum(
        one.window_s for one in windows
    )
    by_kernel = sum((one.stat_idle_percent or 0.0) for one in windows) / len(windows)
    # /proc/stat counts in ticks of 10 ms or 4 ms, and calls iowait idle.
    assert whole == pytest.approx(by_kernel, abs=6.0)
