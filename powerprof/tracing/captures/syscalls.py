# SPDX-License-Identifier: Apache-2.0
"""What a window of system calls is, between its collection and its analysis."""

from __future__ import annotations

import msgspec


class CallSum(msgspec.Struct, frozen=True, kw_only=True):
    """A thread's calls of one kind. `operation` is futex's; else empty."""

    pid: int
    tid: int
    name: str
    operation: str
    count: int
    errors_count: int
    ns: int
    longest_ns: int


class FileSum(msgspec.Struct, frozen=True, kw_only=True):
    """What a thread did with one file. `mode` is st_mode, `path` the file's or as much of it as the kernel passed on.

    Bytes are those that were read and written; of asynchronous requests (io_uring, io_submit) those asked for.
    """

    pid: int
    tid: int
    comm: str
    path: str
    mode: int
    reads_count: int
    read_bytes: int
    writes_count: int
    write_bytes: int
    syncs_count: int
    sync_ns: int


class SyscallTrace(msgspec.Struct, frozen=True, kw_only=True):
    """What was counted in a window. `waiting`: calls that were open at its end, by name and operation.

    `lost_count`: what had no room in a table; `parts_count`: requests of more parts than were looked at.
    """

    pids: list[int]
    window_s: float
    calls: list[CallSum]
    files: list[FileSum]
    waiting: dict[str, int]
    lost_count: int
    parts_count: int
    notes: list[str]
    tool_cpu_s: float
    bpf_s: float | None
    interrupted: bool
