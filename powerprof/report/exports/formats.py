# SPDX-License-Identifier: Apache-2.0
"""Every way in which a record leaves powerprof as a file, by name."""

from __future__ import annotations

import codecs
import json
from collections.abc import Callable
from datetime import datetime

import msgspec

from powerprof.attribution.records import Attribution
from powerprof.errors import UsageError
from powerprof.report.documents.kinds import called, kind_of
from powerprof.report.html.extras import Extras
from powerprof.report.stacks.weighted import StackSet


def _html(record: msgspec.Struct, extras: Extras) -> bytes:
    from powerprof.report.html import render_html

    return render_html(record, extras=extras).encode("utf-8", "replace")


def _markdown(record: msgspec.Struct, extras: Extras) -> bytes:
    from powerprof.report.forms.markdown import to_markdown

    return to_markdown(record).encode("utf-8", "replace")


def _csv(record: msgspec.Struct, extras: Extras) -> bytes:
    from powerprof.report.forms.csvfile import to_csv

    return to_csv(record).encode("utf-8", "replace")


def _csv_bom(record: msgspec.Struct, extras: Extras) -> bytes:
    # Excel takes a file without this mark for the local code page.
    return codecs.BOM_UTF8 + _csv(record, extras)


def _stacks(record: msgspec.Struct, name: str) -> StackSet:
    kind = kind_of(record)
    if kind is None or not kind.stacks:
        have = "powerprof attribute, profile and queries save them"
        raise UsageError(f"--{name} needs stacks, and {called(record)} has none", have)
    stack_set: StackSet = kind.load("stacks")(record)
    return stack_set


def _flame(record: msgspec.Struct, extras: Extras) -> bytes:
    from powerprof.report.html import render_flame
    from powerprof.report.stacks.flamegraph import flame

    stack_set = _stacks(record, "flame")
    graph = flame(stack_set.stacks, unit=stack_set.unit, root=stack_set.root)
    return render_flame(graph, stack_set.title, stack_set.modules).encode("utf-8", "replace")


def _folded(record: msgspec.Struct, extras: Extras) -> bytes:
    from powerprof.report.exports.folded import folded

    return folded(_stacks(record, "folded").stacks).encode("utf-8", "replace")


def _pprof(record: msgspec.Struct, extras: Extras) -> bytes:
    from powerprof.report.exports.pprof import encode_pprof

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
    from powerprof.report.exports.otlp import OtlpProfile, encode_otlp

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
    from powerprof.report.exports.speedscope import Profile, speedscope

    stack_set = _stacks(record, "speedscope")
    profiles = [Profile(stack_set.unit, "none", stack_set.stacks)]
    if stack_set.c0_ms is not None:
        profiles.append(Profile("C0", "milliseconds", stack_set.c0_ms))
    return _json(speedscope(profiles, stack_set.title))


def _perfetto(record: msgspec.Struct, extras: Extras) -> bytes:
    from powerprof.report.exports.perfetto import perfetto

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
