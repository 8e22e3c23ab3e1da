# SPDX-License-Identifier: Apache-2.0
"""Sums over slices of sleeps, system calls and calls of functions, and the truth of their intervals."""

from __future__ import annotations

import random
from typing import cast

import pytest

from powerprof.measure.window import PassedWindow
from powerprof.tracing.bpf.cost_meter import CostMeter, ProgramCost
from powerprof.tracing.budget import Budget
from powerprof.tracing.captures import CallSum, FileSum, OffCpuTrace, SyscallTrace, ThreadSums, WakingSum
from powerprof.tracing.slices import UseClock
from powerprof.tracing.summed_slices import SliceScale, TraceSlicer, _merge


def _sleeps(count: int, longest_ns: int = 900) -> OffCpuTrace:
    thread = ThreadSums(
        pid=7,
        tid=8,
        comm="a",
        states={"interruptible": (count, 50 * count)},
        sleep_max_ns=longest_ns,
        waits_count=2 * count,
        wait_ns=3 * count,
        wait_max_ns=12,
        preempted_count=1,
        preempted_ns=4,
    )
    waking = WakingSum(tid=8, waker_pid=0, waker_tid=0, waker_comm="interrupt", count=count)
    return OffCpuTrace(
        pids=[7],
        window_s=0.25,
        threads=[thread] if count else [],
        wakings=[waking] if count else [],
        lost_count=1,
        unseen_count=2,
        notes=["odd"],
        tool_cpu_s=0.0,
        bpf_s=None,
        ended=None,
    )


PASSED = PassedWindow(4.0, 0.03, 9, ["whole"])


def test_sleeps_of_slices_stand_for_their_strata() -> None:
    slices = [_sleeps(10), _sleeps(0), _sleeps(30, 1100)]
    merged = _merge(slices, SliceScale([4.0, 8.0, 4.0], [0.25] * 3), PASSED)
    (thread,), (waking,) = merged.threads, merged.wakings
    assert (merged.window_s, merged.tool_cpu_s, merged.lost_count, merged.unseen_count) == (4.0, 0.03, 3, 6)
    assert merged.notes == ["whole", "odd"]
    assert thread.states == {"interruptible": (160, 8000)}
    assert (thread.sleep_max_ns, thread.wait_max_ns) == (1100, 12)
    assert (thread.waits_count, thread.wait_ns, thread.preempted_count, thread.preempted_ns) == (320, 480, 8, 32)
    assert waking.count == 160
    assert waking.low_count is not None and waking.high_count is not None
    # At least the observed events.
    assert 40 <= waking.low_count < 160 < waking.high_count
    assert (thread.low_count, thread.high_count) == (waking.low_count, waking.high_count)


def test_calls_and_files_of_slices_stand_for_their_strata() -> None:
    call = CallSum(pid=7, tid=8, name="read", operation="", count=5, errors_count=2, ns=70, longest_ns=40)
    file = FileSum(
        *(),
        **dict.fromkeys(("reads_count", "read_bytes", "writes_count", "write_bytes", "syncs_count", "sync_ns"), 3),
        pid=7,
        tid=8,
        comm="a",
        path="/x",
        mode=1,
    )
    slices = [
        SyscallTrace(
            pids=[7],
            window_s=0.5,
            calls=[call],
            files=[file],
            waiting={"poll": number},
            exited_names={number: "gone"},
            lost_count=0,
            parts_count=1,
            notes=[],
            tool_cpu_s=0.0,
            bpf_s=None,
            ended=None,
        )
        for number in (1, 2)
    ]
    merged = _merge(slices, SliceScale([2.0, 6.0], [0.5, 0.5]), PASSED)
    (row,), (used,) = merged.calls, merged.files
    assert (row.count, row.errors_count, row.ns, row.longest_ns) == (40, 16, 560, 40)
    assert (used.reads_count, used.sync_ns) == (24, 24)
    assert merged.waiting == {"poll": 2} and merged.exited_names == {1: "gone", 2: "gone"}


def test_intervals_of_sums_contain_the_truth() -> None:
    """Steady, periodic and rare events, and bursts, in 50 windows with 15 slices."""
    chance, inside, total = random.Random(7), 0, 0
    for _ in range(50):
        sparks, period = [14.9 * chance.random() for _ in range(25)], chance.uniform(0.2, 0.9)
        kinds = [
            [15 * chance.random() for _ in range(chance.randint(900, 1100))],
            [chance.random() * 0.01 + period * number for number in range(int(14.9 / period))],
            [15 * chance.random() for _ in range(30)],
            [spark + 0.05 * chance.random() for spark in sparks for _ in range(10)],
        ]
        starts = [number + 0.75 * chance.random() for number in range(15)]
        scale = SliceScale([4.0] * 15, [0.25] * 15)
        for times in kinds:
            seen = [(number, sum(at <= time < at + 0.25 for time in times)) for number, at in enumerate(starts)]
            found = scale.interval(seen)
            total += 1
            inside += found["low_count"] <= len(times) <= found["high_count"]
    assert inside / total >= 0.93


class _Tracer:
    """Counts its windows."""

    read_interval_s = 0.2

    def __init__(self) -> None:
        self.events: list[str] = []

    def open(self) -> None:
        self.events.append("open")

    def begin(self) -> None:
        self.events.append("begin")

    def read(self) -> None:
        self.events.append("read")

    def end(self) -> None:
        self.events.append("end")

    def collect(self, passed: PassedWindow) -> OffCpuTrace:
        self.events.append("collect")
        return _sleeps(10)

    def meter(self, events: object) -> CostMeter:
        raise AssertionError


class _Meter:
    """Half of the time is spent while the programs are attached."""

    is_driven, is_on, spent_s = False, True, 0.0

    def spent(self) -> ProgramCost:
        self.spent_s += 0.5 if self.is_on else 0.0
        return ProgramCost(self.spent_s, 0.0)

    def own_s(self) -> float:
        return 0.0

    def pause(self) -> None:
        self.is_on = False

    def resume(self) -> None:
        self.is_on = True


class _Used:
    def read_s(self) -> float:
        return 0.0


def _slicer(tracer: _Tracer, budget: Budget | None) -> TraceSlicer[OffCpuTrace]:
    return TraceSlicer(tracer, cast(CostMeter, _Meter()), cast(UseClock, _Used()), budget, 10.0)


def test_a_window_above_the_bound_ends_its_slice_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    tracer = _Tracer()
    slicer = _slicer(tracer, Budget(0.02))
    slicer.open()
    slicer.begin()
    now_s = slicer._start_s
    monkeypatch.setattr("powerprof.tracing.slices.time.monotonic", lambda: now_s + 0.25)
    slicer.read()
    monkeypatch.undo()
    assert not slicer.is_tracing
    slicer.end()
    assert tracer.events == ["open", "begin", "read", "end", "collect"]
    trace, bound = slicer.collect(PASSED)
    assert (bound.slices_count, bound.max_cost_percent) == (1, 2.0)
    assert trace.window_s == 4.0 and bound.unseen_below_hz == pytest.approx(12.0, rel=0.01)


def test_without_a_bound_the_trace_is_that_of_its_only_window() -> None:
    tracer = _Tracer()
    slicer = _slicer(tracer, None)
    slicer.open()
    slicer.begin()
    slicer.read()
    slicer.end()
    trace, bound = slicer.collect(PASSED)
    assert (bound.slices_count, bound.traced_percent, bound.max_cost_percent) == (0, 100.0, None)
    assert trace.threads[0].low_count is None
    assert tracer.events == ["open", "begin", "read", "end", "collect"]
