# SPDX-License-Identifier: Apache-2.0
"""The other questions about a target: where does it run (`--on-cpu`), how often are functions called, who wakes its
threads (`--wakers`), and how long do they sleep (`--sleeps`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

import msgspec

from powerprof import privileges
from powerprof.attribution.functions import FunctionProfile, function_profile
from powerprof.attribution.oncpu import OnCpuProfile, on_cpu_profile
from powerprof.attribution.sleepers import SleepsProfile, WakersProfile, sleeps_profile, wakers_profile
from powerprof.errors import CapabilityError, UsageError
from powerprof.processes.targets import Target
from powerprof.processes.tasks import look_up
from powerprof.text import Say
from powerprof.tracing.captures.oncpu import Event
from powerprof.tracing.dtrace.backend import DtraceRun
from powerprof.tracing.dtrace.scripts import Question
from powerprof.windows.sampling import now_text

T = TypeVar("T", OnCpuProfile, FunctionProfile, WakersProfile, SleepsProfile)
# Says what the probes can do to the target; raises where it is not agreed to.
Consent = Callable[[str], None]
Names = Callable[[], Mapping[int, str]]
Backend = Literal["auto", "bpf", "dtrace"]
EVENTS: tuple[Event, ...] = ("cpu-clock", "page-faults")


@dataclass(frozen=True)
class OnCpuPlan:
    """What to sample, how often and how long."""

    target: Target
    duration_s: float
    event: str = "cpu-clock"
    frequency_hz: int = 99
    settle: bool = False


@dataclass(frozen=True)
class FunctionsPlan:
    """Which functions to probe (a glob, or module:glob), and how many at most."""

    target: Target
    duration_s: float
    pattern: str
    limit: int
    backend: str = "auto"
    unwinding_risk: bool = False
    settle: bool = False


def on_cpu(plan: OnCpuPlan, names: Names, say: Say) -> OnCpuProfile:
    """Sample one window. Raises UsageError, CapabilityError, PowerprofError."""
    from powerprof.tracing.oncpu.tracer import OnCpuTracer

    event = next((known for known in EVENTS if known == plan.event), None)
    if event is None:
        raise UsageError(f"--event {plan.event} is not a choice", f"one of {', '.join(EVENTS)}")
    named = dict(names())
    say("loading the sampler")
    pids = None if plan.target.system else plan.target.pids
    with OnCpuTracer(pids, event, frequency_hz=plan.frequency_hz) as tracer:
        say(f"sampling {plan.target.label} for {plan.duration_s:g} s")
        started_at = now_text()
        capture = tracer.measure(plan.duration_s, opened=lambda: privileges.settle(plan.settle))
    named.update(names())
    return _labelled(on_cpu_profile(capture, server_names=named), plan.target, started_at)


def functions(plan: FunctionsPlan, say: Say, consent: Consent) -> FunctionProfile:
    """Probe one window. `consent` is asked before a probe is placed that can harm the target.

    Raises UsageError, CapabilityError, PowerprofError, and what `consent` raises.
    """
    if plan.target.system:
        raise UsageError("--functions probes processes, not the whole system", "choose some by --pid")
    if plan.backend not in ("auto", "bpf", "dtrace"):
        raise UsageError(f"--backend {plan.backend} is not a choice", "auto, bpf or dtrace")
    if plan.backend == "dtrace" and plan.unwinding_risk:
        raise UsageError("--allow-unwinding-risk has no effect with DTrace", "it places no return probes")
    started_at = now_text()
    if plan.backend == "dtrace":
        return _labelled(_by_dtrace(plan, say), plan.target, started_at)
    try:
        profile = _by_bpf(plan, say, consent)
    except CapabilityError:
        if plan.backend == "bpf" or not _has_dtrace():
            raise
        profile = _by_dtrace(plan, say)
    return _labelled(profile, plan.target, started_at)


def _by_bpf(plan: FunctionsPlan, say: Say, consent: Consent) -> FunctionProfile:
    from powerprof.tracing.functions.tracer import FunctionTracer

    say("finding the functions")
    risk = plan.unwinding_risk
    with FunctionTracer(plan.target.pids, plan.pattern, limit=plan.limit, unwinding_risk=risk) as tracer:
        if tracer.danger is not None:
            consent(tracer.danger)
        say(f"counting {len(tracer.functions)} functions for {plan.duration_s:g} s")
        return function_profile(tracer.measure(plan.duration_s, lambda: privileges.settle(plan.settle)))


def _by_dtrace(plan: FunctionsPlan, say: Say) -> FunctionProfile:
    from powerprof.tracing.dtrace.backend import find_dtrace
    from powerprof.tracing.dtrace.functions import trace_functions

    pid, dtrace = _one_process(plan.target), find_dtrace()
    say("finding the functions, starting DTrace")
    trace = trace_functions(
        dtrace,
        pid,
        plan.pattern,
        plan.duration_s,
        limit=plan.limit,
        began=lambda: _begun(plan.duration_s, plan.settle, say),
    )
    return function_profile(trace)


def _begun(duration_s: float, settle: bool, say: Say) -> None:
    """DTrace, which is another process, has what it takes."""
    privileges.settle(settle)
    say(f"DTrace counts for {duration_s:g} s, and then ends in order, which takes some more")


def wakers(target: Target, duration_s: float, names: Names, say: Say, *, settle: bool = False) -> WakersProfile:
    """Who wakes a process's threads, from which call path. Raises UsageError, CapabilityError, PowerprofError."""
    from powerprof.tracing.dtrace.output import parse_wakeups

    started_at = now_text()
    trace = parse_wakeups(_run_dtrace("wakeups", target, duration_s, say, settle))
    named = _thread_names([wakeup.sleeper_tid for wakeup in trace.wakeups], names)
    return _labelled(wakers_profile(trace, named), target, started_at)


def sleeps(target: Target, duration_s: float, names: Names, say: Say, *, settle: bool = False) -> SleepsProfile:
    """How long a process's threads sleep and wait for a CPU. Raises UsageError, CapabilityError, PowerprofError."""
    from powerprof.tracing.dtrace.output import parse_latency

    started_at = now_text()
    trace = parse_latency(_run_dtrace("sleep-wake-latency", target, duration_s, say, settle))
    named = _thread_names([thread.tid for thread in trace.threads], names)
    return _labelled(sleeps_profile(trace, named), target, started_at)


def _run_dtrace(question: Question, target: Target, duration_s: float, say: Say, settle: bool) -> DtraceRun:
    from powerprof.tracing.dtrace.backend import find_dtrace, run_dtrace
    from powerprof.tracing.dtrace.scripts import pick, render

    pid, dtrace = _one_process(target), find_dtrace()
    script = render(pick(dtrace, question), pid=pid)
    say("starting DTrace")
    return run_dtrace(dtrace, script, pid, duration_s, began=lambda: _begun(duration_s, settle, say))


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
