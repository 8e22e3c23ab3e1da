# SPDX-License-Identifier: Apache-2.0
"""A thread that is preempted has not gone to sleep, whatever it was about to do."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from powerprof.system.targets import resolve
from powerprof.tracing import idle_program
from powerprof.tracing.bpf import features
from powerprof.tracing.bpf.btf import read_kernel_btf
from powerprof.tracing.bpf.shared_numbers import Count
from powerprof.tracing.idle import trace_stacks
from powerprof.tracing.monitor import TraceMonitor

HERE = Path(__file__).parents[2] / "programs"
PREEMPTIONS = 10_000
_AT_MOST_S = 60.0


@pytest.fixture
def victim(tmp_path: Path) -> Iterator[int]:
    program = tmp_path / "preempted"
    subprocess.run(["cc", "-O1", "-o", program, HERE / "preempted.c"], check=True, timeout=60)
    cpu = max(os.sched_getaffinity(0))
    process = subprocess.Popen([program, str(cpu)], stdout=subprocess.PIPE, start_new_session=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        yield process.pid
    finally:
        os.killpg(process.pid, 9)
        process.wait()


def switches(pid: int) -> tuple[int, int]:
    """The kernel's own count: how often the thread went to sleep, and how often it was preempted or yielded."""
    found = dict(line.split(":\t", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines() if ":\t" in line)
    return int(found["voluntary_ctxt_switches"]), int(found["nonvoluntary_ctxt_switches"])


def test_ten_thousand_preemptions_are_no_sleep(root_bpf: None, victim: int, monkeypatch: pytest.MonkeyPatch) -> None:
    # It sleeps so often that it would be looked at only now and then.
    monkeypatch.setattr(idle_program, "LOADED_PER_100MS", 1 << 30)
    with trace_stacks(resolve([str(victim)], only=True)) as (tracer, _):
        # Both are read while the thread runs on: what it does in between is the tolerance.
        slept, preempted = switches(victim)
        counted = tracer.program.per_cpu_sum("counters")[Count.SLEEPS]
        deadline = time.monotonic() + _AT_MOST_S
        while switches(victim)[1] - preempted < PREEMPTIONS and time.monotonic() < deadline:
            time.sleep(0.5)
        found = tracer.program.per_cpu_sum("counters")[Count.SLEEPS] - counted
        now_slept, now_preempted = switches(victim)
    assert now_preempted - preempted >= PREEMPTIONS
    true_sleeps = now_slept - slept
    assert true_sleeps > 100
    # Of 10,000 preemptions one in a hundred would be 100 sleeps too many.
    assert found == pytest.approx(true_sleeps, abs=max(30, 0.002 * true_sleeps))


def looked_at(pid: int, seconds: float) -> tuple[int, int, set[tuple[int, int]]]:
    """Of a thread: how often the kernel says it slept, how often the tracer does, and at which sites."""
    with trace_stacks(resolve([str(pid)], only=True)) as (tracer, looks), TraceMonitor(tracer) as monitor:
        slept, counted = switches(pid)[0], tracer.program.per_cpu_sum("counters")[Count.SLEEPS]
        time.sleep(seconds)
        found = tracer.program.per_cpu_sum("counters")[Count.SLEEPS] - counted
        slept = switches(pid)[0] - slept
        monitor.read()
        return slept, found, {(site.ip, site.sp) for site in looks.collect().sites if site.tid == pid}


def test_older_kernels_helper_reads_the_same_as_fields(
    root_bpf: None, victim: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(idle_program, "LOADED_PER_100MS", 1 << 20)
    assert features.can_read_directly(read_kernel_btf())
    by_field = looked_at(victim, 1.0)
    monkeypatch.setattr(features, "can_read_directly", lambda btf: False)
    by_helper = looked_at(victim, 1.0)
    for slept, found, _ in (by_field, by_helper):
        assert found == pytest.approx(slept, abs=max(30, 0.02 * slept))
    assert by_field[2]
    assert by_field[2] == by_helper[2]
