# SPDX-License-Identifier: Apache-2.0
"""The records of `profile` and `functions`: samples of running code, and counted calls."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Literal

import msgspec
from msgspec.structs import replace

from powerprof.attribution.requests import (
    DTRACE_NOTE,
    FunctionsRequest,
    ProfileRequest,
    check_backend,
    choose_target,
    has_dtrace,
    label_record,
    only_pid,
    read_names_after,
    thread_name_reader,
)
from powerprof.measure.clock import format_now
from powerprof.measure.progress import announce
from powerprof.measure.target_life import SHORT_LOOK_S, TargetLife
from powerprof.model.records import CostBound, Note, Record
from powerprof.model.text import Say
from powerprof.stacks.runtimes import runtime_notes
from powerprof.statistics.counts import proportion
from powerprof.system.errors import CapabilityError, UnknownNameError, UsageError
from powerprof.system.targets import ServerChoice, Target, TargetChoice, resolve_target
from powerprof.tracing.budget import LEAST_CPUS_WITH_FIXED_COST, Budget, base_of_cost_s
from powerprof.tracing.captures import Event, FunctionCounts, FunctionTrace, OnCpuCapture, estimate_cpu_time
from powerprof.tracing.profile import OnCpuFrame, PathNames
from powerprof.tracing.slices import UseClock

if TYPE_CHECKING:
    from powerprof.tracing.profile import OnCpuTracer

# The CPU use of the target is measured for so long before the window.
_LOOK_AT_USE_S = 0.25
_EVENTS: tuple[Event, ...] = ("cpu-clock", "page-faults")


class OnCpuStack(msgspec.Struct, frozen=True, kw_only=True):
    """A call path of one thread, innermost frame first."""

    pid: int
    tid: int
    comm: str
    server_name: str | None
    count: int
    percent: float
    c0_ms: float | None
    stack_state: Literal["complete", "truncated", "failed", "lost", "kernel"]
    stack: list[OnCpuFrame]


class FunctionShare(msgspec.Struct, frozen=True, kw_only=True):
    """A function. `self`: its own samples; `total`: with callees.

    Attributes:
        low_percent, high_percent: Wilson interval of `self_percent`.
    """

    function: str
    module: str
    kernel: bool
    self_count: int
    self_percent: float
    low_percent: float | None
    high_percent: float | None
    self_ms: float | None
    total_count: int
    total_percent: float


class OnCpuProfile(Record, frozen=True, kw_only=True):
    """The record of `profile`.

    Percentages are of the target's samples or faults.

    Attributes:
        c0_percent, target_percent: sampled C0 of all CPUs, and the target's share of it.
        target_c0_ms: by clocks (`clock_c0_ms`) if known, else by samples.
        sampled_c0_ms, low_c0_ms, high_c0_ms: by samples, with the interval.
        unseen_c0_ms: of processes that the target started and that ended before they were found; in no row.
    """

    event: str
    pids: list[int] | None
    window_s: float
    cpus: int
    percent_of: Literal["target", "page_faults"]
    c0_percent: float | None
    target_count: int
    target_percent: float | None
    target_hz: float
    target_c0_ms: float | None
    clock_c0_ms: float | None = None
    sampled_c0_ms: float | None = None
    low_c0_ms: float | None = None
    high_c0_ms: float | None = None
    unseen_c0_ms: float = 0.0
    functions: list[FunctionShare]
    stacks: list[OnCpuStack]
    complete_count: int
    truncated_count: int
    failed_count: int
    lost_count: int
    missed_count: int
    copied_stacks_count: int
    tool_cpu_s: float
    bpf_s: float | None
    bound: CostBound | None = None
    command: str = "profile"
    label: str | None = None
    schema: Literal["powerprof.oncpu/1"] = "powerprof.oncpu/1"


def profile_target(chosen: TargetChoice, server: ServerChoice, request: ProfileRequest, say: Say) -> OnCpuProfile:
    """Sample one window and return its profile. Raises UsageError, CapabilityError, PowerprofError."""
    from powerprof.tracing.profile import OnCpuTracer

    target = choose_target(chosen, server, say)
    event = next((event for event in _EVENTS if event == request.event), None)
    read_names = thread_name_reader(server, target)
    if event is None:
        raise UnknownNameError(f"--event {request.event} is not a choice", request.event, _EVENTS)
    names = dict(read_names())
    say("loading the sampler")
    pids = None if target.system else target.pids
    hz, used = request.frequency_hz, UseClock(target)
    with (
        TargetLife(target, SHORT_LOOK_S) as life,
        OnCpuTracer(pids, event, find_members=target.find_members, frequency_hz=hz) as tracer,
    ):
        lowered_hz = _limit_cost(tracer, used, request)
        announce(say, f"sampling {target.label}", request.duration_s)
        started_at = format_now()
        capture = tracer.measure(request.duration_s, used, life, settle=request.settle)
    names.update(read_names_after(read_names, capture.ended))
    cost_s = tracer.find_cost_s(capture)
    base_s = base_of_cost_s(used.used_s, capture.window_s, LEAST_CPUS_WITH_FIXED_COST)
    bound = CostBound(
        max_cost_percent=None if request.max_cost is None else 100.0 * request.max_cost,
        cost_percent=None if cost_s is None else 100.0 * (cost_s + capture.tool_cpu_s) / base_s,
        programs_s=cost_s,
        frequency_hz=lowered_hz,
    )
    profile = replace(build_on_cpu_profile(capture, server_names=names), bound=bound)
    return label_record(profile, target, started_at)


def _limit_cost(tracer: OnCpuTracer, used: UseClock, request: ProfileRequest) -> float | None:
    """Keep the cost of samples within the bound. Return a lowered frequency, else None."""
    if request.max_cost is None or request.event != "cpu-clock":
        return None
    began_s, first_s = time.monotonic(), used.read_s()
    time.sleep(_LOOK_AT_USE_S)
    passed_s = time.monotonic() - began_s
    used_s = used.read_s() - first_s
    budget = Budget(request.max_cost, LEAST_CPUS_WITH_FIXED_COST)
    return tracer.limit_cost(budget.allowed_s(used_s, passed_s) / passed_s, used_s / passed_s)


def build_on_cpu_profile(capture: OnCpuCapture, server_names: Mapping[int, str] | None = None) -> OnCpuProfile:
    """Return the profile of one window. `server_names` maps thread ids to the server's names."""
    names = PathNames(capture)
    whole = capture.target_count
    clock = capture.event == "cpu-clock"
    sampled, clock_ms = None, None
    if clock and capture.period_ms is not None:
        sampled = estimate_cpu_time(whole, capture.period_ms, capture.sampled_ms)
        clock_ms = capture.process_cpu_ms
    used_ms = clock_ms if clock_ms is not None else sampled.ms if sampled is not None else None
    merged: dict[tuple[int, tuple[str, ...], str], tuple[list[OnCpuFrame], int, int]] = {}
    states = dict.fromkeys(("complete", "truncated", "failed", "lost", "kernel"), 0)
    for row in sorted(capture.rows, key=lambda sample: (sample.pid, sample.tid, sample.user, sample.kernel)):
        frames, state = names.of(row)
        states[state] += row.count
        key = (row.tid, tuple(frame.label for frame in frames), state)
        known = merged.get(key)
        merged[key] = (known[0] if known else frames, row.pid, (known[2] if known else 0) + row.count)
    stacks = [
        OnCpuStack(
            pid=pid,
            tid=tid,
            comm=capture.comms.get(tid, f"thread {tid}"),
            server_name=(server_names or {}).get(tid),
            count=count,
            percent=_percent(count, whole),
            c0_ms=_part_ms(used_ms, count, whole),
            stack_state=state,  # type: ignore[arg-type]
            stack=frames,
        )
        for (tid, _, state), (frames, pid, count) in merged.items()
    ]
    stacks.sort(key=lambda row: (-row.count, row.pid, row.tid, [frame.label for frame in row.stack]))
    return OnCpuProfile(
        event=capture.event,
        pids=capture.pids,
        window_s=capture.window_s,
        cpus=capture.cpus,
        percent_of="target" if clock else "page_faults",
        c0_percent=_percent(capture.busy_count, capture.expected_count) if clock and capture.events_count else None,
        target_count=capture.target_count,
        target_percent=_percent(capture.target_count, capture.busy_count) if clock and capture.busy_count else None,
        target_hz=capture.target_count / capture.window_s,
        target_c0_ms=used_ms,
        clock_c0_ms=clock_ms,
        sampled_c0_ms=sampled.ms if sampled is not None else None,
        low_c0_ms=sampled.low_ms if sampled is not None else None,
        high_c0_ms=sampled.high_ms if sampled is not None else None,
        unseen_c0_ms=capture.unseen_cpu_ms if clock else 0.0,
        functions=_functions(stacks, whole, used_ms),
        stacks=stacks,
        complete_count=states["complete"] + states["kernel"],
        truncated_count=states["truncated"],
        failed_count=states["failed"],
        lost_count=states["lost"] + capture.lost_rows_count,
        missed_count=capture.missed_count,
        copied_stacks_count=capture.stacks_count,
        notes=[
            *capture.notes,
            *(sampled.compare_with_clock(clock_ms) if sampled is not None else ()),
            *names.notes,
            *_note_generated_code(stacks, capture),
        ],
        tool_cpu_s=capture.tool_cpu_s,
        bpf_s=capture.bpf_s,
        ended=capture.ended,
    )


def _note_generated_code(stacks: Sequence[OnCpuStack], capture: OnCpuCapture) -> list[Note]:
    """Return how to get the names of generated code that ran without them."""
    images = {image.pid: image for image in capture.images}
    notes = runtime_notes(((row.pid, row.stack) for row in stacks), images)
    return [note for note in notes if note.name.endswith("_code")]


def _part_ms(used_ms: float | None, count: int, whole: int) -> float | None:
    """Return the part of the target's CPU time that `count` of its samples stand for."""
    return None if used_ms is None else used_ms * count / whole if whole else 0.0


def _percent(count: int, whole: int) -> float:
    return 100.0 * count / whole if whole else 0.0


def _functions(stacks: list[OnCpuStack], whole: int, used_ms: float | None) -> list[FunctionShare]:
    own: dict[tuple[str, str, bool], int] = {}
    total: dict[tuple[str, str, bool], int] = {}
    for row in stacks:
        keys = [(frame.label, frame.module, frame.kernel) for frame in row.stack] or [("[unknown]", "", False)]
        own[keys[0]] = own.get(keys[0], 0) + row.count
        for key in dict.fromkeys(keys):
            total[key] = total.get(key, 0) + row.count
    rows = []
    for key, count in total.items():
        alone = own.get(key, 0)
        sampled = proportion(alone, whole) if used_ms is not None and whole else None
        rows.append(
            FunctionShare(
                function=key[0],
                module=key[1],
                kernel=key[2],
                self_count=alone,
                self_percent=_percent(alone, whole),
                low_percent=None if sampled is None else sampled.low_percent,
                high_percent=None if sampled is None else sampled.high_percent,
                self_ms=_part_ms(used_ms, alone, whole),
                total_count=count,
                total_percent=_percent(count, whole),
            )
        )
    rows.sort(key=lambda row: (-row.self_count, -row.total_count, row.function, row.module))
    return rows


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
    """One function. Self times exclude the probes; `cpu_ms` and `wall_ms` include those of inner calls.

    Attributes:
        self_cpu_percent: of the process's CPU time.
        probe_ms: cost of its probes.
        abandoned_count: ended by longjmp or an exception.
        unfinished_count: open at the end of the window.
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
    low_count: float | None = None
    high_count: float | None = None


class FunctionProfile(Record, frozen=True, kw_only=True):
    """The record of `functions`, by self CPU time. `probe_cost_percent` is of one CPU."""

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
    limits: list[str]
    method: str
    tool_cpu_s: float
    bound: CostBound | None = None
    command: str = "functions"
    label: str | None = None
    schema: Literal["powerprof.functions/1"] = "powerprof.functions/1"


def count_functions(chosen: TargetChoice, request: FunctionsRequest, say: Say, consent: Consent) -> FunctionProfile:
    """Probe functions for one window; `consent` is called before probes that can harm the target are placed.

    Raises UsageError, CapabilityError, PowerprofError, and the errors of `consent`.
    """
    target = resolve_target(chosen, say)
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
    from powerprof.tracing.summed_slices import measure_bounded

    say("finding the functions")
    risk = request.unwinding_risk
    with (
        TargetLife(target, SHORT_LOOK_S) as life,
        FunctionTracer(
            target.pids, request.pattern, find_members=target.find_members, limit=request.limit, unwinding_risk=risk
        ) as tracer,
    ):
        if tracer.danger is not None:
            consent(tracer.danger)
        count = len(tracer.functions)
        announce(say, f"counting {count} function{'s' * (count != 1)}", request.duration_s)
        trace, bound = measure_bounded(
            tracer, target, request.max_cost, request.duration_s, life, settle=request.settle
        )
        profile = replace(build_function_profile(trace), bound=bound)
        return _replace_cost(profile) if bound.slices_count else profile


def _replace_cost(profile: FunctionProfile) -> FunctionProfile:
    """Return a sliced profile with the cost of the probes that were hit, and not of all calls of the window."""
    cost_s = profile.bound.programs_s if profile.bound is not None else None
    percent = None if cost_s is None else 100.0 * cost_s / profile.window_s
    return replace(
        profile,
        probe_cost_ms=None if cost_s is None else 1e3 * cost_s,
        probe_cost_percent=percent,
        functions=[replace(row, probe_ms=None) for row in profile.functions],
    )


def _count_by_dtrace(target: Target, request: FunctionsRequest, say: Say) -> FunctionProfile:
    from powerprof.tracing.dtrace import find_dtrace
    from powerprof.tracing.dtrace_functions import trace_functions

    pid, dtrace = only_pid(target), find_dtrace()
    say(f"finding the functions; {DTRACE_NOTE.format(request.duration_s)}")
    with TargetLife(target, SHORT_LOOK_S) as life:
        trace = trace_functions(
            dtrace, pid, request.pattern, request.duration_s, life, limit=request.limit, settle=request.settle
        )
    return build_function_profile(trace)


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
        self_cpu_ms=_to_ms(self_cpu_ns),
        self_cpu_percent=min(100.0, 100.0 * self_cpu_ns / total_ns) if total_ns and self_cpu_ns is not None else None,
        self_cpu_mean_us=self_cpu_ns / counts.calls / 1e3 if counts.calls and self_cpu_ns is not None else None,
        self_wall_ms=_to_ms(_subtract_probes(counts.self_wall_ns, probes_ns)),
        cpu_ms=_to_ms(counts.cpu_ns),
        wall_ms=_to_ms(counts.wall_ns),
        probe_ms=counts.calls * own.call_ns / 1e6 if own is not None else None,
        abandoned_count=counts.abandoned,
        unfinished_count=counts.unfinished,
        low_count=counts.low_count,
        high_count=counts.high_count,
    )


def _subtract_probes(ns: float | None, probes_ns: float) -> float | None:
    return None if ns is None else max(ns - probes_ns, 0.0)


def _to_ms(ns: float | None) -> float | None:
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
        ended=trace.ended,
    )
