# SPDX-License-Identifier: Apache-2.0
"""Weighted stacks of attributions, profiles and queries, and folded stacks for other viewers."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

import msgspec

from powerprof.attribution.profile import OnCpuProfile, OnCpuStack
from powerprof.model.attribution import Attribution, Wakeup, Waking
from powerprof.queries.records import Queries
from powerprof.system.errors import UsageError
from powerprof.system.next_steps import command_line

Frames = tuple[str, ...]
WeightedStack = tuple[Frames, float]
"""Frames outermost first, and a weight: idle exits, milliseconds of C0, or another count."""


def merge_stacks(stacks: Iterable[WeightedStack]) -> list[WeightedStack]:
    """Return the sum of equal stacks, in the order of their frames; stacks without weight are left out."""
    sums: dict[Frames, float] = {}
    for frames, value in stacks:
        if value > 0:
            sums[frames] = sums.get(frames, 0) + value
    return sorted(sums.items())


Weight = Literal["count", "rate_hz", "c0_ms", "wakings_count", "wakings_hz", "own_ms"]
NO_STACK = "[no user stack]"
INCOMPLETE = "[incomplete]"
Owner = dict[str, str | int]


class StackSet(msgspec.Struct, frozen=True):
    """The stacks of a record and their weights.

    Attributes:
        stacks: Frames and their counts, in `unit`.
        c0_ms: Frames and their C0 time in ms; `None` if it was not measured.
        modules: The file of each frame.
        owners: The attributes of the owner of each stack.
        states: The exits of each stack by idle state, if they are known.
    """

    title: str
    root: str
    unit: str
    stacks: list[WeightedStack]
    c0_ms: list[WeightedStack] | None
    modules: dict[str, str]
    window_s: float
    owners: list[Owner]
    states: list[dict[str, int]] | None = None


def _drop_unknown(known: Mapping[str, str | int | None]) -> Owner:
    """Return the known attributes of an owner.

    Names are those of OpenTelemetry's conventions; other names begin with `powerprof.`.
    """
    return {name: value for name, value in known.items() if value is not None and value != ""}


def frames_of(wakeup: Wakeup | Waking) -> Frames:
    """Return the frames of a wake-up, outermost first, below the name of its thread; an incomplete stack is marked."""
    frames = [frame.label for frame in reversed(wakeup.stack)]
    if not frames:
        frames = [NO_STACK]
    elif not wakeup.stack_complete:
        frames.insert(0, INCOMPLETE)
    return (wakeup.thread.label, *frames)


def stacks_of(wakeups: Iterable[Wakeup | Waking], by: Weight = "count") -> list[WeightedStack]:
    """Return one weighted stack per row; an unknown weight is 0."""
    return [(frames_of(wakeup), getattr(wakeup, by) or 0) for wakeup in wakeups]


def modules_of(wakeups: Sequence[Wakeup | Waking]) -> dict[str, str]:
    """Return the file of each frame, by the label of the frame."""
    return {frame.label: frame.module for wakeup in wakeups for frame in wakeup.stack}


def _list_on_cpu_frames(row: OnCpuStack) -> Frames:
    # flamegraph.pl colours functions of the kernel by this suffix.
    frames = [f"{frame.label}_[k]" if frame.kernel else frame.label for frame in reversed(row.stack)]
    if row.stack_state in ("truncated", "failed", "lost"):
        frames.insert(0, INCOMPLETE)
    thread = row.server_name.removeprefix("thread/") if row.server_name else row.comm
    return (thread, *frames)


def attribution_stacks(record: Attribution) -> StackSet:
    """Return idle exits by thread and stack; without any, the wakings that a quieter host would have as exits."""
    target, exits = record.target.label, record.wakeups
    rows: Sequence[Wakeup | Waking] = exits or record.wakings_without_exit
    return StackSet(
        f"Idle exits caused by {target}" if exits else f"Wakings of {target} on busy CPUs",
        target,
        "idle exits" if exits else "wakings",
        stacks_of(rows, "count" if exits else "wakings_count"),
        stacks_of(rows, "c0_ms" if exits else "own_ms"),
        modules_of(rows),
        record.window_s,
        [_describe_owner(row, record) for row in rows],
        [row.states for row in exits] if exits else None,
    )


def _describe_owner(row: Wakeup | Waking, record: Attribution) -> Owner:
    return _drop_unknown(
        {
            "thread.name": row.thread.label,
            "thread.id": row.thread.tid or None,
            "process.pid": row.thread.pid or record.target.pid,
            "process.executable.name": row.thread.process or (None if record.target.system else record.target.label),
            "powerprof.unit": row.thread.unit,
            "powerprof.mechanism": row.mechanism if isinstance(row, Wakeup) else None,
            "powerprof.origin": row.origin,
            "powerprof.detail": row.detail,
            "powerprof.waker": row.waker.comm if row.waker else None,
        }
    )


def profile_stacks(record: OnCpuProfile) -> StackSet:
    """Return samples of C0, or page faults, by thread and stack."""
    faults = record.percent_of == "page_faults"
    paths = [(_list_on_cpu_frames(row), row) for row in record.stacks]
    frames = [frame for row in record.stacks for frame in row.stack]
    return StackSet(
        "Page faults by function" if faults else "C0 time by function",
        "all",
        "page faults" if faults else "samples of C0",
        [(path, float(row.count)) for path, row in paths],
        None if faults else [(path, row.c0_ms or 0.0) for path, row in paths],
        {f"{frame.label}_[k]" if frame.kernel else frame.label: frame.module for frame in frames},
        record.window_s,
        [
            _drop_unknown(
                {
                    "thread.name": path[0],
                    "thread.id": row.tid or None,
                    "process.pid": row.pid or None,
                    "powerprof.stack_state": row.stack_state,
                }
            )
            for path, row in paths
        ],
    )


def query_stacks(record: Queries) -> StackSet:
    """Return samples by statement and stack. Raises UsageError if none were taken."""
    if not any(statement.stacks for statement in record.statements):
        raise UsageError("this run has no stacks", f"to record them: {command_line('queries --stacks')}")
    return StackSet(
        f"C0 time of {record.server.label} by statement",
        "all",
        "samples of C0",
        [
            ((statement.text, *stack.frames), float(stack.count))
            for statement in record.statements
            for stack in statement.stacks
        ],
        None,
        record.modules,
        record.window_s,
        [{"db.query.text": statement.text} for statement in record.statements for _ in statement.stacks],
    )


_UNSAFE = re.compile(r"[;\x00-\x1f\x7f\x85\u2028\u2029]")


def fold_stacks(stacks: Iterable[WeightedStack]) -> str:
    """Return the input of flamegraph.pl, inferno, speedscope and other viewers.

    It has one line per distinct stack: frames from the outermost joined by `;`, a blank, the weight with at most six
    decimals. The format has no escapes, so `;` and control characters in a name become %3B and so on.
    """
    lines = []
    for frames, value in merge_stacks(stacks):
        weight = f"{value:.6f}".rstrip("0").rstrip(".")
        lines.append(f"{';'.join(map(_escape_frame, frames)) or 'unknown'} {weight}\n")
    return "".join(lines)


def _escape_frame(name: str) -> str:
    return _UNSAFE.sub(lambda match: "".join(f"%{byte:02X}" for byte in match[0].encode()), name)
