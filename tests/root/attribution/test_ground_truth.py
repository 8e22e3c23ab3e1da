"""Programs whose functions sleep at known prime rates: each wake-up is blamed on the right function and origin."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.programs import ground_truth
from tests.root.attribution.conftest import Attributed

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


def _within_two_percent(counted: int, expected: float) -> bool:
    # A count over a window of any length is uncertain by one.
    return abs(counted - expected) <= max(1.0, 0.02 * expected)


def _whole(found: Attributed) -> None:
    conservation, stacks = found.record["conservation"], found.record["stacks"]
    assert conservation["lost_count"] == 0
    assert conservation["coverage_percent"] >= 99.0
    parts = ("classified_count", "unknown_count", "lost_count")
    assert conservation["idle_exits_count"] == sum(conservation[part] for part in parts)
    # cpuidle itself counted as many; the two read their edges within a few exits of one another.
    assert abs(conservation["cpuidle_usage_delta_count"] - conservation["idle_exits_count"]) <= 4
    assert stacks["lost_count"] == 0
    assert stacks["complete_count"] >= 0.99 * stacks["captured_count"] > 0
    assert stacks["exits_complete_percent"] >= 99.0


def test_each_function_of_a_c_program_at_its_rate_by_its_origin(
    attribute: Attribute, built: Callable[[str], Path]
) -> None:
    with ground_truth.running(built("sleepers")) as truth:
        found = attribute(truth["pid"], duration=4)
    _whole(found)
    threads: Any = truth["threads"]
    window_s = found.record["wakings_window_s"]
    counted = found.wakings(function for function, _, _ in _C.values())
    for name, (function, origin, first) in _C.items():
        expected = threads[name]["rate_hz"] * window_s
        wakings = counted[function]
        # On a busy machine a thread that was moved to an idle CPU by the scheduler runs because of the kernel.
        assert wakings[origin] >= 0.95 * wakings.total(), (name, wakings)
        assert _within_two_percent(wakings.total(), expected), (name, wakings, expected)
        rows = [row for row in found.rows if row["thread"]["tid"] == threads[name]["tid"]]
        assert all(row["thread"]["comm"] == name for row in rows)
        for row in rows:
            functions = [frame["function"] for frame in row["stack"]]
            assert functions.index(function) < functions.index(first), functions
            assert {frame["module"] for frame in row["stack"]} == {"libc.so.6", "sleepers"}
    assert set(counted) <= {function for function, _, _ in _C.values()}
    # A waker's own stack is there wherever it ended an idle period.
    for woken, waking in _WAKERS.items():
        for row in found.record["wakeups"]:
            if row["thread"]["tid"] == threads[woken]["tid"] and row["origin"] == "other_thread":
                assert row["waker"]["tid"] == threads[f"{woken}_waker"]["tid"]
                assert waking in {frame["function"] for frame in row["waker"]["stack"]}


@pytest.mark.parametrize(("program", "functions"), [
    ("sleepers-cpp", {"condvar": "ground::Condvar::deepest", "poll": "ground::Poll::deepest"}),
    ("sleepers-rust", {"sleep": "sleep_level1", "park": "park_level1"}),
    ("sleepers-go", {"timerfd": "main.waitTimerfd"}),
])  # fmt: skip
def test_functions_of_other_languages(
    program: str, functions: dict[str, str], attribute: Attribute, built: Callable[[str], Path]
) -> None:
    with ground_truth.running(built(program)) as truth:
        found = attribute(truth["pid"], duration=3)
    _whole(found)
    threads: Any = truth["threads"]
    for name, function in functions.items():
        rows = [row for row in found.rows if row["thread"]["tid"] == threads[name]["tid"]]
        inside = [row for row in rows if any(function in (frame["function"] or "") for frame in row["stack"])]
        counted = sum(row["wakings_count"] for row in inside)
        assert _within_two_percent(counted, threads[name]["rate_hz"] * found.record["wakings_window_s"]), (name, counted)
        assert sum(row["wakings_count"] for row in inside if row["origin"] == "own_timer") >= 0.95 * counted
        assert all(row["stack_complete"] for row in rows)


def test_periods_are_those_of_the_timers(attribute: Attribute, built: Callable[[str], Path]) -> None:
    # Slow timers: on a machine that is not idle too, most of their wake-ups end an idle period.
    with ground_truth.running(built("sleepers"), 60.0, *(f"{name}=7" for name in ("epoll", "poll"))) as truth:
        found = attribute(truth["pid"], duration=4)
    threads: Any = truth["threads"]
    for name in ("epoll", "poll"):
        rows = [row for row in found.record["wakeups"] if row["thread"]["tid"] == threads[name]["tid"]]
        periods = [row["period_ms"] for row in rows if row["period_ms"] is not None]
        assert all(abs(period - 1000 / 7) < 3 for period in periods), periods
