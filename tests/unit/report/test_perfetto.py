# SPDX-License-Identifier: Apache-2.0
"""Tests for timelines in the trace event format."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest

from powerprof.report.document import Extras
from powerprof.report.exports import export
from powerprof.report.perfetto import build_trace
from powerprof.report.timeline import TimelineExit
from powerprof.system.errors import UsageError
from tests.unit.report.sample_records import HOSTILE, attribution, idle_run, timeline


def test_two_exits_become_slices_arrows_and_instants() -> None:
    events = build_trace(
        [
            TimelineExit(0, 1_000_000, 3_500_000, 3_700_123, "C6", "timer", "statement timer", "mariadbd"),
            TimelineExit(1, 2_000_000, 4_000_000, None, "C1", "no_ipi", "sshd", None),
        ]
    )["traceEvents"]
    cpus = [event for event in events if event["ph"] == "X" and event["pid"] == 1]
    assert [(e["tid"], e["name"], e["ts"], e["dur"]) for e in cpus] == [
        (0, "C6", 0.0, 2500.0),
        (0, "mariadbd", 2500.0, 200.123),
        (1, "C1", 1000.0, 2000.0),
    ]
    assert cpus[1]["args"] == {"woken_by": "timer: statement timer"}
    arrows = {event["ph"]: event for event in events if event["ph"] in "sf"}
    assert arrows["s"]["ts"] == arrows["f"]["ts"] == 2500.0
    assert (arrows["s"]["pid"], arrows["f"]["pid"], arrows["f"]["tid"]) == (2, 1, 0)
    assert [e["name"] for e in events if e["ph"] == "i"] == ["wake-up: timer: statement timer", "wake-up: no-ipi: sshd"]
    names = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert names == {(1, 0): "CPU 0", (1, 1): "CPU 1", (2, 1): "timer: statement timer", (2, 2): "no-ipi: sshd"}


def test_slices_of_one_track_never_overlap() -> None:
    events = json.loads(export(attribution(), "perfetto", Extras(timeline=timeline(400))))["traceEvents"]
    tracks: dict[tuple[int, int], list[tuple[float, float]]] = {}
    for event in events:
        if event["ph"] == "X":
            assert event["dur"] >= 0
            tracks.setdefault((event["pid"], event["tid"]), []).append((event["ts"], event["ts"] + event["dur"]))
    for slices in tracks.values():
        slices.sort()
        # A nanosecond of tolerance: times are µs in floating point.
        assert all(end <= start + 1e-3 for (_, end), (start, _) in pairwise(slices))
    assert len([e for e in events if e["ph"] == "i"]) == 400


def test_every_arrow_starts_in_a_cause_and_ends_on_a_cpu() -> None:
    events = build_trace(timeline(100))["traceEvents"]
    starts = {e["id"]: e for e in events if e["ph"] == "s"}
    ends = {e["id"]: e for e in events if e["ph"] == "f"}
    assert starts.keys() == ends.keys() and len(starts) == 99  # the last exit was cut off by the window's end
    slices = {(e["pid"], e["tid"], e["ts"]) for e in events if e["ph"] == "X"}
    for one in [*starts.values(), *ends.values()]:
        assert (one["pid"], one["tid"], one["ts"]) in slices


def test_hostile_names_stay_text() -> None:
    exits = [
        TimelineExit(0, i * 100, i * 100 + 50, i * 100 + 70, name, "timer", name, name)
        for i, name in enumerate(HOSTILE)
    ]
    document = json.loads(json.dumps(build_trace(exits)))
    assert {e["name"] for e in document["traceEvents"] if e["ph"] == "X" and e["pid"] == 1} == set(HOSTILE)


def test_timeline_needs_the_capture() -> None:
    with pytest.raises(UsageError, match="needs the capture"):
        export(attribution(), "perfetto")
    with pytest.raises(UsageError, match=r"has no \.perfetto.json file"):
        export(idle_run(), "perfetto", Extras(timeline=timeline(3)))
