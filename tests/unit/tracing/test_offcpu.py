# SPDX-License-Identifier: Apache-2.0
"""The kernel's tables of sleeps and wakings as rows of threads."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from powerprof.measure.window import PassedWindow
from powerprof.tracing import offcpu
from powerprof.tracing.bpf.shared_numbers import OffCpuReason
from tests.unit.tracing.programs import entry, thread_key, tracer

OWN = 4711
PASSED = PassedWindow(2.5, 0.25, 5, ["a note"])


@pytest.fixture(autouse=True)
def own_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offcpu, "own_pids", lambda: frozenset({OWN}))


def sleeps(**more: Any) -> bytes:
    counts, times = np.zeros(8, "<u8"), np.zeros(8, "<u8")
    for number, reason in enumerate(OffCpuReason, 1):
        counts[reason], times[reason] = 3 * number, 1_000 * number
    counts[OffCpuReason.KILLABLE] = 0
    values = {"counts": counts, "off_ns": times, "sleep_max_ns": 21, "waits": 22, "wait_ns": 23, "wait_max_ns": 24}
    return entry(offcpu._THREAD, comm=b"worker", **(values | more))


def test_rows_of_threads_and_wakers() -> None:
    threads = {np.uint64(thread_key(71)).tobytes(): sleeps(), np.uint64(thread_key(72, OWN)).tobytes(): sleeps()}
    wakers = {
        entry(offcpu._WAKER_KEY, sleeper=thread_key(71), waker=thread_key(81, 80)): entry(
            offcpu._WAKER, count=31, comm=b"client"
        ),
        entry(offcpu._WAKER_KEY, sleeper=thread_key(71), waker=0): entry(offcpu._WAKER, count=32),
        entry(offcpu._WAKER_KEY, sleeper=thread_key(71), waker=thread_key(82, OWN)): entry(
            offcpu._WAKER, count=33, comm=b"python"
        ),
        entry(offcpu._WAKER_KEY, sleeper=thread_key(72, OWN), waker=thread_key(81, 80)): entry(
            offcpu._WAKER, count=34, comm=b"client"
        ),
    }
    trace = tracer(offcpu.OffCpuTracer, {"threads": threads, "wakers": wakers}).collect(PASSED)
    (row,) = trace.threads
    assert (row.pid, row.tid, row.comm) == (70, 71, "worker")
    assert row.states == {
        "interruptible": (3, 1_000),
        "uninterruptible": (6, 2_000),
        "idle": (12, 4_000),
        "other": (15, 5_000),
    }
    assert (row.sleep_max_ns, row.waits_count, row.wait_ns, row.wait_max_ns) == (21, 22, 23, 24)
    assert (row.preempted_count, row.preempted_ns) == (18, 6_000)
    assert [(each.tid, each.waker_pid, each.waker_tid, each.waker_comm, each.count) for each in trace.wakings] == [
        (71, 80, 81, "client", 31),
        (71, 0, 0, "interrupt", 32),
        (71, OWN, 82, "python", 33),
    ]
    assert (trace.lost_count, trace.unseen_count, trace.window_s, trace.notes) == (6, 8, 2.5, ["a note"])
    assert trace.bpf_s == pytest.approx(0.3) and trace.tool_cpu_s >= 0.25 and trace.ended is None


@pytest.mark.parametrize(("before_s", "now_s"), [(None, 0.75), (0.45, None)])
def test_time_of_a_program_that_the_kernel_does_not_count(before_s: float | None, now_s: float | None) -> None:
    made = tracer(offcpu.OffCpuTracer, {}, _ran_s=before_s)
    made._program.run_s = now_s
    assert made.bpf_s() is None
