# SPDX-License-Identifier: Apache-2.0
"""Write records as files: pages, Markdown, CSV, flame graphs, profiles and timelines."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from powerprof.model.attribution import Attribution
from powerprof.model.runs import RunStore, read_schema
from powerprof.report.document import Extras, View
from powerprof.report.kinds import document_of, kind_of, missing_form
from powerprof.report.stacks import StackSet, TimelineExit, WeightedStack, merge_stacks
from powerprof.system.errors import UsageError

if TYPE_CHECKING:
    from powerprof.attribution.capture import Capture
    from powerprof.report.stacks import Flame


def render_html(record: msgspec.Struct, extras: Extras | None = None) -> str:
    """Return the page of a record. Raises UsageError if it has no report."""
    from powerprof.report.render.html import render_html as draw

    return draw(document_of(record, View(everything=True, extras=extras or Extras())))


def render_flame(graph: Flame, title: str, modules: dict[str, str] | None = None) -> str:
    """Return a page with one flame graph and nothing else."""
    from powerprof.report.html.charts import draw_flame
    from powerprof.report.html.page import render_page

    return render_page("flame.html.j2", None, None, title=title, view=draw_flame(graph, title, modules))


def render_markdown(record: msgspec.Struct) -> str:
    """Return a record as Markdown. Raises UsageError if it has no report."""
    from powerprof.report.render.markdown import render_markdown as draw

    return draw(document_of(record))


def render_csv(record: msgspec.Struct) -> str:
    """Return the main table of a record as CSV. Raises UsageError if it has no report."""
    from powerprof.report.render.csv import render_csv as draw

    return draw(document_of(record, View(everything=True)))


def export(record: msgspec.Struct, file: str, extras: Extras | None = None) -> bytes:
    """Return the content of a file of a record; `file` is its kind, such as `pprof`.

    Raises UsageError if this kind of record has no such file.
    """
    match file:
        case "html":
            return _encode(render_html(record, extras))
        case "md":
            return _encode(render_markdown(record))
        case "csv":
            return _encode(render_csv(record))
        case "perfetto":
            return _export_perfetto(record, extras or Extras())
    stack_set = _read_stacks(record, file)
    match file:
        case "flame":
            from powerprof.report.stacks import build_flame

            graph = build_flame(stack_set.stacks, unit=stack_set.unit, root=stack_set.root)
            return _encode(render_flame(graph, stack_set.title, stack_set.modules))
        case "folded":
            return _encode(fold_stacks(stack_set.stacks))
        case "pprof":
            return _export_pprof(stack_set)
        case _:
            return _export_otlp(record, stack_set)


def _encode(text: str) -> bytes:
    return text.encode("utf-8", "replace")


def _read_stacks(record: msgspec.Struct, file: str) -> StackSet:
    kind = kind_of(record)
    if kind is None or kind.stacks is None:
        raise missing_form(record, file)
    return kind.stacks(record)


def _weights_of(stack_set: StackSet) -> list[tuple[str, str, list[int]]]:
    """Return the name, the unit and the whole numbers of each weight of the stacks."""
    weights = [(stack_set.unit.replace(" ", "_"), "count", [round(value) for _, value in stack_set.stacks])]
    if stack_set.c0_ms is not None:
        weights.append(("c0", "nanoseconds", [round(value * 1e6) for _, value in stack_set.c0_ms]))
    return weights


def _export_pprof(stack_set: StackSet) -> bytes:
    from powerprof.report.pprof import encode_pprof

    weights = _weights_of(stack_set)
    rows = zip(*(values for _, _, values in weights), strict=True)
    samples = [(frames, row) for (frames, _), row in zip(stack_set.stacks, rows, strict=True)]
    types = [(name, unit) for name, unit, _ in weights]
    return encode_pprof(samples, types, duration_ns=round(stack_set.window_s * 1e9))


def _export_otlp(record: msgspec.Struct, stack_set: StackSet) -> bytes:
    from powerprof.report.pprof import OtlpProfile, encode_otlp

    # The owner of a stack is in its attributes. Its outermost frame would repeat it.
    rows = [(frames[1:], owner) for (frames, _), owner in zip(stack_set.stacks, stack_set.owners, strict=True)]
    profiles: list[OtlpProfile] = []
    for name, unit, values in _weights_of(stack_set):
        samples = []
        for (frames, owner), value, states in zip(rows, values, stack_set.states or [{}] * len(rows), strict=True):
            # Split the exits by idle state if the state of each exit is known.
            parts = states if not profiles and states and sum(states.values()) == value else {"": value}
            samples += [
                (frames, {**owner, **({"powerprof.idle_state": state} if state else {})}, count)
                for state, count in parts.items()
            ]
        profiles.append(OtlpProfile(name, unit, samples))
    started_at = getattr(record, "started_at", None)
    resource = {"service.name": getattr(record, "label", None) or stack_set.root}
    host = getattr(record, "host", {}).get("hostname")
    return encode_otlp(
        profiles,
        {**resource, **({"host.name": host} if isinstance(host, str) else {})},
        stack_set.modules,
        time_ns=round(datetime.fromisoformat(started_at).timestamp() * 1e9) if started_at else None,
        duration_ns=round(stack_set.window_s * 1e9),
    )


def _export_perfetto(record: msgspec.Struct, extras: Extras) -> bytes:
    if not isinstance(record, Attribution):
        raise missing_form(record, "perfetto")
    if extras.timeline is None:
        raise UsageError("a .perfetto.json file needs the capture saved with a run", "give the run, not its JSON file")
    return json.dumps(build_trace(extras.timeline), ensure_ascii=True, separators=(",", ":")).encode() + b"\n"


# The capture of an attribution is saved next to its record.


def read_extras(name: str, runs_dir: Path | None) -> Extras:
    """Return the timeline of a saved attribution. Raises UsageError and DataError."""
    from powerprof.attribution import capture

    path = RunStore(runs_dir).find(name)
    capture_file = path.parent / capture.FILE
    # A record that was copied elsewhere may be next to the capture of another one: only a run's folder counts.
    is_of_run = path.name == "run.json" and capture_file.is_file()
    if read_schema(path) != "powerprof.attribution/1" or not is_of_run:
        return Extras()
    return extras_of_capture(capture.load(capture_file))


def extras_of_capture(capture: Capture | None) -> Extras:
    """Return the extras that the page of an attribution takes from its capture."""
    from powerprof.report.stacks import build_timeline

    return Extras(timeline=build_timeline(capture) if capture is not None else None)


# Folded stacks are the input of flamegraph.pl, inferno, speedscope and other viewers. The format has no escapes: `;`
# and control characters in a name are written as %3B and so on.

_UNSAFE = re.compile(r"[;\x00-\x1f\x7f\x85\u2028\u2029]")


def fold_stacks(stacks: Iterable[WeightedStack]) -> str:
    """Return one line per distinct stack: frames from the outermost joined by `;`, a blank, the weight.

    Weights have at most six decimals.
    """
    lines = []
    for frames, value in merge_stacks(stacks):
        weight = f"{value:.6f}".rstrip("0").rstrip(".")
        lines.append(f"{';'.join(map(_escape_frame, frames)) or 'unknown'} {weight}\n")
    return "".join(lines)


def _escape_frame(name: str) -> str:
    return _UNSAFE.sub(lambda match: "".join(f"%{byte:02X}" for byte in match[0].encode()), name)


# A timeline in Chrome's trace event format, which ui.perfetto.dev and chrome://tracing open.
#
# Process 1 has a track per CPU: idle periods by state, and the threads that ran between them. Process 2 has a track
# per cause: a slice from the moment at which it woke a CPU until that CPU idled again, with an arrow to the CPU.
# Slices of one track must not overlap, so a cause that woke two CPUs at once has a second track.

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
