# SPDX-License-Identifier: Apache-2.0
"""The sums of an interval: the kernel's counters, the trace and the rows."""

from __future__ import annotations

from itertools import pairwise

import pytest

from powerprof.live.intervals import (
    IdleCounts,
    build_rows,
    count_ahead_exits,
    count_mechanisms,
    limit_running_time,
    measure_span,
    name_function,
)
from powerprof.measure.window import CpuReading, Snapshot, StateInfo
from powerprof.model.attribution import Attribution, StackCounts, StackFrame, TargetInfo, Thread, Wakeup, Waking
from powerprof.model.records import Conservation, ToolCost
from tests.unit.live.intervals import row

STATES = (StateInfo("POLL", True), StateInfo("C1", False))


def reading(cpu: int, at_s: float, poll_s: float, c1_s: float, usage: int) -> CpuReading:
    nothing = (None, None)
    times = (int(poll_s * 1e6), int(c1_s * 1e6))
    return CpuReading(cpu, int(at_s * 1e9), STATES, times, (0, usage), nothing, nothing, nothing, resolved=True)


def test_idle_time_exits_and_c0_of_all_cpus() -> None:
    before = Snapshot({0: reading(0, 10, 0, 5, 100), 1: reading(1, 10, 0, 7, 50)})
    after = Snapshot({0: reading(0, 20, 0.5, 13, 180), 1: reading(1, 20, 0, 17, 60)})
    span = measure_span(before, after)
    assert (span.window_s, span.cpus, span.exits_count) == (10.0, 2, 90)
    assert span.idle_s[0, "C1"] == pytest.approx(8.0)
    assert span.c0_s == pytest.approx(2.0)  # polling is running
    assert span.polling == {"POLL"}
    assert span.idle_counts[0, "C1"] == IdleCounts(80, None, None, None)
    assert [state.name for state in span.idle_states] == ["POLL", "C1"]


def test_a_new_cpu_is_left_out_with_a_note() -> None:
    before = Snapshot({0: reading(0, 10, 0, 5, 100)})
    after = Snapshot({0: reading(0, 20, 0, 13, 180), 1: reading(1, 20, 0, 17, 60)})
    span = measure_span(before, after)
    assert (span.cpus, span.exits_count) == (1, 80)
    assert span.notes == ("CPU 1 came or went: left out of this interval",)


def test_reset_counters_are_left_out() -> None:
    span = measure_span(Snapshot({0: reading(0, 10, 0, 5, 100)}), Snapshot({0: reading(0, 20, 0, 1, 10)}))
    assert (span.cpus, span.exits_count, span.c0_s) == (0, None, 0.0)
    assert "went backwards" in span.notes[0]


def test_untraced_exits_are_in_the_sum() -> None:
    assert count_mechanisms([row("a", 70), row("b", 20)], 100) == ({"timer": 90, "untraced": 10}, 100)
    assert count_mechanisms([row("a", 70)], None) == ({"timer": 70, "untraced": 0}, 70)


def test_exits_ahead_of_the_counters_are_counted_once() -> None:
    """The trace is read some milliseconds after the counters, so it has exits that they lack."""
    leads, ahead, total, kernel = [0, 12, 0, 7, 7, 30, 0, 3], 0, 0, 0
    for before, lead in pairwise(leads):
        counted = 1500
        _, exits = count_mechanisms([row("a", counted + lead - before)], counted, ahead)
        ahead = count_ahead_exits(exits, counted, ahead)
        total, kernel = total + exits, kernel + counted
        assert total == kernel + lead


def test_rejected_entries_do_not_accumulate_as_ahead() -> None:
    # The kernel never counts them. If they accumulated, they would hide lost exits.
    ahead = 0
    for _ in range(100):
        _, exits = count_mechanisms([row("a", 1100)], 1000, ahead)
        ahead = count_ahead_exits(exits, 1000, ahead)
        assert exits == 1100
    assert ahead == 22
    assert count_mechanisms([row("a", 500)], 1000, ahead) == ({"timer": 500, "untraced": 478}, 978)


def test_running_time_is_limited_to_the_interval() -> None:
    # A CPU was busy for 4 s until now, of which 1.5 s are in this interval.
    rows = limit_running_time([row("a", 1, c0_s=4.0), row("b", 10, c0_s=1.0)], 1.5)
    assert [one.c0_s for one in rows] == pytest.approx([1.2, 0.3])
    assert [one.exits_count for one in rows] == [1, 10]
    kept = [row("a", 1, c0_s=0.5)]
    assert limit_running_time(kept, 1.5) == kept


def wakeup(*stack: tuple[str | None, str]) -> Wakeup:
    frames = [StackFrame(function=name, module=module, address="0x1234") for name, module in stack]
    return Wakeup(
        mechanism="timer",
        origin="own_timer",
        count=1,
        rate_hz=1.0,
        wakings_count=1,
        period_ms=None,
        c0_ms=0.1,
        thread=Thread(tid=1, comm="x"),
        waker=None,
        stack=frames,
        stack_complete=True,
    )


def test_the_function_is_of_the_program_and_not_an_address() -> None:
    assert name_function(wakeup(("futex_wait", "libc.so.6"), ("srv_master", "mariadbd"))) == "srv_master"
    assert name_function(wakeup(("nanosleep", "libc.so.6"))) == "nanosleep"
    assert name_function(wakeup((None, "[unknown]"))) == "[unknown]"
    assert name_function(wakeup()) == "[no user stack]"


def test_a_thread_woken_only_on_busy_cpus_has_a_row_without_exits() -> None:
    waking = Waking(
        origin="own_timer",
        wakings_count=7,
        wakings_hz=1.4,
        thread=Thread(tid=8, comm="poller", pid=8),
        waker=None,
        stack=[StackFrame(function="poll", module="x", address="0x1")],
        stack_complete=True,
        own_ms=12.0,
    )
    record = Attribution(
        id=None,
        started_at="2026-01-01T00:00:00Z",
        target=TargetInfo(pid=None, executable=None, build_id=None, label="all", system=True),
        window_s=5.0,
        cpus=1,
        conservation=Conservation(
            idle_exits_count=0,
            cpuidle_usage_delta_count=0,
            classified_count=0,
            unknown_count=0,
            lost_count=0,
            coverage_percent=None,
        ),
        wakeups=[],
        stacks=StackCounts(captured_count=0, complete_count=0, truncated_count=0, failed_count=0),
        tool=ToolCost(version="0", cpu_s=0.0, wakeups_hz=0.0),
        wakings_without_exit=[waking],
    )
    (found,) = build_rows(record, {8: "server"})
    assert (found.key.process, found.key.thread, found.key.function) == ("server", "poller", "poll")
    assert (found.exits_count, found.c0_s) == (0, pytest.approx(0.012))
    assert count_mechanisms([found], 0) == ({"untraced": 0}, 0)
