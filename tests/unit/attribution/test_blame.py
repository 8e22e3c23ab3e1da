# SPDX-License-Identifier: Apache-2.0
"""Idle exits joined with threads, wakers and wakings: the pure middle of `powerprof attribute`, on made-up exits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from powerprof.attribution import blame
from powerprof.model.attribution import TargetInfo
from powerprof.report.labels import word_notes
from powerprof.system.tasks import Task
from powerprof.tracing.bpf.shared_numbers import CODE_WORKER, Flag, WakeEvidence, WakerContext
from powerprof.tracing.captures import CpuEdge, select_in_window
from powerprof.tracing.idle_data import CAUSE_BEFORE
from tests.unit.attribution.captures import (
    HRTIMER,
    MS,
    NETWORK,
    OTHER,
    PID,
    WAKINGS_S,
    WINDOW_S,
    attribution,
    exits,
    own_timer,
    ran,
    summed,
    waking,
    woken_by,
)


@pytest.mark.parametrize(
    ("row", "origin"),
    [
        (own_timer(101), "own_timer"),
        (own_timer(101, waker_timer_function=1), "kernel"),
        (woken_by(101, 102, PID), "other_thread"),
        (woken_by(101, OTHER, OTHER), "other_process"),
        (woken_by(101, 9, 9), "kernel"),
        (woken_by(101, 0, 0, waker_context=WakerContext.DEVICE, waker_irq=NETWORK), "device"),
        (woken_by(101, 0, 0, waker_context=WakerContext.SOFTIRQ, waker_irq=3), "device"),
        (woken_by(101, 0, 0, waker_context=WakerContext.SOFTIRQ, waker_irq=1), "kernel"),
        (woken_by(101, 0, 0, waker_context=WakerContext.INTERRUPT), "kernel"),
        (own_timer(101, flags=0), "kernel"),
        (woken_by(101, 0, 0), "kernel"),  # the idle task
        (woken_by(101, 0, 0, waker_context=WakerContext.SOFTIRQ, waker_irq=77), "device"),
    ],
)
def test_origin_follows_from_waker_context(row: dict[str, Any], origin: str) -> None:
    (found,) = attribution(exits(row)).wakeups
    assert found.origin == origin


@pytest.mark.parametrize(
    ("function", "origin"),
    [
        *((name, "own_timer") for name in ("hrtimer_wakeup", "process_timeout", "timerfd_tmrproc", "posix_timer_fn")),
        *((name, "own_timer") for name in ("it_real_fn", "alarmtimer_fired", "io_timeout_fn", "io_link_timeout_fn")),
        *((name, "own_timer") for name in ("io_cqring_timer_wakeup", "io_cqring_min_timer_wakeup")),
        # Timers of the kernel, whoever they wake.
        *((name, "kernel") for name in ("tick_nohz_handler", "sched_cfs_period_timer", "delayed_work_timer_fn")),
        *((name, "kernel") for name in ("tcp_write_timer", "commit_timeout", "perf_swevent_hrtimer")),
    ],
)
def test_timers_that_wake_their_own_thread(function: str, origin: str) -> None:
    found = attribution(exits(own_timer(101)), [waking(101, 3)], functions={HRTIMER: function})
    assert [(row.origin, row.detail, row.wakings_count) for row in found.wakeups] == [(origin, function, 3)]


def test_worker_of_io_uring_has_a_row_without_a_stack() -> None:
    """Its wakings and running time are in the row, and it is not a stack that failed."""
    row = woken_by(101, 102, PID, site_code=CODE_WORKER)
    more = waking(101, 9, WakerContext.TASK, code=CODE_WORKER, waker_tid=102, waker_pid=PID)
    found = attribution(exits(row, row), [more], ran=ran((101, PID, 1, 403.0)))
    (worker,) = found.wakeups
    assert (worker.count, worker.wakings_count, worker.stack, worker.own_ms) == (2, 9, [], pytest.approx(403.0))
    assert found.stacks.failed_count == 0 and found.stacks.exits_with_stack_percent is None
    assert word_notes(found.notes) == []


def test_running_time_without_a_row_has_a_note() -> None:
    """Nothing woke the thread in the window, so it has no row."""
    found = attribution(exits(own_timer(101)), [waking(101, 3)], ran=ran((101, PID, 1, 5.0), (102, PID, 1, 403.0)))
    assert found.running is not None and found.running.target_ms == pytest.approx(408.0, abs=1)
    assert [row.thread.tid for row in found.wakeups] == [101]
    assert (
        "403 ms of CPU time of one thread is in no row, because it did not wake in the window (thread 102). "
        "To see the functions, use profile"
    ) in word_notes(found.notes)


def test_runnable_thread_has_no_waking_and_no_stack() -> None:
    """Exits of a throttled thread are a class of their own; wakings of its real sleeps are not given to them."""
    rows = [own_timer(101, flags=Flag.RUNNABLE, waker_context=0, waker_timer_function=0)] * 5 + [own_timer(101)] * 2
    runnable, timer = attribution(exits(*rows), [waking(101, 3)]).wakeups
    assert (runnable.origin, runnable.count, runnable.wakings_count) == ("runnable", 5, 0)
    assert (runnable.stack, runnable.waker, runnable.detail) == ([], None, "throttled or moved")
    assert (timer.origin, timer.count, timer.wakings_count) == ("own_timer", 2, 3)


def test_rows_add_up_to_the_targets_exits() -> None:
    records = exits(
        *[own_timer(101)] * 8,
        *[own_timer(101, evidence=WakeEvidence.RESCHEDULE)] * 3,
        *[woken_by(101, 102, PID)] * 2,
        *[own_timer(102)] * 4,
        *[woken_by(300, OTHER, OTHER, next_tgid=OTHER)] * 5,
    )
    found = attribution(records)
    rows = [(row.thread.tid, row.origin, row.mechanism, row.count) for row in found.wakeups]
    assert rows == [
        (101, "own_timer", "timer", 8),
        (102, "own_timer", "timer", 4),
        (101, "own_timer", "ipi", 3),
        (101, "other_thread", "ipi", 2),
    ]
    first = found.wakeups[0]
    assert (first.rate_hz, first.period_ms, first.detail) == (8 / WINDOW_S, pytest.approx(10.0), "hrtimer_wakeup")
    assert first.own_ms == pytest.approx(8 * 0.1)
    assert first.c0_ms == pytest.approx(8 * 0.16)
    assert first.idle_ms == pytest.approx(1.0)
    assert first.states == {"POLL": 8}
    assert found.conservation.idle_exits_count == len(records)
    assert sum(cause.count for cause in found.other_causes) == 5


def test_each_waking_is_in_one_row() -> None:
    records = exits(*[own_timer(101)] * 5, *[own_timer(101, evidence=WakeEvidence.RESCHEDULE)] * 2)
    found = attribution(
        records,
        [
            waking(101, 20),
            waking(101, 3, WakerContext.UNSEEN),
            waking(102, 7, WakerContext.TASK, waker_tid=OTHER, waker_pid=OTHER),
        ],
    )
    # 23 in all: 2 in the row of the rarer mechanism, and those that ended no idle period in the main one.
    assert [(row.mechanism, row.count, row.wakings_count) for row in found.wakeups] == [("timer", 5, 21), ("ipi", 2, 2)]
    (only,) = found.wakings_without_exit
    assert (only.thread.tid, only.origin, only.wakings_count, only.wakings_hz) == (
        102,
        "other_process",
        7,
        7 / WAKINGS_S,
    )
    assert only.waker is not None
    assert only.waker.comm == "client"


def test_exit_with_unseen_waker_replaces_a_waking() -> None:
    unseen = own_timer(101, flags=int(Flag.SITE))
    found = attribution(exits(*[own_timer(101)] * 68, unseen, unseen), [waking(101, 70)])
    assert [(row.origin, row.count, row.wakings_count) for row in found.wakeups] == [
        ("own_timer", 68, 68),
        ("kernel", 2, 2),
    ]
    # One that is in no other row is not told a second time.
    found = attribution(exits(unseen), [waking(101, 1)])
    assert [(row.origin, row.wakings_count) for row in found.wakeups] == [("kernel", 1)]
    assert found.wakings_without_exit == []


@pytest.mark.parametrize("field", ["loaded_count", "uncounted_count"])
def test_incomplete_waking_counts_are_unknown(field: str) -> None:
    found = attribution(exits(own_timer(101)), [waking(101, 20)], **{field: 1})
    assert found.wakeups[0].wakings_count is None
    assert found.wakings_window_s is None
    assert found.wakings_without_exit == []
    assert any(
        "counted" in note or "wakings_count" in note or "count wakings" in note for note in word_notes(found.notes)
    )


def test_losses_have_notes() -> None:
    found = attribution(exits(own_timer(101)), stacks_lost_count=4, unsent_count=5, lost_count=2)
    assert any(note.startswith("4 stacks were lost to a full buffer") for note in word_notes(found.notes))
    assert any("5 stacks were not copied" in note for note in word_notes(found.notes))
    assert found.conservation.lost_count == 2
    assert found.conservation.coverage_percent == pytest.approx(100 / 3)


def test_idle_periods_ended_by_waking_others_are_counted() -> None:
    found = attribution(exits(*[woken_by(OTHER, 101, PID, next_tgid=OTHER)] * 3, own_timer(101)))
    (woken,) = found.woken_elsewhere
    assert (woken.thread.tid, woken.process, woken.count, woken.rate_hz) == (101, "client", 3, 3 / WINDOW_S)


def test_exits_outside_of_the_window_are_left_out() -> None:
    records = exits({"cpu": 0}, {"cpu": 0}, {"cpu": 1}, {"cpu": 4_000_000_000})
    found = select_in_window(records, {0: CpuEdge(0, 0, 15 * MS, None), 1: CpuEdge(1, 0, 100 * MS, None)})
    assert found["cpu"].tolist() == [0, 1]


def test_capture_of_version_1_has_the_same_attribution() -> None:
    """Version 1, saved before the kernel summed: the same rows from the records. Version 2 did not know who ran: all
    time until the CPUs idled again is the waker's."""
    records = exits(*[own_timer(101)] * 7, *[woken_by(102, 102, PID)] * 3, {"next_tid": OTHER, "next_tgid": OTHER})
    entries = summed(records)
    before = np.zeros(len(entries), dtype=CAUSE_BEFORE)
    for name in CAUSE_BEFORE.names or ():
        before[name] = entries[name]
    found = attribution(records, version=2, causes=before.tobytes())
    assert attribution(records, version=1, causes=b"") == found
    assert [(row.c0_ms, row.own_ms) for row in found.wakeups] == [
        (pytest.approx(1.4), None),
        (pytest.approx(0.6), None),
    ]
    assert found.other_causes[0].c0_ms == pytest.approx(0.2)
    assert found.running is None


def test_running_time_belongs_to_the_thread_that_ran() -> None:
    """A spinner that ran after the exits of a poller, and a kernel thread: all of the host's time is in one place."""
    records = exits(*[own_timer(101)] * 8, *[woken_by(300, OTHER, OTHER, next_tgid=OTHER)] * 5, {"next_tid": 0})
    threads = ran((101, PID, 1, 3.0), (300, OTHER, 0, 900.0), (9, 9, 2, 7.0), (5, 1, 0, 11.0), (102, PID, 1, 2.0))
    more = {"ran": threads, "ran_others_ns": 4 * MS, "ran_target_ns": MS, "c0_percent": 50.0}
    found = attribution(records, [waking(101, 20)], **more)
    (poller,) = found.wakeups
    assert (poller.own_ms, poller.c0_ms) == (pytest.approx(3.0), pytest.approx(3.0 + 8 * 0.06))
    spinner = next(cause for cause in found.other_causes if cause.count == 5)
    assert spinner.c0_ms == pytest.approx(900.0 + 5 * 0.06)
    whole = found.running
    assert whole is not None
    # Thread 102 ended no idle period, and others of the process have ended.
    assert whole.target_ms == pytest.approx(3.0 + 0.48 + 2.0 + 1.0)
    assert (whole.tool_ms, whole.kernel_ms) == (pytest.approx(11.0), pytest.approx(0.06))
    assert whole.others_ms == pytest.approx(900.0 + 0.3 + 7.0 + 4.0)
    assert whole.c0_ms == pytest.approx(1250.0)
    assert whole.rest_ms == pytest.approx(1250.0 - 6.48 - 11.0 - 0.06 - 911.3)


def test_time_without_idle_exit_is_divided_by_wakings() -> None:
    """Thread 101 ended idle periods at one place and was woken at another on a busy CPU only; 102 ended none at all."""
    records = exits(*[own_timer(101)] * 10)
    elsewhere = [
        waking(101, 30, WakerContext.TASK, ip=1, waker_tid=OTHER, waker_pid=OTHER),
        waking(102, 7, WakerContext.TASK, ip=2, waker_tid=OTHER, waker_pid=OTHER),
    ]
    found = attribution(records, [waking(101, 20), *elsewhere], ran=ran((101, PID, 1, 5.0), (102, PID, 1, 9.0)))
    # 1 ms after ten exits; the other 4 ms after 10 and 30 wakings.
    assert [row.own_ms for row in found.wakeups] == [pytest.approx(2.0)]
    assert {row.thread.tid: row.own_ms for row in found.wakings_without_exit} == {
        101: pytest.approx(3.0),
        102: pytest.approx(9.0),
    }


@settings(max_examples=200, deadline=None)
@given(
    total=st.integers(0, 10**12).map(float),  # the scheduler counts whole nanoseconds
    places=st.lists(
        st.tuples(st.integers(0, 10**11).map(float), st.integers(0, 1000), st.integers(0, 10_000)),
        min_size=1,
        max_size=9,
    ),
)
def test_divided_running_time_adds_up(total: float, places: list[tuple[float, int, int]]) -> None:
    known = [blame.WakingPlace(after_ns if exits else 0.0, exits, others) for after_ns, exits, others in places]
    parts = blame.divide_running_time(total, known)
    measured = sum(place.after_exits_ns for place in known)
    assert all(part >= place.after_exits_ns for part, place in zip(parts, known, strict=True))
    if measured or any(place.exits or place.other_wakings for place in known):
        assert sum(parts) == pytest.approx(max(total, measured))


_HELPER = 700


@pytest.mark.parametrize(
    "pids", [[PID], [PID, _HELPER], [PID, 1, _HELPER], []], ids=["pid", "group", "own group", "system"]
)
@pytest.mark.parametrize("number", [1, _HELPER], ids=["itself", "helper"])
def test_wakeups_of_powerprof_are_its_own(pids: list[int], number: int) -> None:
    """Whatever the target is: a thread of powerprof or of a helper, such as turbostat, is in powerprof's row."""
    thread = number + 1
    records = exits(own_timer(101), *({**own_timer(thread), "next_tgid": number} for _ in range(3)))
    found = attribution(
        records,
        target=TargetInfo(pid=None, executable=None, build_id=None, label="x", pids=pids, system=not pids),
        tasks=[Task(101, PID, "t101", "x", False), Task(thread, number, "turbostat", "turbostat", False)],
        own_helpers=[_HELPER],
        ran=ran((101, PID, 1, 5.0), (thread, number, 0, 7.0)),
    )
    assert sum(row.count for row in found.wakeups) == 1
    assert [(cause.process, cause.count) for cause in found.other_causes] == [("powerprof", 3)]
    assert found.running is not None and found.running.tool_ms > 0 and found.running.others_ms == 0
