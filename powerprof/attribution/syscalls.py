# SPDX-License-Identifier: Apache-2.0
"""What threads ask of the kernel, what they read and write, how long they wait for locks: the record of `syscalls`."""

from __future__ import annotations

import stat
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any, Literal

import msgspec

from powerprof.model import text
from powerprof.model.records import Notes
from powerprof.tracing.captures import CallSum, FileSum, SyscallTrace
from powerprof.tracing.syscalls import FUTEX_WAITS

_LIMITS = (
    "calls that began before the window or end after it are not counted",
    "mapped memory is not seen, and of io_uring and io_submit what was asked for",
    "the page cache is between these calls and the disk, but for O_DIRECT",
)

FileKind = Literal["file", "socket", "pipe", "other"]


class SyscallRow(msgspec.Struct, frozen=True, kw_only=True):
    """One thread's calls of one kind; `operation` is futex's. Times are from the call to its return, sleep included."""

    pid: int
    tid: int
    thread: str | None
    name: str
    operation: str
    count: int
    errors_count: int
    total_ms: float
    longest_ms: float


class FileRow(msgspec.Struct, frozen=True, kw_only=True):
    """What one thread read from and wrote to one file. `path` may lack what is above the file's folder."""

    path: str
    kind: FileKind
    pid: int
    tid: int
    thread: str | None
    reads_count: int
    read_bytes: int
    writes_count: int
    write_bytes: int
    syncs_count: int
    sync_ms: float


class LockWaits(msgspec.Struct, frozen=True, kw_only=True):
    """How often and how long a thread waited in futex(2): for a lock, a condition, or until its time was over."""

    pid: int
    tid: int
    thread: str | None
    waits_count: int
    total_ms: float
    longest_ms: float


class SyscallProfile(msgspec.Struct, frozen=True, kw_only=True):
    """`syscalls`: calls by thread and kind, files by bytes, and waits for locks; the largest first.

    `waiting_count`: calls that were open at the end of the window, by name. None is unknown.
    """

    pids: list[int]
    window_s: float
    calls_count: int
    calls: list[SyscallRow]
    files: list[FileRow]
    lock_waits: list[LockWaits]
    waiting_count: dict[str, int]
    lost_count: int
    notes: Notes
    limits: list[str]
    tool_cpu_s: float | None
    bpf_s: float | None
    interrupted: bool = False
    id: str | None = None
    command: str = "syscalls"
    started_at: str | None = None
    label: str | None = None
    host: dict[str, Any] = {}
    schema: Literal["powerprof.syscalls/1"] = "powerprof.syscalls/1"


def build_syscall_profile(trace: SyscallTrace, names: Mapping[int, str]) -> SyscallProfile:
    """The record of one window; `names` are of threads by id, before their own."""
    calls = [_row(call, names) for call in trace.calls]
    files = [_file(one, names) for one in trace.files if one.reads_count or one.writes_count or one.syncs_count]
    parts = trace.parts_count
    notes = (
        [f"{text.plural(parts, 'request')} of more than 16 parts: the rest of its bytes is in no sum"] if parts else []
    )
    return SyscallProfile(
        pids=trace.pids,
        window_s=trace.window_s,
        calls_count=sum(call.count for call in calls),
        calls=sorted(calls, key=lambda row: (-row.count, row.name, row.operation, row.tid)),
        files=sorted(files, key=lambda row: (-row.write_bytes - row.read_bytes, -row.syncs_count, row.path, row.tid)),
        lock_waits=_lock_waits(trace.calls, names),
        waiting_count=trace.waiting,
        lost_count=trace.lost_count,
        notes=[*trace.notes, *notes],
        limits=list(_LIMITS),
        tool_cpu_s=trace.tool_cpu_s,
        bpf_s=trace.bpf_s,
        interrupted=trace.interrupted,
    )


def _row(call: CallSum, names: Mapping[int, str]) -> SyscallRow:
    return SyscallRow(
        pid=call.pid,
        tid=call.tid,
        thread=names.get(call.tid),
        name=call.name,
        operation=call.operation,
        count=call.count,
        errors_count=call.errors_count,
        total_ms=call.ns / 1e6,
        longest_ms=call.longest_ns / 1e6,
    )


def _file(one: FileSum, names: Mapping[int, str]) -> FileRow:
    return FileRow(
        path=one.path,
        kind=_kind(one.mode),
        pid=one.pid,
        tid=one.tid,
        thread=names.get(one.tid) or one.comm or None,
        reads_count=one.reads_count,
        read_bytes=one.read_bytes,
        writes_count=one.writes_count,
        write_bytes=one.write_bytes,
        syncs_count=one.syncs_count,
        sync_ms=one.sync_ns / 1e6,
    )


def _kind(mode: int) -> FileKind:
    if stat.S_ISREG(mode) or stat.S_ISBLK(mode):
        return "file"
    return "socket" if stat.S_ISSOCK(mode) else "pipe" if stat.S_ISFIFO(mode) else "other"


def _lock_waits(calls: Iterable[CallSum], names: Mapping[int, str]) -> list[LockWaits]:
    by_thread: dict[tuple[int, int], list[CallSum]] = defaultdict(list)
    for call in calls:
        if call.operation in FUTEX_WAITS or call.name in ("futex_wait", "futex_waitv"):
            by_thread[call.pid, call.tid].append(call)
    rows = [
        LockWaits(
            pid=pid,
            tid=tid,
            thread=names.get(tid),
            waits_count=sum(call.count for call in own),
            total_ms=sum(call.ns for call in own) / 1e6,
            longest_ms=max(call.longest_ns for call in own) / 1e6,
        )
        for (pid, tid), own in by_thread.items()
    ]
    return sorted(rows, key=lambda row: (-row.total_ms, row.tid))
