# SPDX-License-Identifier: Apache-2.0
"""A timeline in Chrome's trace event format, which ui.perfetto.dev and chrome://tracing open.

Process 1 has a track per CPU: idle periods by state, and the threads that ran between them. Process 2 has a track
per cause: a slice from the moment at which it woke a CPU until that CPU idled again, with an arrow to the CPU.
Slices of one track must not overlap, so a cause that woke two CPUs at once has a second track.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from powerprof.report.timeline import TimelineExit

_CPUS, _CAUSES = 1, 2


class _CauseTracks:
    """The tracks of the causes, numbered from 1 in `names`."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self._ends: dict[str, list[tuple[int, int]]] = {}

    def choose(self, cause: str, start: int, end: int) -> int:
        """Return the first track of a cause that is free at `start`, and occupy it until `end`."""
        tracks = self._ends.setdefault(cause, [])
        for index, (busy_until, tid) in enumerate(tracks):
            if busy_until <= start:
                tracks[index] = (end, tid)
                return tid
        self.names.append(cause)
        tracks.append((end, len(self.names)))
        return len(self.names)


def build_trace(exits: Iterable[TimelineExit]) -> dict[str, Any]:
    """Return the trace document of a timeline; times are µs after the first event."""
    ordered = sorted(exits, key=lambda period: (period.exit_ns, period.cpu))
    origin = min((period.enter_ns for period in ordered), default=0)
    events: list[dict[str, Any]] = []

    def us(time_ns: int) -> float:
        return (time_ns - origin) / 1000

    def add_slice(pid: int, tid: int, name: str, start: int, end: int, **args: Any) -> None:
        place = {"pid": pid, "tid": tid, "name": name}
        events.append({"ph": "X", **place, "ts": us(start), "dur": (end - start) / 1000, "args": args})

    tracks = _CauseTracks()
    for number, period in enumerate(ordered, 1):
        cause = f"{period.mechanism.replace('_', '-')}: {period.cause}"
        end = period.exit_ns if period.next_ns is None else period.next_ns
        on_cpu = {"pid": _CPUS, "tid": period.cpu}
        add_slice(_CPUS, period.cpu, period.state, period.enter_ns, period.exit_ns, ended_by=cause)
        tid = tracks.choose(cause, period.exit_ns, end)
        details = {"mechanism": period.mechanism, "cause": period.cause, "ended_state": period.state}
        add_slice(_CAUSES, tid, f"woke CPU {period.cpu}", period.exit_ns, end, **details)
        events.append({"ph": "i", "s": "t", **on_cpu, "name": f"wake-up: {cause}", "ts": us(period.exit_ns)})
        if period.next_ns is not None:
            add_slice(_CPUS, period.cpu, period.thread or "running", period.exit_ns, end, woken_by=cause)
            arrow = {"name": "wakes", "cat": "wake-up", "id": number, "ts": us(period.exit_ns)}
            events.append({"ph": "s", "pid": _CAUSES, "tid": tid, **arrow})
            events.append({"ph": "f", "bp": "e", **on_cpu, **arrow})

    def label(kind: str, pid: int, tid: int, name: str) -> dict[str, Any]:
        return {"ph": "M", "name": kind, "pid": pid, "tid": tid, "args": {"name": name}}

    labels = [label("process_name", _CPUS, 0, "CPUs"), label("process_name", _CAUSES, 0, "Causes of wake-ups")]
    labels += [label("thread_name", _CPUS, cpu, f"CPU {cpu}") for cpu in sorted({period.cpu for period in ordered})]
    labels += [label("thread_name", _CAUSES, tid, name) for tid, name in enumerate(tracks.names, 1)]
    return {"displayTimeUnit": "ms", "traceEvents": labels + events}
