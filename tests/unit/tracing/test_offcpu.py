# SPDX-License-Identifier: Apache-2.0
"""The kernel's tables of sleeps, wakings and system calls as rows of threads and files."""

from __future__ import annotations

import os
import stat
from typing import Any

import numpy as np
import pytest

from powerprof.measure.window import PassedWindow
from powerprof.tracing import offcpu
from powerprof.tracing.bpf.shared_numbers import Abi, CallKind, OffCpuReason
from tests.unit.tracing.programs import FakeProgram

OWN = 4711
PASSED = PassedWindow(2.5, 0.25, 5, ["a note"])


@pytest.fixture(autouse=True)
def own_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offcpu, "own_pids", lambda: frozenset({OWN}))


def who(tid: int, pid: int = 70) -> int:
    return pid << 32 | tid


def entry(kind: np.dtype[Any], **values: Any) -> bytes:
    made = np.zeros((), dtype=kind)
    for name, value in values.items():
        made[name] = value
    return made.tobytes()


def tracer(kind: type[Any], hashes: dict[str, dict[bytes, bytes]], **more: Any) -> Any:
    """Return a tracer whose counters grew by 6 and 8, and whose program ran for 0.3 s."""
    program = FakeProgram(hashes=hashes, counters={"counters": [106, 208]}, run_s=0.75)
    made = kind.__new__(kind)
    made._program, made._followed, made._counted, made._ran_s = program.as_loaded(), None, [100, 200], 0.45
    for name, value in more.items():
        setattr(made, name, value)
    return made


def sleeps(**more: Any) -> bytes:
    counts, times = np.zeros(8, "<u8"), np.zeros(8, "<u8")
    for number, reason in enumerate(OffCpuReason, 1):
        counts[reason], times[reason] = 3 * number, 1_000 * number
    counts[OffCpuReason.KILLABLE] = 0
    values = {"counts": counts, "off_ns": times, "sleep_max_ns": 21, "waits": 22, "wait_ns": 23, "wait_max_ns": 24}
    return entry(offcpu._THREAD, comm=b"worker", **(values | more))


def test_rows_of_threads_and_wakers() -> None:
    threads = {np.uint64(who(71)).tobytes(): sleeps(), np.uint64(who(72, OWN)).tobytes(): sleeps()}
    wakers = {
        entry(offcpu._WAKER_KEY, sleeper=who(71), waker=who(81, 80)): entry(offcpu._WAKER, count=31, comm=b"client"),
        entry(offcpu._WAKER_KEY, sleeper=who(71), waker=0): entry(offcpu._WAKER, count=32),
        entry(offcpu._WAKER_KEY, sleeper=who(71), waker=who(82, OWN)): entry(offcpu._WAKER, count=33, comm=b"python"),
        entry(offcpu._WAKER_KEY, sleeper=who(72, OWN), waker=who(81, 80)): entry(
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
    assert trace.bpf_s == pytest.approx(0.3) and trace.tool_cpu_s >= 0.25 and not trace.interrupted


@pytest.mark.parametrize(("before_s", "now_s"), [(None, 0.75), (0.45, None)])
def test_time_of_a_program_that_the_kernel_does_not_count(before_s: float | None, now_s: float | None) -> None:
    made = tracer(offcpu.OffCpuTracer, {}, _ran_s=before_s)
    made._program.run_s = now_s
    assert made.bpf_s() is None


def number_of(name: str, abi: int = Abi.NATIVE) -> int:
    return next(number for number, known in offcpu.syscall_names(abi=abi).items() if known == name)


def call(name: str, tid: int = 71, pid: int = 70, abi: int = Abi.NATIVE, operation: int = 0) -> bytes:
    return entry(offcpu._CALL_KEY, who=who(tid, pid), number=number_of(name, abi), operation=operation, abi=abi)


def sums(calls: int, errors: int, ns: int, longest_ns: int) -> bytes:
    return entry(offcpu._CALL, calls=calls, errors=errors, ns=ns, longest_ns=longest_ns)


FILE = {"reads": 41, "read_bytes": 42, "writes": 43, "write_bytes": 44, "syncs": 45, "sync_ns": 46}


def test_rows_of_calls_and_files() -> None:
    calls = {
        call("read"): sums(9, 2, 900, 300),
        call("futex", operation=9): sums(5, 1, 500, 250),
        call("futex", operation=1): sums(3, 0, 30, 20),
        call("read", pid=OWN): sums(99, 9, 99, 99),
    }
    number = entry(offcpu._CALL_KEY, who=who(72), number=999, abi=Abi.NATIVE)
    calls[number] = sums(1, 0, 7, 7)
    key = entry(offcpu._FILE_KEY, who=who(71), inode=7, device=(8 << 20) | 3)
    other = entry(offcpu._FILE_KEY, who=who(71), inode=8, device=(8 << 20) | 3)
    own = entry(offcpu._FILE_KEY, who=who(71, OWN), inode=8, device=0)
    use = entry(offcpu._FILE_USE, mode=stat.S_IFREG, name=b"ibdata1", folder=b"mysql", comm=b"worker", **FILE)
    waiting = {
        np.uint64(who(71)).tobytes(): entry(offcpu._OPEN_CALL, number=number_of("futex"), operation=0, abi=Abi.NATIVE),
        np.uint64(who(72)).tobytes(): entry(offcpu._OPEN_CALL, number=number_of("futex"), operation=0, abi=Abi.NATIVE),
        np.uint64(who(73)).tobytes(): entry(offcpu._OPEN_CALL, number=number_of("read"), abi=Abi.NATIVE),
        np.uint64(who(74, OWN)).tobytes(): entry(offcpu._OPEN_CALL, number=number_of("read"), abi=Abi.NATIVE),
    }
    trace = tracer(
        offcpu.SyscallTracer,
        {"calls": calls, "files": {key: use, other: use, own: use}, "open_calls": waiting},
        _paths={(os.makedev(8, 3), 7): "/var/lib/mysql/ibdata1"},
        _can_count_uring=True,
    ).collect(PASSED)
    assert [
        (row.pid, row.tid, row.name, row.operation, row.count, row.errors_count, row.ns, row.longest_ns)
        for row in trace.calls
    ] == [
        (70, 71, "read", "", 9, 2, 900, 300),
        (70, 71, "futex", "WAIT_BITSET", 5, 1, 500, 250),
        (70, 71, "futex", "WAKE", 3, 0, 30, 20),
        (70, 72, "call 999", "", 1, 0, 7, 7),
    ]
    assert trace.waiting == {"futex WAIT": 2, "read": 1}
    assert [(row.path, row.pid, row.tid, row.comm) for row in trace.files] == [
        ("/var/lib/mysql/ibdata1", 70, 71, "worker"),
        ("mysql/ibdata1", 70, 71, "worker"),
    ]
    for row in trace.files:
        assert (row.reads_count, row.read_bytes, row.writes_count, row.write_bytes) == (41, 42, 43, 44)
        assert (row.syncs_count, row.sync_ns, row.mode) == (45, 46, stat.S_IFREG)
    assert (trace.lost_count, trace.parts_count, trace.notes) == (6, 8, ["a note"])


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="ABIs of x86-64")
def test_calls_by_two_abis_are_one_row() -> None:
    """Counts, errors and times are added, and the longest is the longer of both."""
    for first, second in ((Abi.NATIVE, Abi.COMPAT), (Abi.COMPAT, Abi.NATIVE)):
        calls = {call("read", abi=first): sums(9, 2, 900, 300), call("read", abi=second): sums(5, 1, 70, 40)}
        (row,) = tracer(offcpu.SyscallTracer, {"calls": calls}, _paths={}, _can_count_uring=True).collect(PASSED).calls
        assert (row.count, row.errors_count, row.ns, row.longest_ns) == (14, 3, 970, 300)


def test_kernels_and_calls_whose_bytes_are_unknown_have_notes() -> None:
    calls = {call("io_uring_enter"): sums(1, 0, 1, 1), call("sendmmsg"): sums(1, 0, 1, 1)}
    for can_count, count in ((True, 2), (False, 3)):
        made = tracer(offcpu.SyscallTracer, {"calls": calls}, _paths={}, _can_count_uring=can_count)
        assert len(made.collect(PASSED).notes) == count


@pytest.mark.parametrize(
    ("machine", "abi", "names"),
    [
        ("x86_64", Abi.NATIVE, {0: "read", 1: "write", 74: "fsync", 162: "sync", 168: "swapoff", 202: "futex"}),
        ("x86_64", Abi.NATIVE, {232: "epoll_wait", 334: "rseq", 515: None}),
        ("x86_64", Abi.COMPAT, {0: "restart_syscall", 3: "read", 20: "getpid", 118: "fsync", 162: "nanosleep"}),
        ("x86_64", Abi.COMPAT, {168: "poll", 221: "fcntl64", 222: None, 224: "gettid", 239: "sendfile64"}),
        ("x86_64", Abi.COMPAT, {240: "futex", 252: "exit_group", 286: "add_key", 359: "socket", 386: "rseq"}),
        ("x86_64", Abi.COMPAT, {393: "semget", 422: "futex_time64", 435: "clone3"}),
        ("x86_64", Abi.X32, {0: "read", 39: "getpid", 512: "rt_sigaction", 515: "readv", 547: "pwritev2"}),
        ("aarch64", Abi.NATIVE, {63: "read", 64: "write", 82: "fsync", 98: "futex", 172: "getpid", 260: "wait4"}),
        ("aarch64", Abi.NATIVE, {293: "rseq"}),
        ("aarch64", Abi.COMPAT, {20: None, 439: "faccessat2"}),
        ("riscv64", Abi.NATIVE, {425: "io_uring_setup", 449: "futex_waitv", 454: "futex_wake", 455: "futex_wait"}),
    ],
)
def test_numbers_of_system_calls(machine: str, abi: int, names: dict[int, str | None]) -> None:
    """Numbers are those of include/uapi of the kernel."""
    known = offcpu.syscall_names(machine, abi)
    assert {number: known.get(number) for number in names} == names


def test_operations_of_futex() -> None:
    """FUTEX_... of include/uapi/linux/futex.h."""
    names = {0: "WAIT", 1: "WAKE", 3: "REQUEUE", 6: "LOCK_PI", 7: "UNLOCK_PI", 9: "WAIT_BITSET", 10: "WAKE_BITSET"}
    assert {number: offcpu.name_futex_operation(number) for number in names} == names
    assert (offcpu.name_futex_operation(13), offcpu.name_futex_operation(99)) == ("LOCK_PI2", "operation 99")
    assert {"WAIT", "WAIT_BITSET", "LOCK_PI", "WAIT_REQUEUE_PI", "LOCK_PI2"} == offcpu.FUTEX_WAITS


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        (CallKind.READ, {"read", "pread64", "readv", "preadv", "preadv2", "recvfrom", "recvmsg"}),
        (CallKind.WRITE, {"write", "pwrite64", "writev", "pwritev", "pwritev2", "sendto", "sendmsg"}),
        (CallKind.SYNC, {"fsync", "fdatasync", "sync_file_range"}),
        (CallKind.SPLICE, {"splice", "copy_file_range"}),
        (CallKind.SEND, {"sendfile", "sendfile64"}),
    ],
)
def test_kinds_of_calls(kind: CallKind, names: set[str]) -> None:
    assert {name for name, known in offcpu._KIND_OF.items() if known == kind} == names
