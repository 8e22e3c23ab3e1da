# SPDX-License-Identifier: Apache-2.0
"""The kernel's tables of system calls as rows of threads and files, and the names of calls."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import numpy as np
import pytest

from powerprof.measure.window import PassedWindow
from powerprof.tracing import syscalls
from powerprof.tracing.bpf.shared_numbers import Abi, CallKind
from tests.unit.tracing.programs import entry, thread_key, tracer
from tools.syscall_numbers import read_header

OWN = 4711
PASSED = PassedWindow(2.5, 0.25, 5, ["a note"])


@pytest.fixture(autouse=True)
def own_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(syscalls, "own_pids", lambda: frozenset({OWN}))


def number_of(name: str, abi: int = Abi.NATIVE) -> int:
    return next(number for number, known in syscalls.syscall_names(abi=abi).items() if known == name)


def call(name: str, tid: int = 71, pid: int = 70, abi: int = Abi.NATIVE, operation: int = 0) -> bytes:
    return entry(
        syscalls._CALL_KEY, who=thread_key(tid, pid), number=number_of(name, abi), operation=operation, abi=abi
    )


def sums(calls: int, errors: int, ns: int, longest_ns: int) -> bytes:
    return entry(syscalls._CALL, calls=calls, errors=errors, ns=ns, longest_ns=longest_ns)


FILE = {"reads": 41, "read_bytes": 42, "writes": 43, "write_bytes": 44, "syncs": 45, "sync_ns": 46}


def test_rows_of_calls_and_files() -> None:
    calls = {
        call("read"): sums(9, 2, 900, 300),
        call("futex", operation=9): sums(5, 1, 500, 250),
        call("futex", operation=1): sums(3, 0, 30, 20),
        call("read", pid=OWN): sums(99, 9, 99, 99),
    }
    number = entry(syscalls._CALL_KEY, who=thread_key(72), number=999, abi=Abi.NATIVE)
    calls[number] = sums(1, 0, 7, 7)
    key = entry(syscalls._FILE_KEY, who=thread_key(71), inode=7, device=(8 << 20) | 3)
    other = entry(syscalls._FILE_KEY, who=thread_key(71), inode=8, device=(8 << 20) | 3)
    own = entry(syscalls._FILE_KEY, who=thread_key(71, OWN), inode=8, device=0)
    use = entry(syscalls._FILE_IO, mode=stat.S_IFREG, name=b"ibdata1", folder=b"mysql", comm=b"worker", **FILE)
    waiting = {
        np.uint64(thread_key(71)).tobytes(): entry(
            syscalls._OPEN_CALL, number=number_of("futex"), operation=0, abi=Abi.NATIVE
        ),
        np.uint64(thread_key(72)).tobytes(): entry(
            syscalls._OPEN_CALL, number=number_of("futex"), operation=0, abi=Abi.NATIVE
        ),
        np.uint64(thread_key(73)).tobytes(): entry(syscalls._OPEN_CALL, number=number_of("read"), abi=Abi.NATIVE),
        np.uint64(thread_key(74, OWN)).tobytes(): entry(syscalls._OPEN_CALL, number=number_of("read"), abi=Abi.NATIVE),
    }
    trace = tracer(
        syscalls.SyscallTracer,
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
        (row,) = (
            tracer(syscalls.SyscallTracer, {"calls": calls}, _paths={}, _can_count_uring=True).collect(PASSED).calls
        )
        assert (row.count, row.errors_count, row.ns, row.longest_ns) == (14, 3, 970, 300)


def test_kernels_and_calls_whose_bytes_are_unknown_have_notes() -> None:
    calls = {call("io_uring_enter"): sums(1, 0, 1, 1), call("sendmmsg"): sums(1, 0, 1, 1)}
    for can_count, count in ((True, 2), (False, 3)):
        made = tracer(syscalls.SyscallTracer, {"calls": calls}, _paths={}, _can_count_uring=can_count)
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
        ("x86_64", Abi.X32, {0: "read", 19: None, 39: "getpid", 512: "rt_sigaction", 515: "readv", 547: "pwritev2"}),
        ("aarch64", Abi.NATIVE, {63: "read", 64: "write", 82: "fsync", 98: "futex", 172: "getpid", 260: "wait4"}),
        ("aarch64", Abi.NATIVE, {79: "newfstatat", 293: "rseq", 422: None, 466: "removexattrat"}),
        ("aarch64", Abi.COMPAT, {20: None, 439: "faccessat2"}),
        ("riscv64", Abi.NATIVE, {425: "io_uring_setup", 449: "futex_waitv", 454: "futex_wake", 455: "futex_wait"}),
    ],
)
def test_numbers_of_system_calls(machine: str, abi: int, names: dict[int, str | None]) -> None:
    """Numbers are those of include/uapi of the kernel."""
    known = syscalls.syscall_names(machine, abi)
    assert {number: known.get(number) for number in names} == names


@pytest.mark.parametrize(
    ("header", "abi"), [("unistd_64.h", Abi.NATIVE), ("unistd_32.h", Abi.COMPAT), ("unistd_x32.h", Abi.X32)]
)
def test_numbers_are_those_of_the_installed_headers(header: str, abi: Abi) -> None:
    """The headers of this host belong to an older kernel than those of the table."""
    path = Path("/usr/include/x86_64-linux-gnu/asm", header)
    if not path.is_file():
        pytest.skip("linux-libc-dev for x86-64 is not installed")
    known = syscalls.syscall_names("x86_64", abi)
    numbers = read_header(path.read_text())
    assert len(numbers) > 300
    assert {name: number for name, number in numbers.items() if known.get(number) != name} == {}


def test_operations_of_futex() -> None:
    """FUTEX_... of include/uapi/linux/futex.h."""
    names = {0: "WAIT", 1: "WAKE", 3: "REQUEUE", 6: "LOCK_PI", 7: "UNLOCK_PI", 9: "WAIT_BITSET", 10: "WAKE_BITSET"}
    assert {number: syscalls.name_futex_operation(number) for number in names} == names
    assert (syscalls.name_futex_operation(13), syscalls.name_futex_operation(99)) == ("LOCK_PI2", "operation 99")
    assert {"WAIT", "WAIT_BITSET", "LOCK_PI", "WAIT_REQUEUE_PI", "LOCK_PI2"} == syscalls.FUTEX_WAITS


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
    assert {name for name, known in syscalls._KIND_OF.items() if known == kind} == names
