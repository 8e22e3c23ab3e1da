# SPDX-License-Identifier: Apache-2.0
"""Write records as files: pages, Markdown, CSV, flame graphs, profiles and timelines."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from powerprof.model.attribution import Attribution
from powerprof.model.runs import RunStore, read_schema
from powerprof.report.document import ALL_ROWS, Extras, View
from powerprof.report.kinds import document_of, kind_of, missing_form
from powerprof.report.perfetto import build_trace
from powerprof.report.stacks import StackSet, fold_stacks
from powerprof.system.errors import UsageError

if TYPE_CHECKING:
    from powerprof.attribution.capture import Capture
    from powerprof.report.flame import Flame


def render_html(record: msgspec.Struct, extras: Extras | None = None) -> str:
    """Return the page of a record. Raises UsageError if it has no report."""
    from powerprof.report.render.html import render_html as draw

    return draw(document_of(record, View(everything=True, extras=extras or Extras())))


def render_flame(graph: Flame, title: str, modules: dict[str, str] | None = None) -> str:
    """Return a page with one flame graph and nothing else."""
    from powerprof.report.html.flames import draw_flame
    from powerprof.report.html.page import render_page

    return render_page("flame.html.j2", None, None, title=title, view=draw_flame(graph, title, modules))


def render_markdown(record: msgspec.Struct) -> str:
    """Return a record as Markdown. Raises UsageError if it has no report."""
    from powerprof.report.render.markdown import render_markdown as draw

    return draw(document_of(record))


def render_csv(record: msgspec.Struct) -> str:
    """Return the tables of a record as CSV, the main one first. Raises UsageError if it has no report."""
    from powerprof.report.render.csv import render_csv as draw

    return draw(document_of(record, View(everything=True, top=ALL_ROWS)))


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
            from powerprof.report.flame import build_flame

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
    from powerprof.report.otlp import OtlpProfile, encode_otlp

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
    from powerprof.report.timeline import build_timeline

    return Extras(timeline=build_timeline(capture) if capture is not None else None)
