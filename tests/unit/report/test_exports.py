# SPDX-License-Identifier: Apache-2.0
"""Tests for files: Markdown and CSV with exact figures, stacks, profiles and timelines."""

from __future__ import annotations

import csv
import gzip
import io
import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from msgspec.structs import replace

from powerprof.report.document import Extras
from powerprof.report.exports import export, render_csv
from powerprof.report.files import SUFFIXES
from powerprof.report.perfetto import build_trace
from powerprof.report.pprof import encode_pprof
from powerprof.report.render.markdown import code_span, escape
from powerprof.report.stacks import fold_stacks, frames_of
from powerprof.report.timeline import TimelineExit
from powerprof.system.errors import UsageError
from tests.unit.report.sample_records import HOSTILE, attribution, comparison, idle_run, on_cpu, timeline


def rows_of(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text, newline="")))


@pytest.mark.parametrize("name", HOSTILE)
def test_names_are_no_formulas_in_csv(name: str) -> None:
    record = attribution()
    thread = replace(record.wakeups[0].thread, server_name=None, comm=name)
    text = render_csv(replace(record, wakeups=[replace(record.wakeups[0], thread=thread, detail=name)]))
    (row,) = rows_of(text)
    assert not row["thread"].startswith(("=", "+", "-", "@", "\t", "\r"))
    assert row["thread"].removeprefix("'") == name.replace("\x00", "\N{REPLACEMENT CHARACTER}")


@pytest.mark.parametrize("name", HOSTILE)
def test_name_in_markdown_is_one_code_span(name: str) -> None:
    span = code_span(name)
    fence = re.match("`+", span)
    assert fence and span.endswith(fence[0])
    inner = span[len(fence[0]) : -len(fence[0])]
    assert fence[0] not in re.findall("`+", inner)
    assert "\n" not in span and not re.search(r"(?<!\\)\|", span) and len(span) < 200


@pytest.mark.parametrize("name", HOSTILE)
def test_sentence_in_markdown_has_no_markup(name: str) -> None:
    text = escape(f"costs {name} more")
    assert not re.search(r"(?<!\\)[`*_<>\[\]|]", text)
    assert "\n" not in text and "@S" not in text and "://" not in text


def fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """A minimal decoder of protocol buffers: (field number, varint or bytes)."""
    at = 0

    def varint() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = data[at]
            at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7

    while at < len(data):
        key = varint()
        if key & 7 == 0:
            yield key >> 3, varint()
        else:
            assert key & 7 == 2
            length = varint()
            assert at + length <= len(data)
            yield key >> 3, data[at : at + length]
            at += length


def packed(data: bytes) -> list[int]:
    found, value, shift = [], 0, 0
    for byte in data:
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            found.append(value)
            value = shift = 0
    return found


def decoded(profile: bytes) -> tuple[list[tuple[str, str]], list[tuple[tuple[str, ...], list[int]]]]:
    """Sample types and samples with their frames, innermost first."""
    message = list(fields(gzip.decompress(profile)))
    strings = [value.decode() for number, value in message if number == 6 and isinstance(value, bytes)]
    functions, locations, types, samples = {}, {}, [], []
    for number, value in message:
        if not isinstance(value, bytes) or number == 6:
            continue
        parts = dict(fields(value))
        if number == 1:
            types.append((strings[parts[1]], strings[parts[2]]))
        elif number == 5:
            functions[parts[1]] = strings[parts[2]]
        elif number == 4:
            locations[parts[1]] = dict(fields(parts[4]))[1]
        elif number == 2:
            samples.append((packed(parts[1]), packed(parts[2])))
    assert strings[0] == ""
    return types, [(tuple(functions[locations[place]] for place in places), values) for places, values in samples]


def test_pprof_has_every_row_with_its_count_and_its_c0_time() -> None:
    record = attribution()
    types, samples = decoded(export(record, "pprof"))
    assert types == [("idle_exits", "count"), ("c0", "nanoseconds")]
    expected = [(tuple(reversed(frames_of(row))), [row.count, round(row.c0_ms * 1e6)]) for row in record.wakeups]
    assert samples == expected


def test_pprof_keeps_large_values_and_any_name() -> None:
    stack = tuple(name.replace("\x00", "") for name in HOSTILE)
    _, samples = decoded(encode_pprof([(stack, (2**62, 0))], [("a", "count"), ("b", "count")]))
    assert samples == [(tuple(reversed(stack)), [2**62, 0])]


def test_go_tool_pprof_reads_the_profile(tmp_path: Path) -> None:
    """Without Go the decoder above has the say alone."""
    path = tmp_path / "profile.pb.gz"
    path.write_bytes(export(attribution(), "pprof"))
    go = shutil.which("go")
    if go is None:
        assert decoded(path.read_bytes())[1]
        return
    done = subprocess.run(
        [go, "tool", "pprof", "-top", str(path)],
        capture_output=True,
        text=True,
        timeout=600,  # the first use compiles pprof itself
        env={**os.environ, "GOTOOLCHAIN": "local", "GOPROXY": "off"},
        check=True,
    )
    assert "Total samples = 68" in done.stdout
    rows = {line.split()[-1]: line.split()[0] for line in done.stdout.splitlines() if line.endswith("timedwait")}
    assert rows["pthread_cond_timedwait"] == "55"


def test_folded_adds_equal_stacks_and_drops_empty_ones() -> None:
    assert fold_stacks([(("a", "b"), 1), (("a", "b"), 2.5), (("c",), 0)]) == "a;b 3.5\n"


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_name_is_one_frame_on_one_line(name: str) -> None:
    text = fold_stacks([(("main", name, "leaf"), 7)])
    assert len(text.splitlines()) == 1
    stack, _, weight = text.rstrip("\n").rpartition(" ")
    assert weight == "7"
    first, middle, last = stack.split(";")
    assert (first, last) == ("main", "leaf")
    assert middle.replace("%3B", ";").replace("%0A", "\n").replace("%0D", "\r").replace("%00", "\x00").replace(
        "%09", "\t"
    ) == name.replace("%3B", ";")


@pytest.mark.parametrize("kind", ["folded", "pprof", "flame"])
def test_record_without_stacks_names_its_files(kind: str) -> None:
    with pytest.raises(UsageError, match=f"compare-0007 has no {re.escape(SUFFIXES[kind])} file") as caught:
        export(comparison(4), kind)
    assert caught.value.hint == "available: .html, .md, .csv and .json"


def test_profile_of_c0_has_all_stack_files() -> None:
    """Kernel frames carry the suffix by which flamegraph.pl colours them."""
    profile = on_cpu()
    assert export(profile, "folded").decode() == (
        "sql/one_connection;[incomplete];row_search_mvcc 5\n"
        "sql/one_connection;start_thread;do_command;vfs_read_[k] 20\n"
    )
    types, samples = decoded(export(profile, "pprof"))
    assert types == [("samples_of_C0", "count"), ("c0", "nanoseconds")]
    assert samples[0] == (("vfs_read_[k]", "do_command", "start_thread", "sql/one_connection"), [20, 20_000_000])
    assert b"C0 time by function" in export(profile, "flame")
    faults = replace(profile, percent_of="page_faults", stacks=[replace(row, c0_ms=None) for row in profile.stacks])
    assert decoded(export(faults, "pprof"))[0] == [("page_faults", "count")]


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
