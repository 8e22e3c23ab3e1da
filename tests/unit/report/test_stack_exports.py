# SPDX-License-Identifier: Apache-2.0
"""Folded stacks and pprof say what the rows of an attribution say."""

from __future__ import annotations

import gzip
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from powerprof.report.exports import export, fold_stacks
from powerprof.report.pprof import encode_pprof
from powerprof.report.stacks import frames_of
from powerprof.system.errors import UsageError
from tests.unit.report.sample_records import HOSTILE, attribution, comparison, on_cpu


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


def test_pprof_is_the_same_twice() -> None:
    assert export(attribution(), "pprof") == export(attribution(), "pprof")


def test_pprof_keeps_large_values_and_any_name() -> None:
    stack = tuple(name.replace("\x00", "") for name in HOSTILE)
    _, samples = decoded(encode_pprof([(stack, (2**62, 0))], [("a", "count"), ("b", "count")]))
    assert samples == [(tuple(reversed(stack)), [2**62, 0])]


def test_go_reads_the_profile_where_there_is_go(tmp_path: Path) -> None:
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


def test_folded_lines_go_from_the_thread_to_the_function_that_waited() -> None:
    lines = export(attribution(), "folded").decode().splitlines()
    assert len(lines) == 5
    assert "sql/main;mysqld_main;handle_connections_sockets;poll 4" in lines
    assert sum(int(line.rpartition(" ")[2]) for line in lines) == 68


def test_folded_adds_equal_stacks_and_drops_empty_ones() -> None:
    assert fold_stacks([(("a", "b"), 1), (("a", "b"), 2.5), (("c",), 0)]) == "a;b 3.5\n"


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_name_stays_one_frame_on_one_line(name: str) -> None:
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
def test_a_record_without_stacks_is_refused_with_what_would_have_them(kind: str) -> None:
    with pytest.raises(UsageError, match=f"--{kind} needs stacks, and ") as caught:
        export(comparison(4), kind)
    assert "powerprof attribute" in str(caught.value.hint)


def test_a_profile_of_c0_goes_to_the_same_viewers() -> None:
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
