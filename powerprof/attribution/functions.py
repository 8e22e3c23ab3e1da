# SPDX-License-Identifier: Apache-2.0
"""The record of `functions`: the calls and times of probed functions, less the time of the probes themselves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import msgspec

from powerprof.attribution.requests import (
    DTRACE_NOTE,
    FunctionsRequest,
    TargetChoice,
    check_backend,
    has_dtrace,
    label_record,
    only_pid,
    resolve_target,
)
from powerprof.measure.clock import format_now
from powerprof.model.records import Notes
from powerprof.model.text import Say
from powerprof.system.errors import CapabilityError, UsageError
from powerprof.system.processes import Target
from powerprof.tracing.captures import FunctionCounts, FunctionTrace

# Is called with the risk of the probes for the target; raises if the user does not agree.
Consent = Callable[[str], None]

# The kernel keeps at most 64 return probes per thread (MAX_URETPROBE_DEPTH).
_LIMITS = (
    "a call that an exception or longjmp leaves lasts to its thread's next probe",
    "calls nested more than 64 deep have no returns and count as abandoned",
    "inlined calls and those that began before the window are not counted",
)
_EXIT_LIMITS = (
    "a call that an exception, longjmp or jump leaves lasts to its thread's next probe",
    "a tail call ends its caller",
    "inlined calls and those that began before the window are not counted",
)
_DTRACE_LIMITS = (
    "DTrace does not measure what its probes cost: the times contain it",
    "the times of a call left by an exception, longjmp or an indirect jump are not counted",
    "inlined calls and those that began before the window are not counted",
)


class FunctionRow(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of one function. Self times exclude the probes' own time, so a tiny function can have 0.

    `self_cpu_percent` is the share of the process's CPU time; None if that is unknown. `cpu_ms` and `wall_ms` are
    measured from entry to return and include the probes of inner calls. `probe_ms` is the cost of the function's
    probes.
    """

    function: str
    module: str
    calls_count: int
    calls_hz: float
    self_cpu_ms: float | None
    self_cpu_percent: float | None
    self_cpu_mean_us: float | None
    self_wall_ms: float | None
    cpu_ms: float | None
    wall_ms: float | None
    probe_ms: float | None
    abandoned_count: int | None
    unfinished_count: int


class FunctionProfile(msgspec.Struct, frozen=True, kw_only=True):
    """The record of `functions`, by self CPU time. `probe_cost_percent` is of one CPU over the window."""

    pattern: str
    pids: list[int]
    window_s: float
    functions: list[FunctionRow]
    never_called_count: int
    hits_count: int
    probe_cost_ms: float | None
    probe_cost_percent: float | None
    probe_call_us: float | None
    probe_stepped_call_us: float | None
    process_cpu_ms: float | None
    unmatched_returns_count: int
    too_deep_count: int
    lost_count: int
    refused: list[tuple[str, str]]
    notes: Notes
    limits: list[str]
    method: str
    tool_cpu_s: float
    interrupted: bool = False
    id: str | None = None
    command: str = "functions"
    started_at: str | None = None
    label: str | None = None
    host: dict[str, Any] = {}
    schema: Literal["powerprof.functions/1"] = "powerprof.functions/1"


def count_functions(chosen: TargetChoice, request: FunctionsRequest, say: Say, consent: Consent) -> FunctionProfile:
    """Probe functions for one window; `consent` is called before probes that can harm the target are placed.

    Raises UsageError, CapabilityError, PowerprofError, and the errors of `consent`.
    """
    target = resolve_target(chosen)
    if target.system:
        raise UsageError("functions are probed in processes, not in the whole system", "choose some by --pid")
    check_backend(request.backend)
    if request.backend == "dtrace" and request.unwinding_risk:
        raise UsageError("--allow-unwinding-risk has no effect with DTrace", "it places no return probes")
    started_at = format_now()
    if request.backend == "dtrace":
        profile = _count_by_dtrace(target, request, say)
    else:
        try:
            profile = _count_by_bpf(target, request, say, consent)
        except CapabilityError:
            if request.backend == "bpf" or not has_dtrace():
                raise
            profile = _count_by_dtrace(target, request, say)
    return label_record(profile, target, started_at)


def _count_by_bpf(target: Target, request: FunctionsRequest, say: Say, consent: Consent) -> FunctionProfile:
    from powerprof.tracing.functions import FunctionTracer

    say("finding the functions")
    risk = request.unwinding_risk
    with FunctionTracer(target.pids, request.pattern, limit=request.limit, unwinding_risk=risk) as tracer:
        if tracer.danger is not None:
            consent(tracer.danger)
        count = len(tracer.functions)
        say(f"counting {count} function{'s' * (count != 1)} for {request.duration_s:g} s")
        return build_function_profile(tracer.measure(request.duration_s, settle=request.settle))


def _count_by_dtrace(target: Target, request: FunctionsRequest, say: Say) -> FunctionProfile:
    from powerprof.tracing.dtrace.backend import find_dtrace
    from powerprof.tracing.dtrace.output import trace_functions

    pid, dtrace = only_pid(target), find_dtrace()
    say(f"finding the functions; {DTRACE_NOTE.format(request.duration_s)}")
    return build_function_profile(
        trace_functions(dtrace, pid, request.pattern, request.duration_s, limit=request.limit, settle=request.settle)
    )


def _row(counts: FunctionCounts, trace: FunctionTrace) -> FunctionRow:
    own = trace.stepped_cost if counts.stepped else trace.cost
    probes_ns = 0.0
    if trace.cost is not None and trace.stepped_cost is not None and own is not None:
        # A child's probe runs partly before its entry and after its return: that part is in this function's time.
        probes_ns = (
            counts.calls * own.inside_ns
            + (counts.children - counts.stepped_children) * (trace.cost.call_ns - trace.cost.inside_ns)
            + counts.stepped_children * (trace.stepped_cost.call_ns - trace.stepped_cost.inside_ns)
        )
    self_cpu_ns = _subtract_probes(counts.self_cpu_ns, probes_ns)
    total_ns = trace.process_cpu_s * 1e9 if trace.process_cpu_s else None
    return FunctionRow(
        function=counts.name,
        module=counts.module,
        calls_count=counts.calls,
        calls_hz=counts.calls / trace.window_s,
        self_cpu_ms=_ms(self_cpu_ns),
        self_cpu_percent=min(100.0, 100.0 * self_cpu_ns / total_ns) if total_ns and self_cpu_ns is not None else None,
        self_cpu_mean_us=self_cpu_ns / counts.calls / 1e3 if counts.calls and self_cpu_ns is not None else None,
        self_wall_ms=_ms(_subtract_probes(counts.self_wall_ns, probes_ns)),
        cpu_ms=_ms(counts.cpu_ns),
        wall_ms=_ms(counts.wall_ns),
        probe_ms=counts.calls * own.call_ns / 1e6 if own is not None else None,
        abandoned_count=counts.abandoned,
        unfinished_count=counts.unfinished,
    )


def _subtract_probes(ns: float | None, probes_ns: float) -> float | None:
    return None if ns is None else max(ns - probes_ns, 0.0)


def _ms(ns: float | None) -> float | None:
    return ns / 1e6 if ns is not None else None


def _limits(method: str) -> tuple[str, ...]:
    if method.startswith("dtrace"):
        return _DTRACE_LIMITS
    return _EXIT_LIMITS if method.endswith("at exits") else _LIMITS


def build_function_profile(trace: FunctionTrace) -> FunctionProfile:
    """Return the profile of one window."""
    called = [_row(function, trace) for function in trace.functions if function.calls]
    rows = sorted(called, key=lambda row: (-(row.self_cpu_ms or 0.0), -row.calls_count, row.function))
    cost_ms = sum(row.probe_ms or 0.0 for row in rows) if trace.cost is not None else None
    return FunctionProfile(
        pattern=trace.pattern,
        pids=trace.pids,
        window_s=trace.window_s,
        functions=rows,
        never_called_count=len(trace.functions) - len(rows),
        hits_count=trace.hits_count,
        probe_cost_ms=cost_ms,
        probe_cost_percent=100.0 * cost_ms / 1e3 / trace.window_s if cost_ms is not None else None,
        probe_call_us=trace.cost.call_ns / 1e3 if trace.cost else None,
        probe_stepped_call_us=trace.stepped_cost.call_ns / 1e3 if trace.stepped_cost else None,
        process_cpu_ms=trace.process_cpu_s * 1e3 if trace.process_cpu_s is not None else None,
        unmatched_returns_count=trace.unmatched_count,
        too_deep_count=trace.too_deep_count,
        lost_count=trace.lost_count,
        refused=trace.refused,
        notes=trace.notes,
        limits=list(_limits(trace.method)),
        method=trace.method,
        tool_cpu_s=trace.tool_cpu_s,
        interrupted=trace.interrupted,
    )
