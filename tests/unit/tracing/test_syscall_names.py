# SPDX-License-Identifier: Apache-2.0
"""Names of system calls by the number and the ABI of the call."""

from __future__ import annotations

import pytest

from powerprof.tracing.bpf.shared_numbers import Abi
from powerprof.tracing.offcpu import syscall_names


@pytest.mark.parametrize(
    ("machine", "abi", "number", "name"),
    [
        ("x86_64", Abi.NATIVE, 20, "writev"),
        ("x86_64", Abi.COMPAT, 20, "getpid"),
        ("x86_64", Abi.NATIVE, 162, "sync"),
        ("x86_64", Abi.COMPAT, 162, "nanosleep"),
        ("x86_64", Abi.NATIVE, 168, "swapoff"),
        ("x86_64", Abi.COMPAT, 168, "poll"),
        ("x86_64", Abi.COMPAT, 0, "restart_syscall"),
        ("x86_64", Abi.COMPAT, 221, "fcntl64"),
        ("x86_64", Abi.COMPAT, 222, None),
        ("x86_64", Abi.COMPAT, 239, "sendfile64"),
        ("x86_64", Abi.COMPAT, 252, "exit_group"),
        ("x86_64", Abi.COMPAT, 386, "rseq"),
        ("x86_64", Abi.COMPAT, 422, "futex_time64"),
        ("x86_64", Abi.COMPAT, 435, "clone3"),
        ("x86_64", Abi.X32, 39, "getpid"),
        ("x86_64", Abi.X32, 515, "readv"),
        ("x86_64", Abi.NATIVE, 515, None),
        ("x86_64", Abi.X32, 547, "pwritev2"),
        ("aarch64", Abi.NATIVE, 172, "getpid"),
        ("aarch64", Abi.COMPAT, 20, None),
        ("aarch64", Abi.COMPAT, 439, "faccessat2"),
    ],
)
def test_number_means_what_its_table_says(machine: str, abi: int, number: int, name: str | None) -> None:
    """include/uapi of the kernel: unistd_64.h, unistd_32.h, unistd_x32.h."""
    assert syscall_names(machine, abi).get(number) == name
