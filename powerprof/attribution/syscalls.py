# SPDX-License-Identifier: Apache-2.0
"""The record of `syscalls`: system calls, reads and writes by file, and waits for locks, by thread."""

from __future__ import annotations

import stat
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any, Literal

import msgspec

from powerprof.attribution.requests import (
    ServerChoice,
    SyscallRequest,
    TargetChoice,
    label_record,
    read_own_names,
    resolve_target,
    thread_name_reader,
)
from powerprof.measure.clock import format_now
from powerprof.model import text
from powerprof.model.records import Notes
from powerprof.model.text import Say
from powerprof.tracing.captures import CallSum, FileSum, SyscallTrace
from powerprof.tracing.syscalls import FUTEX_WAITS

_LIMITS = (
    "calls that began before the window or end after it are not counted",
    "mapped memory is not seen, and of io_uring and io_submit what was asked for",
    "the page cache is between these calls and the disk, but for O_DIRECT",
)

FileKind = Literal["file", "socket", "pipe", "other"]


class SyscallRow(msgspec.Struct, frozen=True, kw_only=True):
    """One thread's calls of one kind; `operation` is that of futex. Times run from call to return, with sleeps."""

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
    """The reads and writes of one thread on one file. `path` may lack the part above the file's folder."""

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
    """The number and length of a thread's waits in futex(2): for a lock, for a condition, or until a time-out."""

    pid: int
    tid: int
    thread: str | None
    waits_count: int
    total_ms: float
    longest_ms: float


class SyscallProfile(msgspec.Struct, frozen=True, kw_only=True):
    """The record of `syscalls`: calls by thread and kind, files by bytes, and waits for locks; largest first.

    `waiting_count` are the calls that were open at the end of the window, by name. None: unknown.
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


def count_syscalls(chosen: TargetChoice, server: ServerChoice, request: SyscallRequest, say: Say) -> SyscallProfile:
    """Count system calls for one window. Raises UsageError, CapabilityError, PowerprofError."""
    from powerprof.tracing.syscalls import SyscallTracer

    target = resolve_target(chosen)
    read_names = thread_name_reader(server, target)
    started_at, names = format_now(), dict(read_names())
    say("loading the counter")
    with SyscallTracer(None if target.system else target.pids) as tracer:
        say(f"counting system calls of {target.label} for {request.duration_s:g} s")
        trace = tracer.measure(request.duration_s, settle=request.settle)
    tids = {row.tid for row in trace.calls} | {row.tid for row in trace.files}
    names = {row.tid: row.comm for row in trace.files} | read_own_names(tids, {**names, **read_names()})
    return label_record(build_syscall_profile(trace, names), target, started_at)


def build_syscall_profile(trace: SyscallTrace, names: Mapping[int, str]) -> SyscallProfile:
    """Return the record of one window; `names` by thread id are preferred to the threads' own names."""
    calls = [_row(call, names) for call in trace.calls]
    files = [_file(file, names) for file in trace.files if file.reads_count or file.writes_count or file.syncs_count]
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


def _file(file: FileSum, names: Mapping[int, str]) -> FileRow:
    return FileRow(
        path=file.path,
        kind=_kind(file.mode),
        pid=file.pid,
        tid=file.tid,
        thread=names.get(file.tid) or file.comm or None,
        reads_count=file.reads_count,
        read_bytes=file.read_bytes,
        writes_count=file.writes_count,
        write_bytes=file.write_bytes,
        syncs_count=file.syncs_count,
        sync_ms=file.sync_ns / 1e6,
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
            waits_count=sum(call.count for call in waits),
            total_ms=sum(call.ns for call in waits) / 1e6,
            longest_ms=max(call.longest_ns for call in waits) / 1e6,
        )
        for (pid, tid), waits in by_thread.items()
    ]
    return sorted(rows, key=lambda row: (-row.total_ms, row.tid))
