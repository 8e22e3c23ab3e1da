# SPDX-License-Identifier: Apache-2.0
"""The records of `offcpu` and `syscalls`: sleeps, waits for a CPU, wakers, system calls, files and locks."""

from __future__ import annotations

import stat
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Literal, TypeVar

import msgspec
from msgspec.structs import replace

from powerprof.attribution.requests import (
    DTRACE_NOTE,
    OffCpuRequest,
    ReadThreadNames,
    SyscallRequest,
    check_backend,
    choose_target,
    has_dtrace,
    label_record,
    only_pid,
    read_names_after,
    read_own_names,
    thread_name_reader,
)
from powerprof.measure.clock import format_now
from powerprof.measure.progress import announce
from powerprof.measure.target_life import SHORT_LOOK_S, TargetLife
from powerprof.model import text
from powerprof.model.records import CostBound, Record, sum_known
from powerprof.model.text import Say
from powerprof.system.errors import CapabilityError
from powerprof.system.targets import ServerChoice, Target, TargetChoice
from powerprof.tracing.captures import CallSum, FileSum, OffCpuTrace, SyscallTrace, ThreadSums, WakingSum
from powerprof.tracing.dtrace import DtraceRun, Question
from powerprof.tracing.dtrace_output import DtraceFrame, DtraceWakeup, SleepsTrace, WakersTrace
from powerprof.tracing.syscalls import FUTEX_WAITS

if TYPE_CHECKING:
    from powerprof.tracing.summed_slices import SumsTracer

T = TypeVar("T", OffCpuTrace, SyscallTrace)


class WakerRow(msgspec.Struct, frozen=True, kw_only=True):
    """The wakings of a thread (`tid`) by another from one call path. `waker_pid` 0: the idle task."""

    tid: int
    thread: str | None
    waker_pid: int
    waker_tid: int
    waker_comm: str
    count: int
    rate_hz: float
    percent: float
    stack: list[DtraceFrame]
    low_count: float | None = None
    high_count: float | None = None


_EDGES = "sleeps and waits that began before the window are not counted"
_BPF_LIMITS = (_EDGES,)
_SLICED_LIMIT = "sleeps and calls that last longer than a slice (at most half a second) are not counted"
_DTRACE_LIMITS = (
    _EDGES,
    "sleeps and wakings are counted in two windows, one after the other",
    "powerprof's CPU time includes starting and ending DTrace",
    "a waking by an interrupt shows the thread that was interrupted: the idle task is 'swapper'",
    "stacks are of wakings by the process itself, by frame pointers: cut where a library has none",
)


class OffCpuState(msgspec.Struct, frozen=True, kw_only=True):
    """Sleeps in one scheduler state, such as `uninterruptible`."""

    state: str
    sleeps_count: int
    sleep_ms: float


class OffCpuThread(msgspec.Struct, frozen=True, kw_only=True):
    """A thread's sleeps, its waits for a CPU after wakings, and those after preemption.

    Means and maxima of no events are None.
    """

    tid: int
    thread: str | None
    sleeps_count: int
    sleeps_hz: float
    sleep_mean_ms: float | None
    sleep_max_ms: float | None
    waits_count: int
    wait_mean_ms: float | None
    wait_max_ms: float | None
    pid: int
    preempted_count: int | None = None
    preempted_ms: float | None = None
    states: list[OffCpuState] | None = None
    low_count: float | None = None
    high_count: float | None = None


class OffCpuProfile(Record, frozen=True, kw_only=True):
    """The record of `offcpu`: threads by sleeps, wakers by wakings."""

    window_s: float
    lost_count: int
    limits: list[str]
    tool_cpu_s: float | None = None
    method: str = "dtrace"
    label: str | None = None
    pids: list[int]
    sleeps_count: int | None
    threads: list[OffCpuThread]
    wakings_window_s: float | None
    wakings_count: int | None
    wakers: list[WakerRow]
    bpf_s: float | None
    bound: CostBound | None = None
    command: str = "offcpu"
    schema: Literal["powerprof.offcpu/1"] = "powerprof.offcpu/1"


def trace_off_cpu(chosen: TargetChoice, server: ServerChoice, request: OffCpuRequest, say: Say) -> OffCpuProfile:
    """Trace sleeps and wakings for one window. Raises UsageError, CapabilityError, PowerprofError."""
    target = choose_target(chosen, server, say)
    read_names = thread_name_reader(server, target)
    check_backend(request.backend)
    started_at = format_now()
    if request.backend == "dtrace":
        record = _trace_by_dtrace(target, request, read_names, say)
    else:
        try:
            record = _trace_by_bpf(target, request, read_names, say)
        except CapabilityError:
            if request.backend == "bpf" or not has_dtrace():
                raise
            record = _trace_by_dtrace(target, request, read_names, say)
    return label_record(record, target, started_at)


def _trace_by_bpf(target: Target, request: OffCpuRequest, read_names: ReadThreadNames, say: Say) -> OffCpuProfile:
    from powerprof.tracing.offcpu import OffCpuTracer

    names = dict(read_names())
    say("loading the tracer")
    pids = None if target.system else target.pids
    with TargetLife(target, SHORT_LOOK_S) as life, OffCpuTracer(pids, target.find_members) as tracer:
        announce(say, f"following {target.label}", request.duration_s)
        trace, bound = _measure(tracer, target, request, life)
    names.update(read_names_after(read_names, trace.ended))
    return replace(build_bpf_profile(trace, names), bound=bound, limits=[*_BPF_LIMITS, *_limit_slices(bound)])


def _measure(
    tracer: SumsTracer[T], target: Target, request: OffCpuRequest | SyscallRequest, life: TargetLife
) -> tuple[T, CostBound]:
    from powerprof.tracing.summed_slices import measure_bounded

    return measure_bounded(tracer, target, request.max_cost, request.duration_s, life, settle=request.settle)


def _limit_slices(bound: CostBound) -> list[str]:
    return [_SLICED_LIMIT] if bound.slices_count else []


def _trace_by_dtrace(target: Target, request: OffCpuRequest, read_names: ReadThreadNames, say: Say) -> OffCpuProfile:
    from powerprof.tracing.dtrace_output import parse_latency, parse_wakeups

    duration_s = request.duration_s
    with TargetLife(target, SHORT_LOOK_S) as life:
        sleeps = parse_latency(_run_dtrace("sleep-wake-latency", target, duration_s, life, say, settle=False))
        wakings = None
        if sleeps.ended is None:
            wakings = parse_wakeups(_run_dtrace("wakeups", target, duration_s, life, say, settle=request.settle))
    tids = {thread.tid for thread in sleeps.threads}
    tids |= {wakeup.sleeper_tid for wakeup in wakings.wakeups} if wakings is not None else set()
    names = read_names_after(read_names, sleeps.ended if wakings is None else wakings.ended)
    return build_dtrace_profile(sleeps, wakings, read_own_names(tids, names))


def _run_dtrace(
    question: Question, target: Target, duration_s: float, life: TargetLife, say: Say, *, settle: bool
) -> DtraceRun:
    from powerprof.tracing.dtrace import find_dtrace, read_script, render_script, run_dtrace

    pid, dtrace = only_pid(target), find_dtrace()
    script = render_script(read_script(question), pid=pid)
    say(DTRACE_NOTE.format(duration_s))
    return run_dtrace(dtrace, script, pid, duration_s, life, settle=settle)


def build_bpf_profile(trace: OffCpuTrace, names: Mapping[int, str]) -> OffCpuProfile:
    """Return the record of one window; `names` by thread id are preferred to the threads' own names."""
    threads = [_thread(sums, trace.window_s, names) for sums in trace.threads]
    comms = {sums.tid: sums.comm for sums in trace.threads}
    total = sum(waking.count for waking in trace.wakings)
    return OffCpuProfile(
        pids=trace.pids,
        window_s=trace.window_s,
        sleeps_count=sum(thread.sleeps_count for thread in threads),
        threads=sorted(threads, key=lambda thread: (-thread.sleeps_count, thread.tid)),
        wakings_window_s=trace.window_s,
        wakings_count=total,
        wakers=_waker_rows(
            [(waking.tid, waking, []) for waking in trace.wakings], comms | dict(names), trace.window_s, total
        ),
        lost_count=trace.lost_count,
        notes=[*trace.notes, *_unseen(trace.unseen_count)],
        limits=list(_BPF_LIMITS),
        method="bpf",
        tool_cpu_s=trace.tool_cpu_s,
        bpf_s=trace.bpf_s,
        ended=trace.ended,
    )


def _unseen(count: int) -> list[str]:
    if not count:
        return []
    return [f"{text.plural(count, 'time')} a thread ran unseen: how long it waited for a CPU before is in no sum"]


def _waker_rows(
    wakings: Iterable[tuple[int, WakingSum | DtraceWakeup, list[DtraceFrame]]],
    names: Mapping[int, str],
    window_s: float,
    total: int,
) -> list[WakerRow]:
    """Return the rows of (woken thread, its waking, the waker's stack), most frequent first."""
    rows = [
        WakerRow(
            tid=tid,
            thread=names.get(tid),
            waker_pid=waking.waker_pid,
            waker_tid=waking.waker_tid,
            waker_comm=waking.waker_comm,
            count=waking.count,
            rate_hz=waking.count / window_s,
            percent=100.0 * waking.count / total,
            stack=stack,
            low_count=getattr(waking, "low_count", None),
            high_count=getattr(waking, "high_count", None),
        )
        for tid, waking, stack in wakings
    ]
    return sorted(rows, key=lambda row: (-row.count, row.tid, row.waker_tid))


def _thread(sums: ThreadSums, window_s: float, names: Mapping[int, str]) -> OffCpuThread:
    count = sum(sleeps for sleeps, _ in sums.states.values())
    slept_ns = sum(ns for _, ns in sums.states.values())
    return OffCpuThread(
        pid=sums.pid,
        tid=sums.tid,
        thread=names.get(sums.tid) or sums.comm or None,
        sleeps_count=count,
        sleeps_hz=count / window_s,
        sleep_mean_ms=slept_ns / count / 1e6 if count else None,
        sleep_max_ms=sums.sleep_max_ns / 1e6 if count else None,
        waits_count=sums.waits_count,
        wait_mean_ms=sums.wait_ns / sums.waits_count / 1e6 if sums.waits_count else None,
        wait_max_ms=sums.wait_max_ns / 1e6 if sums.waits_count else None,
        preempted_count=sums.preempted_count,
        preempted_ms=sums.preempted_ns / 1e6,
        states=[
            OffCpuState(state=state, sleeps_count=sleeps, sleep_ms=ns / 1e6)
            for state, (sleeps, ns) in sums.states.items()
        ],
        low_count=sums.low_count,
        high_count=sums.high_count,
    )


def build_dtrace_profile(sleeps: SleepsTrace, wakings: WakersTrace | None, names: Mapping[int, str]) -> OffCpuProfile:
    """Return the record of a window of sleeps and one of wakings; `names` by thread id.

    `wakings` is None if the first window ended early.
    """
    total = sum(wakeup.count for wakeup in wakings.wakeups) if wakings is not None else None
    return OffCpuProfile(
        pids=[sleeps.pid],
        window_s=sleeps.window_s,
        sleeps_count=sum(thread.sleeps_count for thread in sleeps.threads),
        threads=[
            OffCpuThread(
                pid=sleeps.pid,
                tid=thread.tid,
                thread=names.get(thread.tid),
                sleeps_count=thread.sleeps_count,
                sleeps_hz=thread.sleeps_count / sleeps.window_s,
                sleep_mean_ms=thread.sleep_mean_ms,
                sleep_max_ms=thread.sleep_max_ms,
                waits_count=thread.waits_count,
                wait_mean_ms=thread.wait_mean_ms,
                wait_max_ms=thread.wait_max_ms,
            )
            for thread in sleeps.threads
        ],
        wakings_window_s=wakings.window_s if wakings is not None else None,
        wakings_count=total,
        wakers=_waker_rows(
            [(wakeup.sleeper_tid, wakeup, wakeup.stack) for wakeup in wakings.wakeups], names, wakings.window_s, total
        )
        if wakings is not None and total
        else [],
        lost_count=sleeps.lost_count + (wakings.lost_count if wakings is not None else 0),
        notes=[*sleeps.notes, *(wakings.notes if wakings is not None else ())],
        limits=list(_DTRACE_LIMITS),
        method="dtrace",
        tool_cpu_s=sum_known(trace.tool_cpu_s for trace in (sleeps, wakings) if trace is not None),
        bpf_s=None,
        ended=sleeps.ended if wakings is None else wakings.ended,
    )


_LIMITS = (
    "calls that began before the window or end after it are not counted",
    "mapped memory is not seen; reads, writes and syncs of io_uring and io_submit count with the bytes that they ask "
    "for, other requests of io_uring do not",
    "except with O_DIRECT, the page cache is between these calls and the disk",
)

FileKind = Literal["file", "socket", "pipe", "other"]


class SyscallRow(msgspec.Struct, frozen=True, kw_only=True):
    """One thread's calls of one kind, from call to return. `operation`: of futex."""

    pid: int
    tid: int
    thread: str | None
    name: str
    operation: str
    count: int
    errors_count: int
    total_ms: float
    longest_ms: float
    low_count: float | None = None
    high_count: float | None = None


class FileRow(msgspec.Struct, frozen=True, kw_only=True):
    """One thread's I/O on one file. `path` may lack the part above the file's folder."""

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
    """A thread's waits in futex(2)."""

    pid: int
    tid: int
    thread: str | None
    waits_count: int
    total_ms: float
    longest_ms: float


class SyscallProfile(Record, frozen=True, kw_only=True):
    """The record of `syscalls`, largest first. `waiting_count`: calls that were open at the end, by name."""

    pids: list[int]
    window_s: float
    calls_count: int
    calls: list[SyscallRow]
    files: list[FileRow]
    lock_waits: list[LockWaits]
    waiting_count: dict[str, int]
    lost_count: int
    limits: list[str]
    tool_cpu_s: float | None
    bpf_s: float | None
    bound: CostBound | None = None
    command: str = "syscalls"
    label: str | None = None
    schema: Literal["powerprof.syscalls/1"] = "powerprof.syscalls/1"


def count_syscalls(chosen: TargetChoice, server: ServerChoice, request: SyscallRequest, say: Say) -> SyscallProfile:
    """Count system calls for one window. Raises UsageError, CapabilityError, PowerprofError."""
    from powerprof.tracing.syscalls import SyscallTracer

    target = choose_target(chosen, server, say)
    read_names = thread_name_reader(server, target)
    started_at, names = format_now(), dict(read_names())
    say("loading the counter")
    pids = None if target.system else target.pids
    with TargetLife(target, SHORT_LOOK_S) as life, SyscallTracer(pids, target.find_members) as tracer:
        announce(say, f"counting system calls of {target.label}", request.duration_s)
        trace, bound = _measure(tracer, target, request, life)
    tids = {row.tid for row in trace.calls} | {row.tid for row in trace.files}
    own = {row.tid: row.comm for row in trace.files} | trace.exited_names
    names |= read_names_after(read_names, trace.ended)
    names = own | read_own_names(tids, names)
    profile = build_syscall_profile(trace, names)
    profile = replace(profile, bound=bound, limits=[*profile.limits, *_limit_slices(bound)])
    return label_record(profile, target, started_at)


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
        ended=trace.ended,
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
        low_count=call.low_count,
        high_count=call.high_count,
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
