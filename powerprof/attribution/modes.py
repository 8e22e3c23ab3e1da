# SPDX-License-Identifier: Apache-2.0
"""What verbs other than `attribute` do with a target: sample it, probe its functions, follow its sleeps."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import msgspec

from powerprof.attribution.functions import FunctionProfile, build_function_profile
from powerprof.attribution.offcpu import OffCpuProfile, build_bpf_profile, build_dtrace_profile
from powerprof.attribution.profile import OnCpuProfile, build_on_cpu_profile
from powerprof.attribution.requests import FunctionsRequest, OffCpuRequest, ProfileRequest, SyscallRequest
from powerprof.attribution.syscalls import SyscallProfile, build_syscall_profile
from powerprof.measure.sampling import format_now
from powerprof.model.text import Say
from powerprof.system.errors import CapabilityError, UsageError
from powerprof.system.processes import Target
from powerprof.system.tasks import look_up
from powerprof.tracing.captures import Event
from powerprof.tracing.dtrace.backend import DtraceRun, Question

T = TypeVar("T", OnCpuProfile, FunctionProfile, OffCpuProfile, SyscallProfile)
# Says what the probes can do to the target; raises where it is not agreed to.
Consent = Callable[[str], None]
Names = Callable[[], Mapping[int, str]]
EVENTS: tuple[Event, ...] = ("cpu-clock", "page-faults")
_DTRACE = "DTrace starts, counts for {:g} s, and ends in order: both take some seconds more"


def on_cpu(target: Target, request: ProfileRequest, names: Names, say: Say) -> OnCpuProfile:
    """Sample one window. Raises UsageError, CapabilityError, PowerprofError."""
    from powerprof.tracing.profile import OnCpuTracer

    event = next((known for known in EVENTS if known == request.event), None)
    if event is None:
        raise UsageError(f"--event {request.event} is not a choice", f"one of {', '.join(EVENTS)}")
    named = dict(names())
    say("loading the sampler")
    pids = None if target.system else target.pids
    with OnCpuTracer(pids, event, frequency_hz=request.frequency_hz) as tracer:
        say(f"sampling {target.label} for {request.duration_s:g} s")
        started_at = format_now()
        capture = tracer.measure(request.duration_s, settle=request.settle)
    named.update(names())
    return _labelled(build_on_cpu_profile(capture, server_names=named), target, started_at)


def functions(target: Target, request: FunctionsRequest, say: Say, consent: Consent) -> FunctionProfile:
    """Probe one window. `consent` is asked before a probe is placed that can harm the target.

    Raises UsageError, CapabilityError, PowerprofError, and what `consent` raises.
    """
    if target.system:
        raise UsageError("functions are probed in processes, not in the whole system", "choose some by --pid")
    _check_backend(request.backend)
    if request.backend == "dtrace" and request.unwinding_risk:
        raise UsageError("--allow-unwinding-risk has no effect with DTrace", "it places no return probes")
    started_at = format_now()
    if request.backend == "dtrace":
        return _labelled(_by_dtrace(target, request, say), target, started_at)
    try:
        profile = _by_bpf(target, request, say, consent)
    except CapabilityError:
        if request.backend == "bpf" or not _has_dtrace():
            raise
        profile = _by_dtrace(target, request, say)
    return _labelled(profile, target, started_at)


def _by_bpf(target: Target, request: FunctionsRequest, say: Say, consent: Consent) -> FunctionProfile:
    from powerprof.tracing.functions import FunctionTracer

    say("finding the functions")
    risk = request.unwinding_risk
    with FunctionTracer(target.pids, request.pattern, limit=request.limit, unwinding_risk=risk) as tracer:
        if tracer.danger is not None:
            consent(tracer.danger)
        count = len(tracer.functions)
        say(f"counting {count} function{'s' * (count != 1)} for {request.duration_s:g} s")
        return build_function_profile(tracer.measure(request.duration_s, settle=request.settle))


def _by_dtrace(target: Target, request: FunctionsRequest, say: Say) -> FunctionProfile:
    from powerprof.tracing.dtrace.backend import find_dtrace
    from powerprof.tracing.dtrace.output import trace_functions

    pid, dtrace = _one_process(target), find_dtrace()
    say(f"finding the functions; {_DTRACE.format(request.duration_s)}")
    return build_function_profile(
        trace_functions(dtrace, pid, request.pattern, request.duration_s, limit=request.limit, settle=request.settle)
    )


def off_cpu(target: Target, request: OffCpuRequest, names: Names, say: Say) -> OffCpuProfile:
    """Follow sleeps and wakings for one window. Raises UsageError, CapabilityError, PowerprofError."""
    _check_backend(request.backend)
    started_at = format_now()
    if request.backend == "dtrace":
        return _labelled(_off_cpu_by_dtrace(target, request, names, say), target, started_at)
    try:
        record = _off_cpu_by_bpf(target, request, names, say)
    except CapabilityError:
        if request.backend == "bpf" or not _has_dtrace():
            raise
        record = _off_cpu_by_dtrace(target, request, names, say)
    return _labelled(record, target, started_at)


def syscalls(target: Target, request: SyscallRequest, names: Names, say: Say) -> SyscallProfile:
    """Count system calls for one window. Raises CapabilityError, PowerprofError."""
    from powerprof.tracing.syscalls import SyscallTracer

    started_at, named = format_now(), dict(names())
    say("loading the counter")
    with SyscallTracer(None if target.system else target.pids) as tracer:
        say(f"counting system calls of {target.label} for {request.duration_s:g} s")
        trace = tracer.measure(request.duration_s, settle=request.settle)
    tids = {row.tid for row in trace.calls} | {row.tid for row in trace.files}
    named = {**{row.tid: row.comm for row in trace.files}, **_thread_names(sorted(tids), lambda: {**named, **names()})}
    return _labelled(build_syscall_profile(trace, named), target, started_at)


def _check_backend(name: str) -> None:
    if name not in ("auto", "bpf", "dtrace"):
        raise UsageError(f"--backend {name} is not a choice", "auto, bpf or dtrace")


def _off_cpu_by_bpf(target: Target, request: OffCpuRequest, names: Names, say: Say) -> OffCpuProfile:
    from powerprof.tracing.offcpu import OffCpuTracer

    named = dict(names())
    say("loading the tracer")
    with OffCpuTracer(None if target.system else target.pids) as tracer:
        say(f"following {target.label} for {request.duration_s:g} s")
        trace = tracer.measure(request.duration_s, settle=request.settle)
    named.update(names())
    return build_bpf_profile(trace, named)


def _off_cpu_by_dtrace(target: Target, request: OffCpuRequest, names: Names, say: Say) -> OffCpuProfile:
    from powerprof.tracing.dtrace.output import parse_latency, parse_wakeups

    duration_s = request.duration_s
    sleeps = parse_latency(_run_dtrace("sleep-wake-latency", target, duration_s, say, settle=False))
    wakings = None
    if not sleeps.interrupted:
        wakings = parse_wakeups(_run_dtrace("wakeups", target, duration_s, say, settle=request.settle))
    tids = {thread.tid for thread in sleeps.threads}
    tids |= {wakeup.sleeper_tid for wakeup in wakings.wakeups} if wakings is not None else set()
    return build_dtrace_profile(sleeps, wakings, _thread_names(sorted(tids), names))


def _run_dtrace(question: Question, target: Target, duration_s: float, say: Say, *, settle: bool) -> DtraceRun:
    from powerprof.tracing.dtrace.backend import find_dtrace, pick, render, run_dtrace

    pid, dtrace = _one_process(target), find_dtrace()
    script = render(pick(dtrace, question), pid=pid)
    say(_DTRACE.format(duration_s))
    return run_dtrace(dtrace, script, pid, duration_s, settle=settle)


def _one_process(target: Target) -> int:
    if len(target.pids) != 1:
        raise UsageError("DTrace probes one process at a time", "choose it with --pid ID")
    return target.pids[0]


def _thread_names(tids: Sequence[int], names: Names) -> dict[int, str]:
    """The server's names of threads, else their own; a thread that is gone has none."""
    known = names()
    by_tid = {tid: known.get(tid) or look_up(tid).comm for tid in tids if tid}
    return {tid: name for tid, name in by_tid.items() if name != f"thread {tid}"}


def _has_dtrace() -> bool:
    from powerprof.tracing.dtrace.backend import find_dtrace

    try:
        find_dtrace()
    except CapabilityError:
        return False
    return True


def _labelled(profile: T, target: Target, started_at: str) -> T:
    from powerprof.host.describe import host_record

    labelled: T = msgspec.structs.replace(profile, label=target.label, started_at=started_at, host=host_record())
    return labelled
