# SPDX-License-Identifier: Apache-2.0
"""A timeline in Chrome's trace event format, which ui.perfetto.dev and chrome://tracing open.

Process 1 has a track per CPU: idle periods by state, and between them what ran. Process 2 has a track per cause:
a slice where it woke a CPU, as long as the CPU then ran, with an arrow to that CPU. Slices of one track must not
overlap, so a cause that woke two CPUs at once has a second track. Times are µs after the first event.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from powerprof.report.stacks.samples import TimelineExit

_CPUS, _CAUSES = 1, 2


def _name(kind: str, pid: int, tid: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": kind, "pid": pid, "tid": tid, "args": {"name": name}}


class _CauseTracks:
    """Tracks of the causes: the first of a cause that is free at a time."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self._ends: dict[str, list[tuple[int, int]]] = {}

    def take(self, cause: str, start: int, end: int) -> int:
        lanes = self._ends.setdefault(cause, [])
        for index, (busy_until, tid) in enumerate(lanes):
            if busy_until <= start:
                lanes[index] = (end, tid)
                return tid
        self.names.append(cause)
        lanes.append((end, len(self.names)))
        return len(self.names)


def perfetto(exits: Iterable[TimelineExit]) -> dict[str, Any]:
    """The document, for `json.dumps`."""
    ordered = sorted(exits, key=lambda period: (period.exit_ns, period.cpu))
    origin = min((period.enter_ns for period in ordered), default=0)

    def us(time_ns: int) -> float:
        return (time_ns - origin) / 1000

    def slice_(pid: int, tid: int, name: str, start: int, end: int, **args: Any) -> dict[str, Any]:
        return {
            "ph": "X",
            "pid": pid,
            "tid": tid,
            "name": name,
            "ts": us(start),
            "dur": (end - start) / 1000,
            "args": args,
        }

    lanes, events = _CauseTracks(), list[dict[str, Any]]()
    for number, period in enumerate(ordered, 1):
        blame = f"{period.mechanism.replace('_', '-')}: {period.cause}"
        end = period.exit_ns if period.next_ns is None else period.next_ns
        events.append(slice_(_CPUS, period.cpu, period.state, period.enter_ns, period.exit_ns, ended_by=blame))
        tid = lanes.take(blame, period.exit_ns, end)
        events.append(
            slice_(
                _CAUSES,
                tid,
                f"woke CPU {period.cpu}",
                period.exit_ns,
                end,
                mechanism=period.mechanism,
                cause=period.cause,
                ended_state=period.state,
            )
        )
        wake = {
            "ph": "i",
            "s": "t",
            "pid": _CPUS,
            "tid": period.cpu,
            "name": f"wake-up: {blame}",
            "ts": us(period.exit_ns),
        }
        events.append(wake)
        if period.next_ns is not None:
            events.append(slice_(_CPUS, period.cpu, period.thread or "running", period.exit_ns, end, woken_by=blame))
            arrow = {"name": "wakes", "cat": "wake-up", "id": number, "ts": us(period.exit_ns)}
            events.append({"ph": "s", "pid": _CAUSES, "tid": tid, **arrow})
            events.append({"ph": "f", "bp": "e", "pid": _CPUS, "tid": period.cpu, **arrow})
    named = [_name("process_name", _CPUS, 0, "CPUs"), _name("process_name", _CAUSES, 0, "What woke them")]
    named += [_name("thread_name", _CPUS, cpu, f"CPU {cpu}") for cpu in sorted({period.cpu for period in ordered})]
    named += [_name("thread_name", _CAUSES, tid, name) for tid, name in enumerate(lanes.names, 1)]
    return {"displayTimeUnit": "ms", "traceEvents": named + events}
