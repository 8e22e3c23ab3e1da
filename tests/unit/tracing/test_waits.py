# SPDX-License-Identifier: Apache-2.0
"""Kinds of waits by system call and by report."""

from __future__ import annotations

from powerprof.tracing.bpf.shared_numbers import StatementWait
from powerprof.tracing.syscalls import syscall_names
from powerprof.tracing.waits import WAIT_OF_SYSCALL, WAIT_OF_TYPE


def test_reported_waits_and_system_calls_have_kinds() -> None:
    """enum thd_wait_type of include/mysql/service_thd_wait.h, and numbers of x86-64."""
    assert {kind: WAIT_OF_TYPE.get(kind) for kind in range(13)} == {
        0: None,
        1: StatementWait.SLEEP,
        2: StatementWait.DISK,
        3: StatementWait.ROW_LOCK,
        **dict.fromkeys((4, 5, 6, 7), StatementWait.LOCK),
        8: StatementWait.OTHER,
        **dict.fromkeys((9, 10), StatementWait.SYNC),
        11: StatementWait.CLIENT,
        12: None,
    }
    names = {
        "LATCH": {"futex", "futex_wait", "futex_waitv", "semget", "semop", "semtimedop"},
        "SLEEP": {"nanosleep", "clock_nanosleep"},
    }
    names["SYNC"] = {"fsync", "fdatasync", "msync", "sync", "sync_file_range", "syncfs"}
    numbers = syscall_names("x86_64")
    for kind, expected in names.items():
        of_kind = {numbers[number] for number, wait in WAIT_OF_SYSCALL.items() if wait is StatementWait[kind]}
        assert of_kind == expected
    client = {numbers[number] for number, wait in WAIT_OF_SYSCALL.items() if wait is StatementWait.CLIENT}
    disk = {numbers[number] for number, wait in WAIT_OF_SYSCALL.items() if wait is StatementWait.DISK}
    assert {"read", "write", "poll", "ppoll", "recvfrom", "sendto", "epoll_wait", "accept4"} <= client
    assert {"pread64", "pwrite64", "io_getevents", "fallocate", "openat", "unlink", "rename"} <= disk
