# SPDX-License-Identifier: Apache-2.0
"""Sleeps, waits for a CPU, wakers, system calls, files and locks: each figure is computed by hand from its sums."""

from __future__ import annotations

import stat
from collections.abc import Mapping
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from powerprof.attribution import offcpu
from powerprof.model.records import Ended, ended_by_signal
from powerprof.tracing.captures import CallSum, FileSum, OffCpuTrace, SyscallTrace, ThreadSums, WakingSum
from powerprof.tracing.dtrace_output import DtraceFrame, DtraceLatency, DtraceWakeup, SleepsTrace, WakersTrace

MS = 1_000_000
NAMES = {71: "thread/innodb/page_cleaner_thread"}


def thread(tid: int = 71, **more: Any) -> ThreadSums:
    """A thread with 7 sleeps of 4.2 s, 5 waits and 3 preemptions; no two figures are equal."""
    values: dict[str, Any] = {
        "pid": 70,
        "comm": f"comm{tid}",
        "states": {"interruptible": (4, 3000 * MS), "uninterruptible": (3, 1200 * MS)},
        "sleep_max_ns": 1900 * MS,
        "waits_count": 5,
        "wait_ns": 35 * MS,
        "wait_max_ns": 13 * MS,
        "preempted_count": 3,
        "preempted_ns": 17 * MS,
    }
    return ThreadSums(tid=tid, **(values | more))


def waking(tid: int, count: int, waker_tid: int = 81, **more: Any) -> WakingSum:
    return WakingSum(tid=tid, waker_pid=80, waker_tid=waker_tid, waker_comm=f"waker{waker_tid}", count=count, **more)


def trace(**more: Any) -> OffCpuTrace:
    values: dict[str, Any] = {
        "pids": [70],
        "window_s": 2.5,
        "threads": [thread()],
        "wakings": [],
        "lost_count": 6,
        "unseen_count": 0,
        "notes": ["a note"],
        "tool_cpu_s": 0.21,
        "bpf_s": 0.034,
        "ended": None,
    }
    return OffCpuTrace(**(values | more))


def test_figures_of_a_thread() -> None:
    (row,) = offcpu.build_bpf_profile(trace(), NAMES).threads
    assert (row.pid, row.tid, row.thread) == (70, 71, "thread/innodb/page_cleaner_thread")
    assert (row.sleeps_count, row.waits_count, row.preempted_count) == (7, 5, 3)
    assert row.sleeps_hz == pytest.approx(7 / 2.5)
    assert row.sleep_mean_ms == pytest.approx((3000 + 1200) / 7) and row.sleep_max_ms == pytest.approx(1900)
    assert row.wait_mean_ms == pytest.approx(35 / 5) and row.wait_max_ms == pytest.approx(13)
    assert row.preempted_ms == pytest.approx(17)
    assert [(state.state, state.sleeps_count, state.sleep_ms) for state in row.states or ()] == [
        ("interruptible", 4, pytest.approx(3000)),
        ("uninterruptible", 3, pytest.approx(1200)),
    ]


def test_wakers_have_rates_and_shares_of_all_wakings() -> None:
    wakings = [waking(71, 6), waking(72, 9, 82), waking(71, 5, 0)]
    record = offcpu.build_bpf_profile(trace(threads=[thread(), thread(72)], wakings=wakings), NAMES)
    assert record.wakings_count == 20 and record.wakings_window_s == 2.5
    assert [
        (row.tid, row.thread, row.waker_pid, row.waker_tid, row.waker_comm, row.count, row.rate_hz, row.percent)
        for row in record.wakers
    ] == [
        (72, "comm72", 80, 82, "waker82", 9, pytest.approx(3.6), pytest.approx(45)),
        (71, NAMES[71], 80, 81, "waker81", 6, pytest.approx(2.4), pytest.approx(30)),
        (71, NAMES[71], 80, 0, "waker0", 5, pytest.approx(2.0), pytest.approx(25)),
    ]


def test_sums_of_the_window_pass_through() -> None:
    record = offcpu.build_bpf_profile(trace(unseen_count=1, threads=[thread(71), thread(72, states={})]), {})
    assert (record.sleeps_count, record.lost_count, record.window_s, record.pids) == (7, 6, 2.5, [70])
    assert (record.tool_cpu_s, record.bpf_s, record.method, record.ended) == (0.21, 0.034, "bpf", None)
    assert record.notes[0] == "a note" and str(record.notes[1]).startswith("1 time ")
    assert offcpu.build_bpf_profile(trace(bpf_s=None, ended=ended_by_signal(True)), {}).ended
    assert offcpu.build_bpf_profile(trace(bpf_s=None), {}).bpf_s is None
    assert offcpu.build_bpf_profile(trace(), {}).notes == ["a note"]


SUMS = st.builds(
    thread,
    st.integers(1, 9),
    states=st.dictionaries(
        st.sampled_from(["interruptible", "uninterruptible", "idle"]),
        st.tuples(st.integers(1, 10**6), st.integers(0, 10**15)),
    ),
    sleep_max_ns=st.integers(0, 10**12),
    waits_count=st.integers(0, 10**6),
    wait_ns=st.integers(0, 10**12),
)
WAKINGS = st.lists(st.builds(waking, st.integers(1, 9), st.integers(1, 10**6), st.integers(0, 3)), max_size=5)


@given(threads=st.lists(SUMS, max_size=5), wakings=WAKINGS, window_s=st.floats(0.1, 1e4))
def test_law_of_sleeps(threads: list[ThreadSums], wakings: list[WakingSum], window_s: float) -> None:
    """Rates are counts by the window, means times count are the time, shares sum to the whole."""
    record = offcpu.build_bpf_profile(trace(threads=threads, wakings=wakings, window_s=window_s), {})
    assert record.sleeps_count == sum(count for each in threads for count, _ in each.states.values())
    assert [row.sleeps_count for row in record.threads] == sorted(row.sleeps_count for row in record.threads)[::-1]
    slept_ms = sum(ns for each in threads for _, ns in each.states.values()) / MS
    waited_ms = sum(each.wait_ns for each in threads if each.waits_count) / MS
    rows = record.threads
    assert sum((row.sleep_mean_ms or 0.0) * row.sleeps_count for row in rows) == pytest.approx(slept_ms)
    assert sum((row.wait_mean_ms or 0.0) * row.waits_count for row in rows) == pytest.approx(waited_ms)
    assert sum(state.sleep_ms for row in rows for state in row.states or ()) == pytest.approx(slept_ms)
    for row in rows:
        assert row.sleeps_hz * window_s == pytest.approx(row.sleeps_count)
        assert (row.sleep_mean_ms is None) == (row.sleep_max_ms is None) == (not row.sleeps_count)
        assert (row.wait_mean_ms is None) == (row.wait_max_ms is None) == (not row.waits_count)
    assert record.wakings_count == sum(row.count for row in record.wakers) == sum(each.count for each in wakings)
    assert sum(row.percent for row in record.wakers) == pytest.approx(100.0 if wakings else 0.0)
    for waker in record.wakers:
        assert waker.rate_hz * window_s == pytest.approx(waker.count)


def latency(tid: int = 71, **more: Any) -> DtraceLatency:
    values: dict[str, Any] = {
        "sleeps_count": 7,
        "sleep_mean_ms": 600.0,
        "sleep_max_ms": 1900.0,
        "waits_count": 5,
        "wait_mean_ms": 6.5,
        "wait_max_ms": 13.0,
    }
    return DtraceLatency(tid=tid, **(values | more))


def window(window_s: float, lost: int, cpu_s: float, note: str, ended: Ended | None = None) -> dict[str, Any]:
    return {"pid": 70, "window_s": window_s, "lost_count": lost, "notes": [note], "tool_cpu_s": cpu_s, "ended": ended}


STACK = [DtraceFrame("poll", "libc.so.6", 7, "libc.so.6`poll+0x7")]


def wakers(ended: Ended | None = None) -> WakersTrace:
    wakeups = [DtraceWakeup(71, 80, "client", 82, 9, STACK), DtraceWakeup(72, 80, "client", 81, 3, [])]
    return WakersTrace(wakeups=wakeups, **window(1.5, 4, 0.7, "of wakings", ended))


def test_dtrace_has_two_windows() -> None:
    """Sleeps are of the first window and wakings of the second one."""
    threads = [latency(), latency(72, sleeps_count=2, wait_mean_ms=None, waits_count=0, wait_max_ms=None)]
    sleeps = SleepsTrace(threads=threads, **window(2.0, 3, 0.4, "of sleeps"))
    record = offcpu.build_dtrace_profile(sleeps, wakers(), {71: "main"})
    assert (record.window_s, record.wakings_window_s) == (2.0, 1.5)
    assert (record.sleeps_count, record.wakings_count, record.lost_count) == (9, 12, 7)
    assert [(row.tid, row.sleeps_hz, row.sleep_mean_ms, row.wait_mean_ms) for row in record.threads] == [
        (71, 3.5, 600.0, 6.5),
        (72, 1.0, 600.0, None),
    ]
    first = record.threads[0]
    assert (first.thread, first.sleep_max_ms, first.wait_max_ms, first.waits_count) == ("main", 1900.0, 13.0, 5)
    assert (first.preempted_count, first.preempted_ms, first.states) == (None, None, None)
    assert [(row.tid, row.waker_tid, row.rate_hz, row.percent, row.stack) for row in record.wakers] == [
        (71, 82, pytest.approx(6.0), pytest.approx(75.0), STACK),
        (72, 81, pytest.approx(2.0), pytest.approx(25.0), []),
    ]
    assert record.tool_cpu_s == pytest.approx(1.1) and record.bpf_s is None
    assert record.notes == ["of sleeps", "of wakings"] and record.ended is None


def test_dtrace_without_its_second_window() -> None:
    sleeps = SleepsTrace(threads=[latency()], **window(2.0, 3, 0.4, "of sleeps", ended=ended_by_signal(True)))
    record = offcpu.build_dtrace_profile(sleeps, None, {})
    assert (record.wakings_window_s, record.wakings_count, record.wakers) == (None, None, [])
    assert (record.lost_count, record.tool_cpu_s, record.ended is None) == (3, 0.4, False)
    whole = SleepsTrace(threads=[latency()], **window(2.0, 3, 0.4, "of sleeps"))
    assert offcpu.build_dtrace_profile(whole, wakers(ended=ended_by_signal(True)), {}).ended


# System calls.


def call(name: str = "read", operation: str = "", tid: int = 71, **more: Any) -> CallSum:
    values: dict[str, Any] = {"count": 40, "errors_count": 3, "ns": 90 * MS, "longest_ns": 11 * MS}
    return CallSum(pid=70, tid=tid, name=name, operation=operation, **(values | more))


def file(path: str = "data/ibdata1", mode: int = stat.S_IFREG, **more: Any) -> FileSum:
    values: dict[str, Any] = {
        "tid": 71,
        "comm": "comm71",
        "reads_count": 4,
        "read_bytes": 16_384,
        "writes_count": 3,
        "write_bytes": 5_000,
        "syncs_count": 2,
        "sync_ns": 7 * MS,
    }
    return FileSum(pid=70, path=path, mode=mode, **(values | more))


def syscalls(calls: list[CallSum], files: list[FileSum], **more: Any) -> SyscallTrace:
    values: dict[str, Any] = {
        "pids": [70],
        "window_s": 2.5,
        "waiting": {"futex WAIT": 3},
        "exited_names": {},
        "lost_count": 6,
        "parts_count": 0,
        "notes": ["a note"],
        "tool_cpu_s": 0.21,
        "bpf_s": 0.034,
        "ended": None,
    }
    return SyscallTrace(calls=calls, files=files, **(values | more))


def test_figures_of_calls() -> None:
    rare = call("fsync", tid=72, count=2, errors_count=0, ns=50 * MS, longest_ns=30 * MS)
    record = offcpu.build_syscall_profile(syscalls([rare, call()], []), NAMES)
    assert record.calls_count == 42
    assert [
        (row.tid, row.thread, row.name, row.count, row.errors_count, row.total_ms, row.longest_ms)
        for row in record.calls
    ] == [
        (71, NAMES[71], "read", 40, 3, pytest.approx(90), pytest.approx(11)),
        (72, None, "fsync", 2, 0, pytest.approx(50), pytest.approx(30)),
    ]
    assert (record.waiting_count, record.lost_count, record.window_s) == ({"futex WAIT": 3}, 6, 2.5)
    assert (record.tool_cpu_s, record.bpf_s, record.notes) == (0.21, 0.034, ["a note"])


def test_figures_of_files() -> None:
    unused = file("unused", reads_count=0, writes_count=0, syncs_count=0)
    synced = file("log", syncs_count=9, reads_count=0, read_bytes=0, writes_count=0, write_bytes=0, tid=72, comm="")
    record = offcpu.build_syscall_profile(syscalls([], [unused, synced, file()], parts_count=2), {})
    assert [
        (row.path, row.thread, row.reads_count, row.read_bytes, row.writes_count, row.write_bytes, row.syncs_count)
        for row in record.files
    ] == [("data/ibdata1", "comm71", 4, 16_384, 3, 5_000, 2), ("log", None, 0, 0, 0, 0, 9)]
    assert [row.sync_ms for row in record.files] == [pytest.approx(7), pytest.approx(7)]
    assert str(record.notes[1]).startswith("2 requests ")


@pytest.mark.parametrize(
    ("mode", "kind"),
    [
        (stat.S_IFREG | 0o644, "file"),
        (stat.S_IFBLK, "file"),
        (stat.S_IFSOCK, "socket"),
        (stat.S_IFIFO, "pipe"),
        (stat.S_IFCHR, "other"),
        (0, "other"),
    ],
)
def test_kind_of_a_file(mode: int, kind: str) -> None:
    (row,) = offcpu.build_syscall_profile(syscalls([], [file(mode=mode)]), {}).files
    assert row.kind == kind


@pytest.mark.parametrize(
    ("name", "operation", "waits"),
    [
        *(("futex", word, True) for word in ("WAIT", "WAIT_BITSET", "LOCK_PI", "WAIT_REQUEUE_PI", "LOCK_PI2")),
        *(("futex", word, False) for word in ("WAKE", "UNLOCK_PI", "TRYLOCK_PI", "REQUEUE")),
        *((word, "", True) for word in ("futex_wait", "futex_waitv")),
        *((word, "", False) for word in ("futex_wake", "read")),
    ],
)
def test_calls_that_wait_for_locks(name: str, operation: str, waits: bool) -> None:
    assert bool(offcpu.build_syscall_profile(syscalls([call(name, operation)], []), {}).lock_waits) is waits


def test_lock_waits_of_a_thread_are_one_row() -> None:
    calls = [
        call("futex", "WAIT", count=5, ns=40 * MS, longest_ns=21 * MS),
        call("futex", "WAIT_BITSET", count=2, ns=9 * MS, longest_ns=6 * MS),
        call("futex", "WAKE", count=100, ns=1 * MS),
        call("futex", "WAIT", tid=72, count=1, ns=50 * MS, longest_ns=50 * MS),
    ]
    rows = offcpu.build_syscall_profile(syscalls(calls, []), NAMES).lock_waits
    assert [(row.pid, row.tid, row.thread, row.waits_count, row.total_ms, row.longest_ms) for row in rows] == [
        (70, 72, None, 1, pytest.approx(50), pytest.approx(50)),
        (70, 71, NAMES[71], 7, pytest.approx(49), pytest.approx(21)),
    ]


CALLS = st.builds(
    call,
    st.sampled_from(["read", "futex", "futex_waitv"]),
    st.sampled_from(["", "WAIT", "WAKE"]),
    st.integers(1, 3),
    count=st.integers(1, 10**6),
    errors_count=st.integers(0, 10),
    ns=st.integers(0, 10**12),
    longest_ns=st.integers(0, 10**9),
)
FILES = st.builds(
    file,
    st.sampled_from("abc"),
    **{
        name: st.integers(0, 10**9)
        for name in ("reads_count", "read_bytes", "writes_count", "write_bytes", "syncs_count", "sync_ns")
    },
)


@given(calls=st.lists(CALLS, max_size=6), files=st.lists(FILES, max_size=5))
def test_law_of_system_calls(calls: list[CallSum], files: list[FileSum]) -> None:
    """Counts, errors, times and bytes of the rows sum to those of the trace; lock waits are a part of the calls."""
    record = offcpu.build_syscall_profile(syscalls(calls, files), {})
    assert record.calls_count == sum(row.count for row in record.calls) == sum(each.count for each in calls)
    assert sum(row.errors_count for row in record.calls) == sum(each.errors_count for each in calls)
    assert sum(row.total_ms for row in record.calls) == pytest.approx(sum(each.ns for each in calls) / MS)
    used = [each for each in files if each.reads_count or each.writes_count or each.syncs_count]
    for name in ("reads_count", "read_bytes", "writes_count", "write_bytes", "syncs_count"):
        assert sum(getattr(row, name) for row in record.files) == sum(getattr(each, name) for each in used)
    assert sum(row.sync_ms for row in record.files) == pytest.approx(sum(each.sync_ns for each in used) / MS)
    waits = [each for each in calls if each.operation == "WAIT" or each.name == "futex_waitv"]
    assert sum(row.waits_count for row in record.lock_waits) == sum(each.count for each in waits)
    assert sum(row.total_ms for row in record.lock_waits) == pytest.approx(sum(each.ns for each in waits) / MS)
    assert max((row.longest_ms for row in record.lock_waits), default=0.0) == pytest.approx(
        max((each.longest_ns for each in waits), default=0) / MS
    )


@pytest.mark.parametrize("kind", [offcpu.OffCpuProfile, offcpu.SyscallProfile])
def test_records_survive_json(kind: type[msgspec.Struct]) -> None:
    made: Mapping[type[msgspec.Struct], msgspec.Struct] = {
        offcpu.OffCpuProfile: offcpu.build_bpf_profile(trace(wakings=[waking(71, 2)]), NAMES),
        offcpu.SyscallProfile: offcpu.build_syscall_profile(syscalls([call()], [file()]), NAMES),
    }
    assert msgspec.json.decode(msgspec.json.encode(made[kind]), type=kind) == made[kind]
