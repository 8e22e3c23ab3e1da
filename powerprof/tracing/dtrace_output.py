# SPDX-License-Identifier: Apache-2.0
"""Parse the output of the shipped D scripts."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import msgspec

from powerprof.model.records import Ended
from powerprof.stacks.demangle import demangle
from powerprof.system.errors import DataError
from powerprof.system.foreign_text import printable
from powerprof.tracing.captures import FunctionCounts, FunctionTrace
from powerprof.tracing.dtrace import DtraceRun

_SHOWN_LOSSES = 5
# `libc.so.6`__nanosleep+0x7`, `libc.so.6+0x1234`, `0x7f00…`
_FRAME = re.compile(r"(?:(?P<module>[^`]*)`)?(?P<name>.*?)(?:\+0x(?P<offset>[0-9a-f]{1,16}))?")


class DtraceFrame(msgspec.Struct, frozen=True):
    """A frame of ustack()."""

    function: str | None
    module: str | None
    offset: int | None
    text: str


class DtraceWakeup(msgspec.Struct, frozen=True):
    """The number of times one thread woke another from one call path, the waker's, innermost first."""

    sleeper_tid: int
    waker_pid: int
    waker_comm: str
    waker_tid: int
    count: int
    stack: list[DtraceFrame]


class DtraceLatency(msgspec.Struct, frozen=True, kw_only=True):
    """A thread's sleeps and its waits for a CPU once woken (None if DTrace counted none)."""

    tid: int
    sleeps_count: int
    sleep_mean_ms: float | None
    sleep_max_ms: float | None
    waits_count: int
    wait_mean_ms: float | None
    wait_max_ms: float | None


class DtraceWindow(msgspec.Struct, frozen=True, kw_only=True):
    """A window of one process. `tool_cpu_s`: see `DtraceRun`."""

    pid: int
    window_s: float
    lost_count: int
    notes: list[str]
    tool_cpu_s: float
    ended: Ended | None


class WakersTrace(DtraceWindow, frozen=True, kw_only=True):
    """Wakings of a process's threads, most frequent first."""

    wakeups: list[DtraceWakeup]


class SleepsTrace(DtraceWindow, frozen=True, kw_only=True):
    """Sleeps of a process by thread, most frequent first."""

    threads: list[DtraceLatency]


def _read_lines(run: DtraceRun) -> tuple[list[str], float]:
    """Return the lines between the first, `begin TIME`, and the last, `end TIME` (ns), and the window in seconds."""
    lines = run.stdout.split("\n")
    while lines and not lines[-1].strip():
        lines.pop()
    edges = [line.split("\t") for line in (lines[0], lines[-1])] if len(lines) > 1 else []
    if [edge[0] for edge in edges] != ["begin", "end"] or any(len(edge) != 2 for edge in edges):
        raise DataError("dtrace output", "it ends before its end", len(lines) or None)
    begin_ns, end_ns = _parse_number(edges[0][1], 1), _parse_number(edges[1][1], len(lines))
    if end_ns <= begin_ns:
        raise DataError("dtrace output", "its window ends before it begins", len(lines))
    return lines[1:-1], (end_ns - begin_ns) / 1e9


def _list_notes(run: DtraceRun) -> list[str]:
    return [*run.notes, *(f"DTrace lost data: {loss}" for loss in run.losses[:_SHOWN_LOSSES])]


def _describe_window(run: DtraceRun, window_s: float) -> dict[str, Any]:
    return {
        "pid": run.pid,
        "window_s": window_s,
        "lost_count": run.lost_count,
        "notes": _list_notes(run),
        "tool_cpu_s": run.tool_cpu_s,
        "ended": run.ended,
    }


def _parse_number(text: str, line: int) -> int:
    if not re.fullmatch(r"-?\d{1,19}", text.strip(), re.ASCII):
        raise DataError("dtrace output", f"not a number: {text[:40]!r}", line)
    return int(text.strip())


def parse_functions(run: DtraceRun, pattern: str, refused: Sequence[tuple[str, str]] = ()) -> FunctionTrace:
    """Return the function profile as a trace of the uprobe backend, without costs and abandoned calls.

    A negative sum (a call that began before its thread's clock was known) is unknown, not zero. Raises DataError for
    damaged output.
    """
    sums: dict[tuple[str, str], dict[str, int]] = {}
    mismatches = 0
    lines, window_s = _read_lines(run)
    for number, line in enumerate(lines, 2):
        if not line.strip():
            continue
        words = line.split("\t")
        if words[0] == "mismatch" and len(words) == 3:
            mismatches += _parse_number(words[2], number)
        elif words[0] in ("calls", "returns", "self_wall_ns", "self_cpu_ns") and len(words) == 4:
            key = printable(words[1]), printable(words[2])
            sums.setdefault(key, {})[words[0]] = _parse_number(words[3], number)
        else:
            raise DataError("dtrace output", f"not a line of the function profile: {line[:60]!r}", number)
    functions = [
        FunctionCounts(
            name=demangle(name),
            module=module,
            vaddr=0,
            calls=row.get("calls", 0),
            returns=row.get("returns", 0),
            abandoned=None,
            unfinished=max(row.get("calls", 0) - row.get("returns", 0), 0),
            wall_ns=None,
            cpu_ns=None,
            self_wall_ns=_find_sum(row, "self_wall_ns"),
            self_cpu_ns=_find_sum(row, "self_cpu_ns"),
            children=0,
            stepped_children=0,
            stepped=False,
        )
        for (module, name), row in sorted(sums.items())
    ]
    return FunctionTrace(
        pattern=pattern,
        pids=[run.pid],
        window_s=window_s,
        functions=functions,
        hits_count=sum(function.calls for function in functions),
        cost=None,
        stepped_cost=None,
        process_cpu_s=None,
        unmatched_count=mismatches,
        too_deep_count=0,
        lost_count=run.lost_count,
        refused=list(refused),
        notes=_list_notes(run),
        method="dtrace",
        tool_cpu_s=run.tool_cpu_s,
        ended=run.ended,
    )


def _find_sum(fields: dict[str, int], name: str) -> int | None:
    """Return a sum of times, or None if it is missing or negative."""
    value = fields.get(name)
    return value if value is not None and value >= 0 else None


def parse_wakeups(run: DtraceRun) -> WakersTrace:
    """Return the wakings by call path, most frequent first. Raises DataError for damaged output."""
    lines, window_s = _read_lines(run)
    wakeups: list[DtraceWakeup] = []
    stack: list[DtraceFrame] | None = None
    head: tuple[int, int, str, int, int] | None = None
    for number, line in enumerate(lines, 2):
        text = line.strip()
        if not text:
            continue
        if head is None:
            words = line.split("\t")
            if words[0] != "wakeup" or len(words) != 6:
                raise DataError("dtrace output", f"not a line of the wake-ups: {line[:60]!r}", number)
            sleeper, pid, waker, count = (_parse_number(words[at], number) for at in (1, 2, 4, 5))
            head = sleeper, pid, printable(words[3]), waker, count
            stack = []
        elif text == "end of stack":
            wakeups.append(DtraceWakeup(*head, stack or []))
            head = stack = None
        elif stack is not None:
            stack.append(parse_frame(printable(text)))
    if head is not None:
        raise DataError("dtrace output", "its last stack is cut")
    return WakersTrace(
        wakeups=sorted(wakeups, key=lambda wakeup: (-wakeup.count, wakeup.sleeper_tid, wakeup.waker_tid)),
        **_describe_window(run, window_s),
    )


def parse_frame(text: str) -> DtraceFrame:
    """Parse a line of ustack(). C++ names may contain every character except the back quote that ends the module."""
    match = _FRAME.fullmatch(text)
    if match is None or text.startswith("0x"):
        return DtraceFrame(None, None, None, text)
    offset = int(match["offset"], 16) if match["offset"] else None
    if match["module"] is None:
        # Without a symbol: module+offset.
        return DtraceFrame(None, match["name"] or None, offset, text)
    name = match["name"]
    return DtraceFrame(None if name.startswith("0x") else name or None, match["module"] or None, offset, text)


def parse_latency(run: DtraceRun) -> SleepsTrace:
    """Return sleeps and waits by thread, most sleeps first. Raises DataError for damaged output."""
    lines, window_s = _read_lines(run)
    sums: dict[int, dict[str, tuple[int, int, int]]] = {}
    for number, line in enumerate(lines, 2):
        if not line.strip():
            continue
        words = line.split("\t")
        if words[0] not in ("sleep", "latency") or len(words) != 5:
            raise DataError("dtrace output", f"not a line of the latencies: {line[:60]!r}", number)
        tid, count, total, longest = (_parse_number(word, number) for word in words[1:])
        sums.setdefault(tid, {})[words[0]] = (count, total, longest)
    rows = []
    for tid, kinds in sums.items():
        sleeps, waits = kinds.get("sleep", (0, 0, 0)), kinds.get("latency", (0, 0, 0))
        rows.append(
            DtraceLatency(
                tid=tid,
                sleeps_count=sleeps[0],
                sleep_mean_ms=_compute_mean_ms(sleeps),
                sleep_max_ms=_compute_max_ms(sleeps),
                waits_count=waits[0],
                wait_mean_ms=_compute_mean_ms(waits),
                wait_max_ms=_compute_max_ms(waits),
            )
        )
    return SleepsTrace(
        threads=sorted(rows, key=lambda thread: (-thread.sleeps_count, thread.tid)), **_describe_window(run, window_s)
    )


def _compute_mean_ms(row: tuple[int, int, int]) -> float | None:
    return row[1] / row[0] / 1e6 if row[0] > 0 else None


def _compute_max_ms(row: tuple[int, int, int]) -> float | None:
    return row[2] / 1e6 if row[0] > 0 else None
