# SPDX-License-Identifier: Apache-2.0
"""Idle exits joined with threads, wakers and wakings: the pure middle of `powerprof attribute`, on made-up exits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from powerprof.attribution import blame
from powerprof.attribution.capture import NamedSite, NamedSites, StackTally
from powerprof.model.attribution import Attribution, StackFrame, TargetInfo
from powerprof.model.records import EnergyReading, EnergySplit, Note
from powerprof.report.notes import word_notes
from powerprof.system.tasks import ENDED, Task
from powerprof.tracing.bpf.shared_numbers import CODE_WORKER, Flag, StackKind, WakeEvidence, WakerContext
from powerprof.tracing.captures import CpuEdge, select_in_window
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
    assert (only.thread.tid, only.origin, only.wakings_count) == (102, "other_process", 7)
    assert only.wakings_hz == pytest.approx(7 / WAKINGS_S) and found.wakings_window_s == pytest.approx(WAKINGS_S)
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


def test_idle_periods_ended_by_waking_others_are_counted() -> None:
    found = attribution(exits(*[woken_by(OTHER, 101, PID, next_tgid=OTHER)] * 3, own_timer(101)))
    (woken,) = found.woken_elsewhere
    assert (woken.thread.tid, woken.process, woken.count, woken.rate_hz) == (101, "client", 3, 3 / WINDOW_S)


def test_exits_outside_of_the_window_are_left_out() -> None:
    records = exits({"cpu": 0}, {"cpu": 0}, {"cpu": 1}, {"cpu": 4_000_000_000})
    found = select_in_window(records, {0: CpuEdge(0, 0, 15 * MS, None), 1: CpuEdge(1, 0, 100 * MS, None)})
    assert found["cpu"].tolist() == [0, 1]


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


def test_unseen_wakings_are_of_the_usual_origin() -> None:
    seen = [waking(102, 4, ip=5), waking(102, 9, WakerContext.TASK, ip=5, waker_tid=OTHER, waker_pid=OTHER)]
    found = attribution(exits(own_timer(101)), [*seen, waking(102, 3, WakerContext.UNSEEN, ip=5)])
    assert [(row.origin, row.wakings_count) for row in found.wakings_without_exit] == [
        ("other_process", 12),
        ("own_timer", 4),
    ]


def test_main_cause_of_a_row_is_the_most_frequent() -> None:
    """Two kinds of timer interrupts ended the periods of one row. The period is that of nine exits in ten."""
    found = attribution(exits(*[own_timer(101)] * 9, own_timer(101, evidence=WakeEvidence.HRTIMER)))
    assert [(row.count, row.period_ms) for row in found.wakeups] == [(10, pytest.approx(10.0))]
    found = attribution(exits(*[own_timer(101)] * 9, *[own_timer(101, evidence=WakeEvidence.HRTIMER)] * 3))
    assert [(row.count, row.period_ms) for row in found.wakeups] == [(12, None)]


def test_threads_of_the_target_that_wake_each_other_are_not_elsewhere() -> None:
    found = attribution(exits(woken_by(101, 102, PID), woken_by(OTHER, OTHER, OTHER, next_tgid=OTHER)))
    assert found.woken_elsewhere == []


def test_kernel_threads_are_no_target_of_the_whole_system() -> None:
    system = TargetInfo(pid=None, executable=None, build_id=None, label="system", system=True)
    records = exits(own_timer(101), *[woken_by(9, OTHER, OTHER, next_tgid=9)] * 2, own_timer(0, next_tgid=0))
    found = attribution(records, target=system, ran=ran((101, PID, 0, 5.0), (9, 9, 2, 7.0)))
    assert [(row.thread.tid, row.count) for row in found.wakeups] == [(101, 1)]
    assert sorted(cause.count for cause in found.other_causes) == [1, 2]
    assert found.running is not None and found.running.target_ms == pytest.approx(5.06)


def named(*stacks: tuple[int, int, Sequence[str | None], bool, bool]) -> NamedSites:
    """Return named stacks of (thread, ip, functions, complete, captured)."""
    frames = [
        StackFrame(function=name, module="x", address=f"{ip + at:#x}")
        for _, ip, names, _, _ in stacks
        for at, name in enumerate(names)
    ]
    sites, first = [], 0
    for tid, ip, names, complete, captured in stacks:
        numbers = list(range(first, first + len(names)))
        pcs = [ip + at for at in range(len(names))]
        first += len(names)
        reason = None if complete else "cut"
        sites.append(NamedSite(StackKind.SLEEPER, PID, tid, ip, 0, 0, pcs, numbers, complete, reason, captured))
    tally = StackTally(captured=12, complete=5, truncated=7, failed=3)
    return NamedSites(frames=frames, sites=sites, tally=tally, notes=["of the stacks"])


def test_shares_of_stacks_are_of_the_exits_with_user_stacks() -> None:
    """Six exits with a whole stack, three with a cut one, one without; five of a worker that has none."""
    stacks = named(
        (101, 1, ["poll", None, "loop", "start"], True, True),
        (101, 2, ["read", None], False, True),
        (102, 3, [None], False, False),
    )
    records = exits(
        *[own_timer(101, site_ip=1)] * 6,
        *[own_timer(101, site_ip=2)] * 3,
        own_timer(102, site_ip=3),
        *[woken_by(101, 102, PID, site_code=CODE_WORKER)] * 5,
    )
    found = attribution(records, named=stacks, stacks_lost_count=4).stacks
    assert (found.captured_count, found.complete_count, found.truncated_count, found.failed_count) == (12, 5, 7, 3)
    assert found.lost_count == 4
    assert found.exits_with_stack_percent == pytest.approx(90)
    assert found.exits_complete_percent == pytest.approx(60)
    assert found.unnamed_frames_percent == pytest.approx(100 * 3 / 7)


def test_waker_has_its_most_frequent_stack() -> None:
    """The process that woke the thread most, and the threads of the target have their call paths."""
    stacks = named((102, 7, ["signal", "work"], True, True))
    site = stacks.sites[0]
    waker = msgspec.structs.replace(site, kind=StackKind.WAKER)
    records = exits(
        *[woken_by(101, 102, PID, flags=Flag.WAKER | Flag.WAKER_SITE, waker_ip=7)] * 3,
        *[woken_by(101, OTHER, OTHER)] * 2,
    )
    found = attribution(records, named=msgspec.structs.replace(stacks, sites=[site, waker]))
    first, second = (row.waker for row in found.wakeups)
    assert (first.tid, first.pid, first.comm, first.stack_complete) == (102, PID, "t102", True)
    assert [frame.function for frame in first.stack] == ["signal", "work"]
    assert (second.tid, second.pid, second.comm, second.stack, second.stack_complete) == (
        OTHER,
        OTHER,
        "client",
        [],
        None,
    )


def test_states_and_idle_time_of_a_row() -> None:
    records = exits(own_timer(101, state=1), own_timer(101, state=1), own_timer(101, state=0), own_timer(101, state=4))
    records["enter_ns"][0] -= 6 * MS
    (row,) = attribution(records).wakeups
    assert row.idle_ms == pytest.approx((7 + 1 + 1 + 1) / 4)
    assert row.states == {"C1": 2, "POLL": 1, "state 4": 1}


def notes_of(found: Attribution) -> dict[str, Mapping[str, float | str]]:
    return {note.name: note.values for note in found.notes if isinstance(note, Note)}


def test_notes_have_the_figures_of_the_missing_parts() -> None:
    """Two threads without a row ran for 403 and 5 ms; a kernel thread and powerprof ran too."""
    threads = ran((101, PID, 1, 9.0), (102, PID, 1, 5.0), (103, PID, 1, 403.0), (9, PID, 2, 50.0), (5, 1, 0, 60.0))
    found = attribution(
        exits(own_timer(101), {**own_timer(ENDED), "next_tgid": ENDED}, {**own_timer(ENDED + 1), "next_tgid": OTHER}),
        [waking(101, 3)],
        ran=threads,
        sample_1_in=4,
        sample_lost_count=6,
    )
    notes = notes_of(found)
    assert notes["running_without_row"] == {"ms": pytest.approx(408.0), "count": 2, "tid": 103}
    assert notes["ended_threads"] == {"count": 2}
    assert notes["sampled_exits"] == {"one_in": 4, "lost_count": 6}
    short = attribution(exits(own_timer(101)), [waking(101, 3)], ran=ran((101, PID, 1, 9.0), (103, PID, 1, 0.9)))
    assert "running_without_row" not in notes_of(short) and "ended_threads" not in notes_of(short)
    lost = notes_of(
        attribution(exits(own_timer(101)), uncounted_count=3, stacks_lost_count=4, unsent_count=5, lost_count=2)
    )
    assert [lost[name]["count"] for name in ("sites_left_out", "stacks_lost", "stacks_not_copied", "causes_lost")] == [
        3,
        4,
        5,
        2,
    ]


def test_running_time_of_a_capture_without_c0_has_no_rest() -> None:
    found = attribution(exits(own_timer(101)), ran=ran((101, PID, 1, 9.0)), c0_percent=None)
    assert found.running is not None and (found.running.c0_ms, found.running.rest_ms) == (None, None)


def test_kernel_threads_of_the_target_s_process_are_others() -> None:
    """The kernel's own thread works for the target's process, but its time is not the target's."""
    found = attribution(exits(own_timer(101)), ran=ran((101, PID, 1, 9.0), (103, PID, 2, 40.0)), c0_percent=30.0)
    whole = found.running
    assert whole is not None and whole.c0_ms == pytest.approx(1e3 * 0.3 * WINDOW_S)
    assert whole.target_ms == pytest.approx(9.06) and whole.others_ms == pytest.approx(40.0)


# Energy of the host, split over its rows.

POWER = {
    "energy": [
        EnergyReading(source="rapl", domain="package-0", scope="package", kind="measured", joules=40.0, watts=16.0)
    ]
}
EDGES = [CpuEdge(0, 0, 10_000 * MS, None), CpuEdge(1, 0, 10_000 * MS, None)]


def split(c0_percent: float, **more: Any) -> tuple[Attribution, EnergySplit]:
    """One CPU of two ran for the target, powerprof, others and the kernel; 10 % of the time was stolen."""
    records = exits(
        *[own_timer(101)] * 8,
        *[own_timer(102)] * 3,
        *[woken_by(300, OTHER, OTHER, next_tgid=OTHER)] * 5,
        *[{**own_timer(5), "next_tgid": 1}] * 2,
        {"next_tid": 0},
    )
    threads = ran(
        (101, PID, 1, 300.0), (102, PID, 1, 50.0), (103, PID, 1, 150.0), (300, OTHER, 0, 200.0), (5, 1, 0, 20.0)
    )
    values = {
        "edges": EDGES,
        "ran": threads,
        "ran_others_ns": 25 * MS,
        "ran_target_ns": 15 * MS,
        "c0_percent": c0_percent,
        "steal_percent": 10.0,
        "idle_watts": 4.0,
        "wakeup_joules": 0.002,
        **POWER,
    }
    found = attribution(records, [waking(101, 8), waking(102, 3)], **(values | more))
    assert found.energy_split is not None
    return found, found.energy_split


# Running time in seconds of each part, with 0.06 ms of the kernel for each exit.
TARGET_S, TOOL_S, OTHERS_S, KERNEL_S = 0.515 + 11 * 6e-5, 0.020 + 2 * 6e-5, 0.225 + 5 * 6e-5, 6e-5
ROWS_S = (0.300 + 8 * 6e-5, 0.050 + 3 * 6e-5)


def test_energy_is_split_by_running_time_and_wakeups() -> None:
    """The host ran for 1.0 s without the stolen time, and drew 30 J above its floor for it and 19 wake-ups."""
    found, energy = split(c0_percent=30.0)
    assert (energy.total_joules, energy.idle_joules, energy.active_joules) == (40.0, 10.0, 30.0)
    price = (30 - 19 * 0.002) / 1.0
    assert energy.rate_watts == pytest.approx(price) and energy.wakeup_joules == 0.002
    parts = {part.name: part for part in energy.parts}
    expected = {
        "x": (TARGET_S, 11),
        "powerprof": (TOOL_S, 2),
        "other threads": (OTHERS_S, 5),
        "the kernel": (KERNEL_S, 1),
    }
    for name, (c0_s, count) in expected.items():
        assert parts[name].c0_s == pytest.approx(c0_s) and parts[name].wakeups_count == count
        assert parts[name].joules == pytest.approx(price * c0_s + 0.002 * count)
        assert parts[name].percent == pytest.approx(100 * parts[name].joules / 30)
    rows = [(row.c0_s, row.wakeups_count) for row in parts["x"].children]
    assert rows == [(pytest.approx(ROWS_S[0]), 8), (pytest.approx(ROWS_S[1]), 3)]
    for row, part in zip(found.wakeups, parts["x"].children, strict=True):
        assert row.joules == pytest.approx(price * row.c0_ms / 1e3 + 0.002 * row.count) == part.joules
        assert row.joules_kind == "measured"
    assert energy.residual_joules == pytest.approx(30 - sum(part.joules for part in energy.parts))


def test_parts_run_no_longer_than_the_host_without_stolen_time() -> None:
    """Threads seem to have run for 0.76 s, and the host ran for 0.5 s: each one is shortened by the same factor."""
    _, energy = split(c0_percent=20.0)
    whole = TARGET_S + TOOL_S + OTHERS_S + KERNEL_S
    parts = {part.name: part for part in energy.parts}
    names = ("x", "powerprof", "other threads", "the kernel")
    assert [parts[name].c0_s for name in names] == [
        pytest.approx(part * 0.5 / whole) for part in (TARGET_S, TOOL_S, OTHERS_S, KERNEL_S)
    ]
    assert [row.c0_s for row in parts["x"].children] == [pytest.approx(row * 0.5 / whole) for row in ROWS_S]
    _, energy = split(c0_percent=20.0, steal_percent=None)
    assert energy.parts[0].c0_s == pytest.approx(TARGET_S)


def test_target_has_at_least_the_time_of_its_rows() -> None:
    """The kernel's thread of the target's process has a row, and its time is not in the target's sum."""
    threads = ran((101, PID, 1, 3.0), (102, PID, 2, 1.0))
    found, energy = split(c0_percent=30.0, ran=threads, ran_target_ns=0)
    blamed_s = sum(row.c0_ms for row in found.wakeups) / 1e3
    assert energy.parts[0].c0_s == pytest.approx(max(blamed_s, found.running.target_ms / 1e3))


@pytest.mark.parametrize("more", [{"energy": []}, {"c0_percent": None}])
def test_energy_of_an_unknown_host_is_not_split(more: dict[str, Any]) -> None:
    values = {"idle_watts": 4.0, "c0_percent": 30.0, **POWER} | more
    found = attribution(exits(own_timer(101)), ran=ran((101, PID, 1, 3.0)), **values)
    assert found.energy_split is None and found.wakeups[0].joules is None
    unknown_floor = attribution(exits(own_timer(101)), c0_percent=30.0, idle_watts=None, **POWER)
    assert unknown_floor.energy_split is not None and unknown_floor.energy_split.parts == []
    assert unknown_floor.wakeups[0].joules is None


@pytest.mark.parametrize(
    ("total", "places", "parts"),
    [
        # The rest of 60 ms costs 5 ms per exit at the first place, and the mean of 4 ms at the second.
        (100.0, [(30.0, 6, 3), (10.0, 4, 0), (0.0, 0, 5)], [30 + 60 * 15 / 35, 10.0, 60 * 20 / 35]),
        (100.0, [(30.0, 6, 0), (10.0, 4, 0)], [75.0, 25.0]),
        (90.0, [(0.0, 2, 0), (0.0, 7, 0)], [20.0, 70.0]),
        (90.0, [(0.0, 2, 1), (0.0, 7, 8)], [10.0, 80.0]),
        (10.0, [(30.0, 6, 3), (10.0, 4, 1)], [30.0, 10.0]),
        (5.0, [(0.0, 0, 0)], [0.0]),
    ],
)
def test_running_time_is_divided_by_cost(
    total: float, places: list[tuple[float, int, int]], parts: list[float]
) -> None:
    divided = blame.divide_running_time(total, [blame.WakingPlace(*place) for place in places])
    assert divided == [pytest.approx(part) for part in parts]


@settings(max_examples=60, deadline=None)
@given(
    counts=st.lists(st.integers(0, 4), min_size=5, max_size=5),
    wakings=st.lists(st.integers(0, 20), min_size=3, max_size=3),
    times=st.lists(st.integers(1, 400), min_size=5, max_size=5),
    lost=st.integers(0, 50),
)
def test_law_of_attributions(counts: list[int], wakings: list[int], times: list[int], lost: int) -> None:
    """Every exit, waking and nanosecond of running time is in one place, and rates are of their own windows."""
    kinds = [
        own_timer(101),
        woken_by(101, 102, PID),
        own_timer(102),
        woken_by(300, OTHER, OTHER, next_tgid=OTHER),
        {**own_timer(5), "next_tgid": 1, "evidence": WakeEvidence.NONE},
    ]
    records = exits(*[kind for kind, count in zip(kinds, counts, strict=True) for _ in range(count)])
    given_wakings = [
        waking(101, wakings[0]),
        waking(102, wakings[1], WakerContext.TASK, waker_tid=OTHER, waker_pid=OTHER),
        waking(103, wakings[2]),
    ]
    threads = ran(*zip((101, 102, 103, 300, 5), (PID, PID, PID, OTHER, 1), (1, 1, 1, 0, 0), times, strict=True))
    found = attribution(
        records, [each for each in given_wakings if each.count], ran=threads, lost_count=lost, c0_percent=60.0
    )
    whole = found.conservation
    assert whole.classified_count + whole.unknown_count + whole.lost_count == whole.idle_exits_count
    assert whole.idle_exits_count == len(records) + lost
    assert sum(row.count for row in (*found.wakeups, *found.other_causes)) == len(records)
    rows = [*found.wakeups, *found.wakings_without_exit]
    assert sum(row.wakings_count or 0 for row in rows) == max(
        sum(counts[:3]), sum(row.wakings_count or 0 for row in rows)
    )
    for row in found.wakeups:
        assert row.rate_hz * WINDOW_S == pytest.approx(row.count) and row.wakings_count is not None
        assert row.wakings_count >= row.count and sum(row.states.values()) == row.count
        assert row.c0_ms == pytest.approx((row.own_ms or 0.0) + 0.06 * row.count)
    for waking_row in found.wakings_without_exit:
        assert waking_row.wakings_hz * WAKINGS_S == pytest.approx(waking_row.wakings_count)
    for cause in found.other_causes:
        assert cause.wakeups_hz * WINDOW_S == pytest.approx(cause.count)
    assert sum(cause.percent for cause in found.other_causes) == pytest.approx(100.0 if found.other_causes else 0.0)
    running = found.running
    assert running is not None and running.c0_ms == pytest.approx(600 * WINDOW_S)
    parts = (running.target_ms, running.tool_ms, running.others_ms, running.kernel_ms)
    assert sum(parts) == pytest.approx(sum(times) + 0.06 * len(records))
    assert running.rest_ms == pytest.approx(600 * WINDOW_S - sum(parts))
    placed = {row.thread.tid for row in rows}
    own_ms = sum(row.own_ms or 0.0 for row in rows)
    assert own_ms == pytest.approx(sum(ms for tid, ms in zip((101, 102, 103), times, strict=False) if tid in placed))
