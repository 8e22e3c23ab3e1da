# SPDX-License-Identifier: Apache-2.0
"""The record of `profile`: the functions in which the samples of a window fell, with the uncertainty of sampling."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from powerprof.attribution.requests import (
    ProfileRequest,
    ServerChoice,
    TargetChoice,
    label_record,
    resolve_target,
    thread_name_reader,
)
from powerprof.measure.clock import format_now
from powerprof.model.records import Notes
from powerprof.model.text import Say
from powerprof.statistics.rates import proportion
from powerprof.system.errors import UsageError
from powerprof.tracing.captures import Event, OnCpuCapture
from powerprof.tracing.profile import OnCpuFrame, PathNames

_EVENTS: tuple[Event, ...] = ("cpu-clock", "page-faults")


class OnCpuStack(msgspec.Struct, frozen=True, kw_only=True):
    """A call path of one thread, innermost frame first. Lost stacks are counted in `stack_state` without names."""

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
    """The share of one function: `self` counts its own samples, `total` those with it anywhere on the stack.

    `low_percent` and `high_percent` are the 95 % Wilson interval of `self_percent`. They are None for page faults,
    which are counted.
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


class OnCpuProfile(msgspec.Struct, frozen=True, kw_only=True):
    """The record of `profile`.

    Percentages are of the targets' own samples (`percent_of` "target") or faults; older runs have "c0", the share of
    all C0 samples of the host. `c0_percent` is the sampled C0 share of all CPUs, `target_percent` the targets' share
    of it. The count of the target is the sum of named and lost samples.
    """

    event: str
    pids: list[int] | None
    window_s: float
    cpus: int
    percent_of: Literal["target", "c0", "page_faults"]
    c0_percent: float | None
    target_count: int
    target_percent: float | None
    target_hz: float
    target_c0_ms: float | None
    functions: list[FunctionShare]
    stacks: list[OnCpuStack]
    complete_count: int
    truncated_count: int
    failed_count: int
    lost_count: int
    missed_count: int
    copied_stacks_count: int
    notes: Notes
    tool_cpu_s: float
    bpf_s: float | None
    interrupted: bool = False
    id: str | None = None
    command: str = "profile"
    started_at: str | None = None
    label: str | None = None
    host: dict[str, Any] = {}
    schema: Literal["powerprof.oncpu/1"] = "powerprof.oncpu/1"


def profile_target(chosen: TargetChoice, server: ServerChoice, request: ProfileRequest, say: Say) -> OnCpuProfile:
    """Sample one window and return its profile. Raises UsageError, CapabilityError, PowerprofError."""
    from powerprof.tracing.profile import OnCpuTracer

    target = resolve_target(chosen)
    event = next((event for event in _EVENTS if event == request.event), None)
    read_names = thread_name_reader(server, target)
    if event is None:
        raise UsageError(f"--event {request.event} is not a choice", f"one of {', '.join(_EVENTS)}")
    names = dict(read_names())
    say("loading the sampler")
    pids = None if target.system else target.pids
    with OnCpuTracer(pids, event, frequency_hz=request.frequency_hz) as tracer:
        say(f"sampling {target.label} for {request.duration_s:g} s")
        started_at = format_now()
        capture = tracer.measure(request.duration_s, settle=request.settle)
    names.update(read_names())
    return label_record(build_on_cpu_profile(capture, server_names=names), target, started_at)


def build_on_cpu_profile(capture: OnCpuCapture, server_names: Mapping[int, str] | None = None) -> OnCpuProfile:
    """Return the profile of one window. `server_names` maps thread ids to the server's names."""
    names = PathNames(capture)
    whole = capture.target_count
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
            c0_ms=_ms(count, capture),
            stack_state=state,  # type: ignore[arg-type]
            stack=frames,
        )
        for (tid, _, state), (frames, pid, count) in merged.items()
    ]
    stacks.sort(key=lambda row: (-row.count, row.pid, row.tid, [frame.label for frame in row.stack]))
    clock = capture.event == "cpu-clock"
    return OnCpuProfile(
        event=capture.event,
        pids=capture.pids,
        window_s=capture.window_s,
        cpus=capture.cpus,
        percent_of="target" if clock else "page_faults",
        c0_percent=_percent(capture.busy_count, capture.events_count) if clock and capture.events_count else None,
        target_count=capture.target_count,
        target_percent=_percent(capture.target_count, capture.busy_count) if clock and capture.busy_count else None,
        target_hz=capture.target_count / capture.window_s,
        target_c0_ms=_ms(capture.target_count, capture),
        functions=_functions(stacks, whole, capture),
        stacks=stacks,
        complete_count=states["complete"] + states["kernel"],
        truncated_count=states["truncated"],
        failed_count=states["failed"],
        lost_count=states["lost"] + capture.lost_rows_count,
        missed_count=capture.missed_count,
        copied_stacks_count=capture.stacks_count,
        notes=[*capture.notes, *names.notes],
        tool_cpu_s=capture.tool_cpu_s,
        bpf_s=capture.bpf_s,
        interrupted=capture.interrupted,
    )


def _ms(count: int, capture: OnCpuCapture) -> float | None:
    return count * capture.period_ms if capture.period_ms is not None else None


def _percent(count: int, whole: int) -> float:
    return 100.0 * count / whole if whole else 0.0


def _functions(stacks: list[OnCpuStack], whole: int, capture: OnCpuCapture) -> list[FunctionShare]:
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
        sampled = proportion(alone, whole) if capture.event == "cpu-clock" and whole else None
        rows.append(
            FunctionShare(
                function=key[0],
                module=key[1],
                kernel=key[2],
                self_count=alone,
                self_percent=_percent(alone, whole),
                low_percent=None if sampled is None else sampled.low_percent,
                high_percent=None if sampled is None else sampled.high_percent,
                self_ms=_ms(alone, capture),
                total_count=count,
                total_percent=_percent(count, whole),
            )
        )
    rows.sort(key=lambda row: (-row.self_count, -row.total_count, row.function, row.module))
    return rows
