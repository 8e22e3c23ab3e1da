# SPDX-License-Identifier: Apache-2.0
"""Programs whose functions sleep at known prime rates: each wake-up is blamed on the right function and origin."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from powerprof.attribution.capture import NamedSite
from powerprof.system.tasks import read_switches
from tests.programs import ground_truth
from tests.programs.balance import check_balance
from tests.system.attribution import perf
from tests.system.attribution.conftest import Attributed, own_count, slept

pytestmark = pytest.mark.alone  # judges the idleness or the speed of this host

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


def _is_on_scheduler_stack(found: Attributed, site: NamedSite) -> bool:
    """Return whether a stack ends where Go switched to the scheduler's stack: its caller is on the goroutine's."""
    named = found.captured.named
    assert named is not None
    return named.frames[site.frames[-1]].function in ("runtime.systemstack", "runtime.systemstack.abi0")


def _check_completeness(found: Attributed) -> None:
    conservation, stacks = found.record["conservation"], found.record["stacks"]
    assert conservation["lost_count"] == 0
    assert found.share_of_exits("conservation", "coverage_percent") >= 99.0
    # cpuidle itself counted as many; the two read their edges within a few exits of one another.
    check_balance(conservation, share=0.0)
    assert stacks["lost_count"] == 0
    named = found.captured.named
    assert named is not None
    cut = [site for site in named.sites if site.captured and not site.complete]
    on_scheduler_stack = sum(_is_on_scheduler_stack(found, site) for site in cut)
    reasons = [(site.reason, [named.frames[number].label for number in site.frames]) for site in cut]
    assert stacks["complete_count"] + on_scheduler_stack >= 0.99 * stacks["captured_count"] > 0, reasons
    assert found.share_of_exits("stacks", "exits_complete_percent") >= 99.0


def test_c_functions_have_their_rates_and_origins(
    attribute: Attribute, built: Callable[[str], Path], tmp_path: Path
) -> None:
    data, log = tmp_path / "perf.data", tmp_path / "log"
    with (
        ground_truth.running(built("sleepers"), 60.0, f"log={log}") as truth,
        perf.recording(int(str(truth["pid"])), data),
    ):
        found = attribute(truth["pid"], duration=3)
    # The report is there soon after the window.
    assert (found.ended_ns - found.captured.counted_to_ns) / 1e9 < 2.0
    _check_completeness(found)
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


def test_musl_functions_have_their_rates(attribute: Attribute, built: Callable[[str], Path], tmp_path: Path) -> None:
    log = tmp_path / "log"
    with ground_truth.running(built("sleepers-musl"), 60.0, f"log={log}") as truth:
        found = attribute(truth["pid"], duration=3)
    # musl has no unwind tables.
    _check_completeness(found)
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


class SleepCounter(threading.Thread):
    """Reads the kernel's counts of sleeps of the programs' threads every 10 ms until it is stopped."""

    def __init__(self, pids: Sequence[int]) -> None:
        super().__init__()
        self._pids, self._stopped = pids, threading.Event()
        self._samples: list[tuple[int, dict[int, int]]] = []

    def run(self) -> None:
        while not self._stopped.wait(0.01):
            counts = {tid: count for pid in self._pids for tid, count in read_switches(pid).items()}
            self._samples.append((time.monotonic_ns(), counts))

    def __enter__(self) -> SleepCounter:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self.join()

    def sleeps(self, tid: int, from_ns: int, to_ns: int) -> int:
        """Return the sleeps of a thread between the samples that are nearest to these times."""
        first, last = (min(self._samples, key=lambda sample: abs(sample[0] - at)) for at in (from_ns, to_ns))
        return last[1][tid] - first[1][tid]


def test_functions_of_other_languages_have_their_counts(attribute: Attribute, built: Callable[[str], Path]) -> None:
    with ExitStack() as running:
        truths: list[Any] = [running.enter_context(ground_truth.running(built(program))) for program in _OTHERS]
        counter = running.enter_context(SleepCounter([truth["pid"] for truth in truths]))
        found = attribute(",".join(str(truth["pid"]) for truth in truths), duration=3)
    _check_completeness(found)
    assert found.record["target"]["pids"] == sorted(truth["pid"] for truth in truths)
    window = found.captured
    for truth, functions in zip(truths, _OTHERS.values(), strict=True):
        for name, function in functions.items():
            thread = truth["threads"][name]
            rows = slept(found, thread["tid"])
            inside = [row for row in rows if any(function in (frame["function"] or "") for frame in row["stack"])]
            counted = sum(row["wakings_count"] for row in inside)
            expected = counter.sleeps(thread["tid"], window.counted_from_ns, window.counted_to_ns)
            # A thread that is late for its next deadline does not sleep, so the kernel's count is exact and the rate is
            # not. Each edge of the window may lie between a sleep and its end or between a sample and the edge.
            assert abs(counted - expected) <= max(2, 0.02 * expected), (name, counted, expected)
            assert counted <= thread["rate_hz"] * found.record["wakings_window_s"] + max(1.0, 0.02 * counted)
            assert sum(row["wakings_count"] for row in inside if row["origin"] == "own_timer") >= 0.95 * counted
            assert all(row["stack_complete"] for row in rows)
