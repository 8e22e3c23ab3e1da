# SPDX-License-Identifier: Apache-2.0
"""From the rows of an attribution or of a profile of C0 to weighted stacks: the thread, then its outermost frame."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from powerprof.attribution.oncpu import OnCpuProfile, OnCpuStack
from powerprof.attribution.records import Attribution, Wakeup
from powerprof.errors import UsageError
from powerprof.queries.records import Queries
from powerprof.report.stacks.samples import Frames, WeightedStack

Weight = Literal["count", "rate_hz", "c0_ms"]
NO_STACK = "[no user stack]"
INCOMPLETE = "[incomplete]"
Owner = dict[str, str | int]


@dataclass(frozen=True)
class StackSet:
    """The stacks of a record with what their weights are. `c0_ms` is None where time was not measured.

    `owners` say of each stack whose it is, which its outermost frame says in a word; `states` in which idle states its
    exits were, where that is known.
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


def _owner(known: Mapping[str, str | int | None]) -> Owner:
    """What is known, by the names of OpenTelemetry's conventions; our own begin with `powerprof.`."""
    return {name: value for name, value in known.items() if value is not None and value != ""}


def frames_of(wakeup: Wakeup) -> Frames:
    """Outermost first, below the thread's name; a stack that breaks off says so."""
    frames = [frame.label for frame in reversed(wakeup.stack)]
    if not frames:
        frames = [NO_STACK]
    elif not wakeup.stack_complete:
        frames.insert(0, INCOMPLETE)
    return (wakeup.thread.label, *frames)


def stacks_of(wakeups: Iterable[Wakeup], by: Weight = "count") -> list[WeightedStack]:
    """One weighted stack a row."""
    return [(frames_of(wakeup), getattr(wakeup, by)) for wakeup in wakeups]


def modules_of(wakeups: Sequence[Wakeup]) -> dict[str, str]:
    """The file each frame is in, by the frame's label."""
    return {frame.label: frame.module for wakeup in wakeups for frame in wakeup.stack}


def _on_cpu_frames(row: OnCpuStack) -> Frames:
    # The suffix is flamegraph.pl's for the kernel's functions.
    frames = [f"{frame.label}_[k]" if frame.kernel else frame.label for frame in reversed(row.stack)]
    if row.stack_state in ("truncated", "failed", "lost"):
        frames.insert(0, INCOMPLETE)
    thread = row.server_name.removeprefix("thread/") if row.server_name else row.comm
    return (thread, *frames)


def of_attribution(record: Attribution) -> StackSet:
    """Idle exits by thread and stack."""
    rows = record.wakeups
    return StackSet(
        f"Idle exits caused by {record.target.label}",
        record.target.label,
        "idle exits",
        stacks_of(rows),
        stacks_of(rows, "c0_ms"),
        modules_of(rows),
        record.window_s,
        [_owner_of(row, record) for row in rows],
        [row.states for row in rows],
    )


def _owner_of(row: Wakeup, record: Attribution) -> Owner:
    return _owner(
        {
            "thread.name": row.thread.label,
            "thread.id": row.thread.tid or None,
            "process.pid": row.thread.pid or record.target.pid,
            "process.executable.name": row.thread.process or (None if record.target.system else record.target.label),
            "powerprof.unit": row.thread.unit,
            "powerprof.mechanism": row.mechanism,
            "powerprof.origin": row.origin,
            "powerprof.detail": row.detail,
            "powerprof.waker": row.waker.comm if row.waker else None,
        }
    )


def of_on_cpu_profile(record: OnCpuProfile) -> StackSet:
    """Samples of C0, or page faults, by thread and stack."""
    faults = record.percent_of == "page_faults"
    paths = [(_on_cpu_frames(row), row) for row in record.stacks]
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
            _owner(
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


def of_queries(record: Queries) -> StackSet:
    """Samples by statement and stack. Raises UsageError where none were taken."""
    if not any(statement.stacks for statement in record.statements):
        raise UsageError("this run of queries has no stacks", "powerprof queries --stacks takes them")
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
