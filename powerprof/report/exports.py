# SPDX-License-Identifier: Apache-2.0
"""Every way in which a record leaves powerprof as a file, by name."""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from powerprof import __version__
from powerprof.model.attribution import Attribution
from powerprof.model.runs import RunStore, read_schema
from powerprof.report.html.page import Extras, extras_of_two
from powerprof.report.kinds import kind_of, missing_form, name_of
from powerprof.report.labels import answer_and_context
from powerprof.report.stacks import StackSet, TimelineExit, WeightedStack, merged
from powerprof.system.errors import UsageError

if TYPE_CHECKING:
    from powerprof.attribution.capture import Capture
    from powerprof.report.stacks import Flame


def render_html(record: msgspec.Struct, extras: Extras | None = None) -> str:
    """Return the page of a record. Raises UsageError if this kind of record has none."""
    kind = kind_of(record)
    if kind is None or kind.html is None:
        raise missing_form(record, "HTML report")
    return kind.html(record, extras or Extras())


def render_flame(graph: Flame, title: str, modules: dict[str, str] | None = None) -> str:
    """Return a page with one flame graph and nothing else."""
    from powerprof.report.html.flames import flame_view
    from powerprof.report.html.page import page

    return page("flame.html.j2", None, None, title=title, view=flame_view(graph, title, modules))


def render_markdown(record: msgspec.Struct) -> str:
    """Return a record as Markdown. Raises UsageError if this kind of record has none."""
    from powerprof.report.markdown import code, plain

    kind = kind_of(record)
    if kind is None or kind.markdown is None:
        raise missing_form(record, "Markdown")
    answer, context = (plain(sentence) for sentence in answer_and_context(kind.lines, record))
    source = f", run {code(name, 60)}" if (name := getattr(record, "id", None)) else ""
    return "\n".join([f"**{answer}**", *kind.markdown(record, context), "", f"powerprof {__version__}{source}", ""])


def render_csv(record: msgspec.Struct) -> str:
    """Return the main table of a record as CSV. Raises UsageError if this kind of record has none."""
    from powerprof.report.csv_file import written

    kind = kind_of(record)
    if kind is None or kind.csv is None:
        raise missing_form(record, "CSV")
    return written(kind.csv(record))


def _html(record: msgspec.Struct, extras: Extras) -> bytes:
    return render_html(record, extras).encode("utf-8", "replace")


def _markdown(record: msgspec.Struct, extras: Extras) -> bytes:
    return render_markdown(record).encode("utf-8", "replace")


def _csv(record: msgspec.Struct, extras: Extras) -> bytes:
    return render_csv(record).encode("utf-8", "replace")


def _csv_bom(record: msgspec.Struct, extras: Extras) -> bytes:
    # Excel takes a file without this mark for the local code page.
    return codecs.BOM_UTF8 + _csv(record, extras)


def _stacks(record: msgspec.Struct, name: str) -> StackSet:
    kind = kind_of(record)
    if kind is None or kind.stacks is None:
        have = "powerprof attribute, profile and queries save them"
        raise UsageError(f"--{name} needs stacks, and {name_of(record)} has none", have)
    return kind.stacks(record)


def _flame(record: msgspec.Struct, extras: Extras) -> bytes:
    from powerprof.report.stacks import flame

    stack_set = _stacks(record, "flame")
    graph = flame(stack_set.stacks, unit=stack_set.unit, root=stack_set.root)
    return render_flame(graph, stack_set.title, stack_set.modules).encode("utf-8", "replace")


def _folded(record: msgspec.Struct, extras: Extras) -> bytes:

    return folded(_stacks(record, "folded").stacks).encode("utf-8", "replace")


def _pprof(record: msgspec.Struct, extras: Extras) -> bytes:
    from powerprof.report.pprof import encode_pprof

    stack_set = _stacks(record, "pprof")
    types, columns = _columns(stack_set)
    values = zip(*columns, strict=True)
    samples = [(frames, row) for (frames, _), row in zip(stack_set.stacks, values, strict=True)]
    return encode_pprof(samples, types, duration_ns=round(stack_set.window_s * 1e9))


def _columns(stack_set: StackSet) -> tuple[list[tuple[str, str]], list[list[int]]]:
    """What each weight is and its unit; the weights of all stacks, in whole numbers."""
    types = [(stack_set.unit.replace(" ", "_"), "count")]
    columns = [[round(value) for _, value in stack_set.stacks]]
    if stack_set.c0_ms is not None:
        types.append(("c0", "nanoseconds"))
        columns.append([round(value * 1e6) for _, value in stack_set.c0_ms])
    return types, columns


def _otlp(record: msgspec.Struct, extras: Extras) -> bytes:
    from powerprof.report.pprof import OtlpProfile, encode_otlp

    stack_set = _stacks(record, "otlp")
    # Who owns a stack is in its attributes, not in its outermost frame.
    rows = [(frames[1:], owner) for (frames, _), owner in zip(stack_set.stacks, stack_set.owners, strict=True)]
    profiles: list[OtlpProfile] = []
    for (kind, unit), values in zip(*_columns(stack_set), strict=True):
        samples = []
        for (frames, owner), value, states in zip(rows, values, stack_set.states or [{}] * len(rows), strict=True):
            # Exits by idle state where the states are those of all of them.
            parts = states if not profiles and states and sum(states.values()) == value else {"": value}
            samples += [
                (frames, {**owner, **({"powerprof.idle_state": state} if state else {})}, count)
                for state, count in parts.items()
            ]
        profiles.append(OtlpProfile(kind, unit, samples))
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


def _speedscope(record: msgspec.Struct, extras: Extras) -> bytes:

    stack_set = _stacks(record, "speedscope")
    profiles = [Profile(stack_set.unit, "none", stack_set.stacks)]
    if stack_set.c0_ms is not None:
        profiles.append(Profile("C0", "milliseconds", stack_set.c0_ms))
    return _json(speedscope(profiles, stack_set.title))


def _perfetto(record: msgspec.Struct, extras: Extras) -> bytes:

    if not isinstance(record, Attribution):
        raise UsageError("--perfetto needs an attribution", "powerprof attribute makes one")
    if not extras.timeline:
        raise UsageError("--perfetto needs the capture that is saved with a run", "name the run, not its JSON file")
    return _json(perfetto(extras.timeline))


def _json(document: object) -> bytes:
    return json.dumps(document, ensure_ascii=True, separators=(",", ":")).encode() + b"\n"


EXPORTS: dict[str, Callable[[msgspec.Struct, Extras], bytes]] = {
    "html": _html,
    "markdown": _markdown,
    "csv": _csv,
    "csv-bom": _csv_bom,
    "flame": _flame,
    "folded": _folded,
    "pprof": _pprof,
    "otlp": _otlp,
    "speedscope": _speedscope,
    "perfetto": _perfetto,
}


def export(record: msgspec.Struct, kind: str, extras: Extras | None = None) -> bytes:
    """The record as a file of a kind in EXPORTS. Raises UsageError where this record has no such form."""
    return EXPORTS[kind](record, extras or Extras())


# What is saved beside a record and belongs on its page: the capture of an attribution, the stacks of a comparison.

_ATTRIBUTION = "powerprof.attribution/1"
_COMPARISON = "powerprof.comparison/1"
_SAME = {"mysqld": "mariadbd"}  # two names of one program


def extras_of(name: str, runs_dir: Path | None, flames: tuple[str | None, str | None] = (None, None)) -> Extras:
    """The timeline of a saved attribution; for a comparison the stacks of two attributions, per second of each.

    Raises UsageError and DataError.
    """
    from powerprof.attribution import capture
    from powerprof.report.stacks import timeline_of

    path = RunStore(runs_dir).find(name)
    raw = path.parent / capture.FILE
    schema = read_schema(path)
    if any(flames) and schema != _COMPARISON:
        raise UsageError("--flame-a and --flame-b belong to a comparison", f"{name} is none")
    if schema == _ATTRIBUTION:
        # A record that was copied elsewhere may lie beside the capture of another one: only a run's folder counts.
        return Extras(timeline=timeline_of(capture.load(raw)) if path.name == "run.json" and raw.is_file() else ())
    a, b = (_attribution(flame, runs_dir) if flame else None for flame in flames)
    if a is not None and b is not None:
        programs = [_SAME.get(name, name) for name in (_program(a), _program(b))]
        if programs[0] != programs[1]:
            raise UsageError(
                f"{flames[0]} is of {a.target.label}, {flames[1]} of {b.target.label}: a difference would mean nothing",
                "name two attributions of one program",
            )
    return extras_of_two(a, b)


def _program(record: Attribution) -> str:
    return (record.target.executable or record.target.label).rpartition("/")[2]


def extras_of_capture(taken: Capture | None) -> Extras:
    """What a capture at hand adds to the page of its attribution."""
    from powerprof.report.stacks import timeline_of

    return Extras(timeline=timeline_of(taken) if taken is not None else ())


def _attribution(name: str, runs_dir: Path | None) -> Attribution:
    from powerprof.model.attribution import Attribution
    from powerprof.model.runs import decode_record

    path = RunStore(runs_dir).find(name)
    if read_schema(path) != _ATTRIBUTION:
        raise UsageError(f"{name} is not an attribution", "powerprof attribute makes one")
    return decode_record(path, Attribution)


# Folded stacks: a line a stack, frames from the outermost joined by `;`, a blank and the weight.
#
# It is the input of flamegraph.pl, inferno and many viewers. The format has no escapes of its own: `;` and control
# characters in a name are written as %3B and so on.

_UNSAFE = re.compile(r"[;\x00-\x1f\x7f\x85\u2028\u2029]")


def _escaped(name: str) -> str:
    return _UNSAFE.sub(lambda match: "".join(f"%{byte:02X}" for byte in match[0].encode()), name)


def folded(stacks: Iterable[WeightedStack]) -> str:
    """The text; equal stacks are one line. Weights keep at most six decimals."""
    lines = []
    for frames, value in merged(stacks):
        weight = f"{value:.6f}".rstrip("0").rstrip(".")
        lines.append(f"{';'.join(map(_escaped, frames)) or 'unknown'} {weight}\n")
    return "".join(lines)


# A timeline in Chrome's trace event format, which ui.perfetto.dev and chrome://tracing open.
#
# Process 1 has a track per CPU: idle periods by state, and between them what ran. Process 2 has a track per cause:
# a slice where it woke a CPU, as long as the CPU then ran, with an arrow to that CPU. Slices of one track must not
# overlap, so a cause that woke two CPUs at once has a second track. Times are µs after the first event.

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


# The JSON of speedscope (https://www.speedscope.app/file-format-schema.json): one sampled profile per weight.

Unit = Literal["none", "nanoseconds", "microseconds", "milliseconds", "seconds", "bytes"]


@dataclass(frozen=True)
class Profile:
    """Weighted stacks under a name, in one of the format's units."""

    name: str
    unit: Unit
    stacks: Iterable[WeightedStack]


def speedscope(profiles: Iterable[Profile], name: str) -> dict[str, Any]:
    """The document. Frames are shared between the profiles."""
    frames: dict[str, int] = {}
    documents = []
    for profile in profiles:
        stacks = merged(profile.stacks)
        weights = [value for _, value in stacks]
        documents.append(
            {
                "type": "sampled",
                "name": profile.name,
                "unit": profile.unit,
                "startValue": 0,
                "endValue": sum(weights),
                "samples": [[frames.setdefault(frame, len(frames)) for frame in stack] for stack, _ in stacks],
                "weights": weights,
            }
        )
    return {
        "$schema": "https://www.speedscope.app/file-format-schema.json",
        "exporter": f"powerprof@{__version__}",
        "name": name,
        "activeProfileIndex": 0,
        "shared": {"frames": [{"name": frame} for frame in frames]},
        "profiles": documents,
    }
