# SPDX-License-Identifier: Apache-2.0
"""Programs whose functions sleep at known prime rates: each wake-up is blamed on the right function and origin."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from powerprof.system.tasks import switches_of
from tests.balance import check_balance
from tests.programs import ground_truth
from tests.root.attribution import perf
from tests.root.attribution.conftest import Attributed, own_count, slept

# program → thread → (innermost own function, origin, the function that it was started with)
_C = {
    "nanosleep": ("wait_nanosleep", "own_timer", "nanosleep_thread"),
    "poll": ("wait_poll", "own_timer", "poll_thread"),
    "epoll": ("wait_epoll", "own_timer", "epoll_thread"),
    "condvar": ("wait_condvar", "own_timer", "condvar_thread"),
    "timerfd": ("wait_timerfd", "own_timer", "timerfd_thread"),
    "pipe_waker": ("wake_pipe", "own_timer", "pipe_waker_thread"),
    "pipe": ("wait_pipe", "other_thread", "pipe_thread"),
    "futex_waker": ("wake_futex", "own_timer", "futex_waker_thread"),
    "futex": ("wait_futex", "other_thread", "futex_thread"),
}
_WAKERS = {"pipe": "wake_pipe", "futex": "wake_futex"}
Attribute = Callable[..., Attributed]


def _is_near(counted: int, expected: float, late: float) -> bool:
    # Two per cent; a count over a window of any length is uncertain by one.
    most = max(1.0, 0.02 * expected)
    return -most - late <= counted - expected <= most


def _whole(found: Attributed, *, cut_stacks: int = 0) -> None:
    conservation, stacks = found.record["conservation"], found.record["stacks"]
    assert conservation["lost_count"] == 0
    assert found.share_of_exits("conservation", "coverage_percent") >= 99.0
    # cpuidle itself counted as many; the two read their edges within a few exits of one another.
    check_balance(conservation, share=0.0)
    assert stacks["lost_count"] == 0
    assert stacks["complete_count"] + cut_stacks >= 0.99 * stacks["captured_count"] > 0
    assert found.share_of_exits("stacks", "exits_complete_percent") >= 99.0


def test_each_function_of_a_c_program_at_its_rate_by_its_origin(
    attribute: Attribute, built: Callable[[str], Path], tmp_path: Path
) -> None:
    data, log = tmp_path / "perf.data", tmp_path / "log"
    with (
        ground_truth.running(built("sleepers"), 60.0, f"log={log}") as truth,
        perf.recording(int(str(truth["pid"])), data),
    ):
        found = attribute(truth["pid"], duration=4)
    # The report is there soon after the window.
    assert (found.ended_ns - found.captured.counted_to_ns) / 1e9 < 2.0
    _whole(found)
    agreement = perf.compare(perf.stacks(data), found.rows)
    assert agreement.stacks >= len(_C)
    assert agreement.agreeing >= 0.99 * agreement.comparable, agreement.differing
    threads: Any = truth["threads"]
    counted = found.wakings(function for function, _, _ in _C.values())
    for name, (function, origin, first) in _C.items():
        expected = own_count(found, log, truth, name)
        wakings = counted[function]
        # A thread that waits for a CPU may be moved to an idle one by the scheduler and run because of the kernel: that
        # is counted beside what woke it, so on a busy machine the origin's own count is the one to hold to its rate.
        assert wakings[origin] >= 0.95 * wakings.total(), (name, wakings)
        nearest = min(max(expected, wakings[origin]), wakings.total())
        assert abs(nearest - expected) <= 2, (name, wakings, expected)
        rows = slept(found, threads[name]["tid"])
        assert all(row["thread"]["comm"] == name for row in rows)
        for row in rows:
            functions = [frame["function"] for frame in row["stack"]]
            assert functions.index(function) < functions.index(first), functions
            assert {frame["module"] for frame in row["stack"]} == {"libc.so.6", "sleepers"}
        # A period is only given where enough wake-ups ended an idle period; then it is the timer's.
        for row in (row for row in rows if origin == "own_timer" and row.get("period_ms") is not None):
            times = row["period_ms"] * threads[name]["rate_hz"] / 1000
            assert abs(times - round(times)) < 0.05 * max(1, round(times)), (name, row["period_ms"])
    assert set(counted) <= {function for function, _, _ in _C.values()}
    # A waker's own stack is there wherever it ended an idle period.
    for woken, waking in _WAKERS.items():
        for row in found.record["wakeups"]:
            if row["thread"]["tid"] == threads[woken]["tid"] and row["origin"] == "other_thread":
                assert row["waker"]["tid"] == threads[f"{woken}_waker"]["tid"]
                assert waking in {frame["function"] for frame in row["waker"]["stack"]}


_OTHERS = {
    "sleepers-cpp": {"condvar": "ground::Condvar::deepest", "poll": "ground::Poll::deepest"},
    "sleepers-rust": {"sleep": "sleep_level1", "park": "park_level1"},
    "sleepers-go": {"timerfd": "main.waitTimerfd"},
}


def test_each_function_of_a_musl_program_at_its_rate(
    attribute: Attribute, built: Callable[[str], Path], tmp_path: Path
) -> None:
    log = tmp_path / "log"
    with ground_truth.running(built("sleepers-musl"), 60.0, f"log={log}") as truth:
        found = attribute(truth["pid"], duration=4)
    # musl has no unwind tables.
    _whole(found)
    threads: Any = truth["threads"]
    counted = found.wakings(function for function, _, _ in _C.values())
    named = sum(counted[function].total() for function, _, _ in _C.values())
    assert named >= 0.99 * sum(origins.total() for origins in counted.values()) > 0
    for name, (function, origin, first) in _C.items():
        expected = own_count(found, log, truth, name)
        nearest = min(max(expected, counted[function][origin]), counted[function].total())
        assert abs(nearest - expected) <= 2, (name, counted[function], expected)
        for row in slept(found, threads[name]["tid"]):
            functions = [frame["function"] for frame in row["stack"]]
            assert row["stack_complete"]
            assert functions.index(function) < functions.index(first), functions


def _sleeps(truths: list[Any]) -> dict[int, int]:
    """How often each thread of the programs has slept so far."""
    return {tid: count for truth in truths for tid, count in switches_of(truth["pid"]).items()}


def test_functions_of_other_languages_in_several_processes(attribute: Attribute, built: Callable[[str], Path]) -> None:
    with ExitStack() as running:
        truths: list[Any] = [running.enter_context(ground_truth.running(built(program))) for program in _OTHERS]
        slept_before, began_s = _sleeps(truths), time.monotonic()
        found = attribute(",".join(str(truth["pid"]) for truth in truths), duration=4)
        slept_times, passed_s = _sleeps(truths), time.monotonic() - began_s
    # Where Go wakes a thread of its own it stands on the scheduler's stack: what called runtime.systemstack is on the
    # goroutine's.
    _whole(found, cut_stacks=1)
    assert found.record["target"]["pids"] == sorted(truth["pid"] for truth in truths)
    for truth, functions in zip(truths, _OTHERS.values(), strict=True):
        for name, function in functions.items():
            thread = truth["threads"][name]
            rows = slept(found, thread["tid"])
            inside = [row for row in rows if any(function in (frame["function"] or "") for frame in row["stack"])]
            counted = sum(row["wakings_count"] for row in inside)
            expected = thread["rate_hz"] * found.record["wakings_window_s"]
            # On a busy host a thread does not sleep where it is late for its next deadline, as the kernel's count says.
            late = thread["rate_hz"] * passed_s - (slept_times[thread["tid"]] - slept_before[thread["tid"]])
            assert _is_near(counted, expected, max(late, 0.0)), (name, counted, expected, late)
            assert sum(row["wakings_count"] for row in inside if row["origin"] == "own_timer") >= 0.95 * counted
            assert all(row["stack_complete"] for row in rows)
