"""The two other questions about a target: where does it run (`--on-cpu`), and how often are functions called."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, TypeVar

import msgspec

from powerprof.attribution.functions import FunctionProfile, function_profile
from powerprof.attribution.oncpu import OnCpuProfile, on_cpu_profile
from powerprof.errors import CapabilityError, UsageError
from powerprof.processes.targets import Target
from powerprof.text import Say
from powerprof.tracing.oncpu_capture import Event
from powerprof.windows.sampling import now_text

T = TypeVar("T", OnCpuProfile, FunctionProfile)
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


@dataclass(frozen=True)
class FunctionsPlan:
    """Which functions to probe (a glob, or module:glob), and how many at most."""

    target: Target
    duration_s: float
    pattern: str
    limit: int
    backend: str = "auto"


def on_cpu(plan: OnCpuPlan, names: Names, say: Say) -> OnCpuProfile:
    """Sample one window. Raises UsageError, CapabilityError, PowerprofError."""
    from powerprof.tracing.oncpu import OnCpuTracer

    event = next((known for known in EVENTS if known == plan.event), None)
    if event is None:
        raise UsageError(f"--event {plan.event} is no choice", f"one of {', '.join(EVENTS)}")
    named = dict(names())
    say("loading the sampler")
    pids = None if plan.target.system else plan.target.pids
    with OnCpuTracer(pids, event, frequency_hz=plan.frequency_hz) as tracer:
        say(f"sampling {plan.target.label} for {plan.duration_s:g} s")
        started_at = now_text()
        capture = tracer.measure(plan.duration_s)
    named.update(names())
    return _labelled(on_cpu_profile(capture, server_names=named), plan.target, started_at)


def functions(plan: FunctionsPlan, say: Say) -> FunctionProfile:
    """Probe one window. Raises UsageError, CapabilityError, PowerprofError."""
    if plan.target.system:
        raise UsageError("--functions probes processes, not the whole system", "choose some by --pid")
    if plan.backend not in ("auto", "bpf", "dtrace"):
        raise UsageError(f"--backend {plan.backend} is no choice", "auto, bpf or dtrace")
    started_at = now_text()
    if plan.backend == "dtrace":
        return _labelled(_by_dtrace(plan, say), plan.target, started_at)
    try:
        found = _by_bpf(plan, say)
    except CapabilityError:
        if plan.backend == "bpf" or not _has_dtrace():
            raise
        found = _by_dtrace(plan, say)
    return _labelled(found, plan.target, started_at)


def _by_bpf(plan: FunctionsPlan, say: Say) -> FunctionProfile:
    from powerprof.tracing.functions import FunctionTracer

    say("finding the functions")
    with FunctionTracer(plan.target.pids, plan.pattern, limit=plan.limit) as tracer:
        say(f"counting {len(tracer.functions)} functions for {plan.duration_s:g} s")
        return function_profile(tracer.measure(plan.duration_s))


def _by_dtrace(plan: FunctionsPlan, say: Say) -> FunctionProfile:
    from powerprof.tracing.dtrace import run_dtrace
    from powerprof.tracing.dtrace_output import parse_functions

    if len(plan.target.pids) != 1:
        raise UsageError("DTrace probes one process at a time", "choose it by --pid ID")
    module, _, pattern = plan.pattern.rpartition(":")
    say(f"running DTrace for {plan.duration_s:g} s")
    run = run_dtrace(
        "function-profile",
        plan.target.pids[0],
        max(1, round(plan.duration_s)),
        functions=pattern,
        module=module or "a.out",
    )
    return function_profile(parse_functions(run, plan.pattern))


def _has_dtrace() -> bool:
    from powerprof.tracing.dtrace import find_dtrace

    try:
        find_dtrace()
    except CapabilityError:
        return False
    return True


def _labelled(profile: T, target: Target, started_at: str) -> T:
    from powerprof.host.describe import host_record

    found: T = msgspec.structs.replace(profile, label=target.label, started_at=started_at, host=host_record())
    return found
