# SPDX-License-Identifier: Apache-2.0
"""Mechanisms, names, periods and shares of idle exits by cause, and their conservation."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from powerprof.attribution.causes import (
    MECHANISMS,
    build_conservation,
    classify_exits,
    group_causes,
    period_ms,
    regular_period_ms,
)
from powerprof.model.records import Cause
from powerprof.system.tasks import Task
from powerprof.tracing.bpf.shared_numbers import IDLE_LIFE, Flag, WakeEvidence, WakerContext
from powerprof.tracing.captures import CpuEdge
from powerprof.tracing.idle_data import CAUSE

MS = 1_000_000
TIMER, OTHER_TIMER, WORK = 0xFFFFFFFF81000010, 0xFFFFFFFF81000020, 0xFFFFFFFF81000030
FUNCTIONS = {TIMER: "hrtimer_wakeup", OTHER_TIMER: "process_timeout", WORK: "vmstat_update"}
TASKS = {
    0: Task(0, 0, "idle", "kernel", True),
    7: Task(7, 7, "kworker/0:1", "kernel", True),
    71: Task(71, 70, "worker", "server", False),
    72: Task(72, 70, "worker", "server", False),
    81: Task(81, 80, "helper", "turbostat", False),
}


def look_up(tid: int, pid: int | None, comm: str, is_kernel: bool | None) -> Task:
    return TASKS.get(tid) or Task(tid, pid, comm or f"thread {tid}", "gone", bool(is_kernel))


def causes(*rows: dict[str, Any]) -> np.ndarray:
    """Return entries of a thread that was woken by its timer on the CPU on which it ran."""
    made = np.zeros(len(rows), dtype=CAUSE)
    for one, row in zip(made, rows, strict=True):
        values = {"count": 1, "next_tid": 71, "next_tgid": 70, "flags": Flag.WAKER} | row
        for name, value in values.items():
            one[name] = value
    return made


def grouped(entries: np.ndarray, window_s: float = 2.5, **more: Any) -> list[Cause]:
    values: dict[str, Any] = {"functions": FUNCTIONS, "interrupts": {33: "eth0"}} | more
    return group_causes(entries, classify_exits(entries, {0: ["POLL", "C1"]}), window_s, look_up, **values)


BY_TIMER = {"evidence": WakeEvidence.LOCAL_TIMER, "timer_function": TIMER}
NO_TASK = {"evidence": WakeEvidence.NONE, "flags": Flag.NO_TASK, "next_tid": 0, "next_tgid": 0}


@pytest.mark.parametrize(
    ("row", "mechanism", "name"),
    [
        (BY_TIMER, "timer", "hrtimer_wakeup"),
        ({**BY_TIMER, "flags": Flag.TICK}, "timer", "hrtimer_wakeup"),
        ({"evidence": WakeEvidence.LOCAL_TIMER, "flags": Flag.TICK}, "tick", None),
        ({"evidence": WakeEvidence.LOCAL_TIMER, "flags": 0}, "timer", None),
        ({"evidence": WakeEvidence.HRTIMER, "timer_function": 0x77}, "timer", "0x77"),
        # The timer that woke the thread is named, not the first one of the interrupt.
        (
            {**BY_TIMER, "waker_context": WakerContext.TIMER, "waker_timer_function": OTHER_TIMER},
            "timer",
            "process_timeout",
        ),
        (
            {**BY_TIMER, "flags": 0, "waker_context": WakerContext.TIMER, "waker_timer_function": OTHER_TIMER},
            "timer",
            "hrtimer_wakeup",
        ),
        ({"evidence": WakeEvidence.DEVICE, "irq": 33}, "device", "eth0"),
        ({"evidence": WakeEvidence.DEVICE, "irq": 34}, "device", "irq 34"),
        ({"evidence": WakeEvidence.OTHER_VECTOR, "irq": 0xF2}, "device", "vector 0xf2"),
        ({"evidence": WakeEvidence.RESCHEDULE}, "ipi", "reschedule"),
        ({"evidence": WakeEvidence.CALL_FUNCTION}, "ipi", "function call"),
        ({"evidence": WakeEvidence.IRQ_WORK}, "ipi", "irq work"),
        ({"evidence": WakeEvidence.NO_IPI}, "no_ipi", None),
        ({"evidence": WakeEvidence.NONE, "flags": Flag.WAKER | Flag.REMOTE}, "no_ipi", None),
        ({"evidence": WakeEvidence.NONE, "flags": Flag.WAKER}, "unknown", None),
        ({"evidence": WakeEvidence.NONE, "flags": Flag.REMOTE}, "unknown", None),
        ({"evidence": WakeEvidence.NONE, "waker_context": WakerContext.TIMER}, "timer", None),
        ({**NO_TASK, "irq": 0}, "timer", "poll_idle's time limit"),
        ({**NO_TASK, "irq": 1}, "unknown", None),  # `irq` is the state, and C1 does not poll
        ({"evidence": WakeEvidence.SOFTIRQ, "irq": 3, "flags": 0}, "unknown", "softirq NET_RX"),
        ({"evidence": WakeEvidence.SOFTIRQ, "irq": 0, "flags": 0}, "unknown", "softirq HI"),
        ({"evidence": WakeEvidence.SOFTIRQ, "irq": 12, "flags": 0}, "unknown", "softirq 12"),
        ({"evidence": 250, "flags": 0}, "unknown", None),  # of a later program
    ],
)
def test_mechanism_and_name_of_an_exit(row: dict[str, Any], mechanism: str, name: str | None) -> None:
    (cause,) = grouped(causes(row))
    assert (cause.mechanism, cause.name) == (mechanism, name)


def test_a_cause_is_of_the_thread_that_ran_or_else_of_the_woken_one() -> None:
    named = {71: "thread/innodb/page_cleaner_thread"}
    entries = causes(
        {"count": 9},
        {"count": 7, "next_tid": 0, "next_tgid": 0, "woken_tid": 72},
        {"count": 5, "next_tid": 7, "next_tgid": 7, "work_function": WORK, "flags": Flag.WAKER | Flag.KERNEL},
        {"count": 4, "next_tid": 7, "next_tgid": 7, "work_function": 0x99, "flags": Flag.WAKER | Flag.KERNEL},
        {"count": 3, "next_tid": 81, "next_tgid": 80},
        {"count": 2, "next_tid": 0, "next_tgid": 0},
    )
    rows = grouped(entries, server_names=named, own_pids={80})
    assert [(row.count, row.process, row.pid, row.thread, row.tid) for row in rows] == [
        (9, "server", 70, "innodb/page_cleaner_thread", 71),
        (7, "server", 70, "worker", 72),
        (5, "kernel", None, "kworker vmstat_update", None),
        (4, "kernel", None, "kworker", None),
        (3, "powerprof", 80, "helper", 81),
        (2, "kernel", None, None, None),
    ]


def test_a_thread_without_an_entry_has_its_latest_name() -> None:
    entries = causes(
        {"next_tid": 99, "next_comm": b"old", "last_ns": 5, "site_ip": 1},
        {"next_tid": 99, "next_comm": b"new", "last_ns": 9, "site_ip": 2},
        {"next_tid": 99, "next_comm": b"older", "last_ns": 2, "site_ip": 3},
    )
    assert [(row.thread, row.count) for row in grouped(entries)] == [("new", 3)]


def test_threads_that_reused_a_number_are_several() -> None:
    """Two lives of a number have one label but no period in common."""
    life = {"count": 50, "gaps": 40, "fitting_gaps": 40, "fitting_ns": 400 * MS, "fitting_periods": 40}
    (row,) = grouped(causes({"flags": Flag.WAKER | 1 << 20, **life}, {"flags": Flag.WAKER | 2 << 20, "count": 2}))
    assert IDLE_LIFE & (3 << 20) == 3 << 20
    assert (row.count, row.tid, row.period_ms) == (52, None, None)
    (row,) = grouped(causes({"flags": Flag.WAKER | 1 << 20, **life}))
    assert (row.count, row.tid, row.period_ms) == (50, 71, pytest.approx(10.0))


@pytest.mark.parametrize(
    ("count", "total", "gaps", "fitting_gaps", "fitting_ns", "fitting_periods", "period"),
    [
        (40, 40, 30, 30, 600 * MS, 40, 15.0),  # some intervals were twice and three times the period
        (40, 50, 30, 30, 600 * MS, 40, 15.0),
        (40, 51, 30, 30, 600 * MS, 40, None),  # less than four in five of the exits
        (40, 40, 30, 24, 600 * MS, 40, 15.0),
        (40, 40, 30, 23, 600 * MS, 40, None),  # less than four in five of the intervals
        (5, 5, 5, 5, 600 * MS, 40, 15.0),
        (5, 5, 4, 4, 600 * MS, 40, None),
    ],
)
def test_period_of_a_cause(
    count: int, total: int, gaps: int, fitting_gaps: int, fitting_ns: int, fitting_periods: int, period: float | None
) -> None:
    assert regular_period_ms(count, total, gaps, fitting_gaps, fitting_ns, fitting_periods) == period
    main = {
        "count": count,
        "gaps": gaps,
        "fitting_gaps": fitting_gaps,
        "fitting_ns": fitting_ns,
        "fitting_periods": fitting_periods,
    }
    rest = {"count": total - count, "gaps": 99, "fitting_gaps": 99, "fitting_ns": 99 * MS, "fitting_periods": 99}
    assert period_ms(causes(rest, main)) == period
    assert period_ms(causes()) is None


EDGES = {cpu: CpuEdge(cpu, 0, 9 * MS, usage) for cpu, usage in enumerate((30, 40))}
PERF = {cpu: CpuEdge(cpu, 0, 9 * MS, None, events, 1) for cpu, events in enumerate((31, 42))}
NOTHING = {0: CpuEdge(0, 0, 9 * MS, None, None, 70)}


@pytest.mark.parametrize(
    ("edges", "usage", "counter", "reference"),
    [(EDGES, 70, "cpuidle", 70), (PERF, None, "perf", 73), (NOTHING, None, None, None)],
)
def test_conservation_of_exits(
    edges: dict[int, CpuEdge], usage: int | None, counter: str | None, reference: int | None
) -> None:
    entries = causes({"count": 40}, {"count": 9}, {"count": 15})
    found = build_conservation(entries, np.array([1, 0, 4]), 8, edges, 87.5)
    assert (found.idle_exits_count, found.classified_count, found.unknown_count, found.lost_count) == (72, 55, 9, 8)
    assert found.coverage_percent == pytest.approx(100 * 55 / 72) and found.idle_percent == 87.5
    assert (found.cpuidle_usage_delta_count, found.checked_against, found.reference_count) == (
        usage,
        counter,
        reference,
    )


def test_coverage_of_nothing_is_unknown() -> None:
    found = build_conservation(causes(), np.array([], dtype=np.int8), 0, EDGES)
    assert (found.idle_exits_count, found.coverage_percent, found.idle_percent) == (0, None, None)


ROWS = st.fixed_dictionaries(
    {
        "count": st.integers(1, 10**6),
        "next_tid": st.sampled_from([0, 7, 71, 72, 81, 99]),
        "evidence": st.integers(0, max(WakeEvidence)),
        "flags": st.sampled_from([0, Flag.WAKER, Flag.TICK, Flag.WAKER | Flag.REMOTE, Flag.NO_TASK]),
        "irq": st.integers(0, 40),
        "timer_function": st.sampled_from([0, TIMER, OTHER_TIMER]),
        "waker_context": st.integers(0, 5),
    }
)


@given(
    rows=st.lists(ROWS, min_size=1, max_size=8),
    lost=st.integers(0, 10**6),
    window_s=st.floats(0.1, 1e4),
    c0=st.lists(st.integers(0, 10**12), min_size=8, max_size=8),
)
def test_law_of_causes(rows: list[dict[str, int]], lost: int, window_s: float, c0: list[int]) -> None:
    """Classified, unknown and lost exits are all exits; the groups sum to their counts, shares, rates and times."""
    entries = causes(*rows)
    ended_by = classify_exits(entries)
    whole = build_conservation(entries, ended_by, lost, EDGES)
    seen = sum(row["count"] for row in rows)
    assert whole.classified_count + whole.unknown_count == seen
    assert whole.classified_count + whole.unknown_count + whole.lost_count == whole.idle_exits_count
    assert whole.coverage_percent == pytest.approx(100 * whole.classified_count / (seen + lost))
    c0_ns = np.array(c0[: len(rows)])
    found = group_causes(entries, ended_by, window_s, look_up, functions=FUNCTIONS, interrupts={}, c0_ns=c0_ns)
    assert sum(cause.count for cause in found) == seen
    assert sum(cause.percent for cause in found) == pytest.approx(100)
    assert sum(cause.c0_ms or 0.0 for cause in found) == pytest.approx(int(c0_ns.sum()) / MS)
    for cause in found:
        assert cause.wakeups_hz * window_s == pytest.approx(cause.count)
        assert cause.percent == pytest.approx(100 * cause.count / seen)
    unknown = sum(cause.count for cause in found if cause.mechanism == "unknown")
    assert unknown == whole.unknown_count and {cause.mechanism for cause in found} <= set(MECHANISMS)
    without = group_causes(entries, ended_by, window_s, look_up, functions=FUNCTIONS, interrupts={})
    assert all(cause.c0_ms is None for cause in without)
