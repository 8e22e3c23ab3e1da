"""Every way in which a record leaves powerprof as a file, by name."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence

import msgspec

from powerprof.attribution.records import Attribution
from powerprof.errors import UsageError
from powerprof.report.html.extras import Extras
from powerprof.report.samples import TimelineExit
from powerprof.report.stacks import frames_of, modules_of, stacks_of


def _html(record: msgspec.Struct, extras: Extras) -> bytes:
    from powerprof.report.html import render_html

    return render_html(record, extras=extras).encode("utf-8", "replace")


def _markdown(record: msgspec.Struct, extras: Extras) -> bytes:
    from powerprof.report.markdown import to_markdown

    return to_markdown(record).encode("utf-8", "replace")


def _csv(record: msgspec.Struct, extras: Extras) -> bytes:
    from powerprof.report.csvfile import to_csv

    # Excel takes a file without this mark for the local code page.
    return to_csv(record).encode("utf-8-sig", "replace")


def _attribution(record: msgspec.Struct, name: str) -> Attribution:
    if not isinstance(record, Attribution):
        raise UsageError(f"--{name} needs the stacks of an attribution", "powerprof attribute makes one")
    return record


def _flame(record: msgspec.Struct, extras: Extras) -> bytes:
    from powerprof.report.flamegraph import flame
    from powerprof.report.html import render_flame

    found = _attribution(record, "flame")
    graph = flame(stacks_of(found.wakeups), unit="idle exits", root=found.target.label)
    title = f"Idle exits caused by {found.target.label}"
    return render_flame(graph, title, modules_of(found.wakeups)).encode("utf-8", "replace")


def _folded(record: msgspec.Struct, extras: Extras) -> bytes:
    from powerprof.report.folded import folded

    return folded(stacks_of(_attribution(record, "folded").wakeups)).encode("utf-8", "replace")


def _pprof(record: msgspec.Struct, extras: Extras) -> bytes:
    from powerprof.report.pprof import encode_pprof

    found = _attribution(record, "pprof")
    samples = [(frames_of(row), (row.count, round(row.c0_ms * 1e6))) for row in found.wakeups]
    types = (("idle_exits", "count"), ("c0", "nanoseconds"))
    return encode_pprof(samples, types, duration_ns=round(found.window_s * 1e9))


def _speedscope(record: msgspec.Struct, extras: Extras) -> bytes:
    from powerprof.report.speedscope import Profile, speedscope

    rows = _attribution(record, "speedscope").wakeups
    profiles = [Profile("idle exits", "none", stacks_of(rows)), Profile("C0", "milliseconds", stacks_of(rows, "c0_ms"))]
    return _json(speedscope(profiles, record.id or "powerprof attribute"))  # type: ignore[attr-defined]


def _perfetto(record: msgspec.Struct, extras: Extras) -> bytes:
    from powerprof.report.perfetto import perfetto

    _attribution(record, "perfetto")
    _need_timeline(extras.timeline)
    return _json(perfetto(extras.timeline))


def _need_timeline(timeline: Sequence[TimelineExit]) -> None:
    if not timeline:
        raise UsageError("--perfetto needs the capture that is saved with a run", "name the run, not its JSON file")


def _json(document: object) -> bytes:
    return json.dumps(document, ensure_ascii=True, separators=(",", ":")).encode() + b"\n"


EXPORTS: dict[str, Callable[[msgspec.Struct, Extras], bytes]] = {
    "html": _html, "markdown": _markdown, "csv": _csv, "flame": _flame, "folded": _folded, "pprof": _pprof,
    "speedscope": _speedscope, "perfetto": _perfetto,
}  # fmt: skip


def export(record: msgspec.Struct, kind: str, extras: Extras | None = None) -> bytes:
    """The record as a file of a kind in EXPORTS. Raises UsageError where this record has no such form."""
    return EXPORTS[kind](record, extras or Extras())
