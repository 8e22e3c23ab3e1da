# SPDX-License-Identifier: Apache-2.0
"""Tests for profiles in the format of pprof."""

from __future__ import annotations

import gzip
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

from powerprof.report import protobuf
from powerprof.report.exports import export
from powerprof.report.pprof import encode_pprof
from powerprof.report.stacks import frames_of
from tests.unit.report.sample_records import HOSTILE, attribution


def test_negative_numbers_are_twos_complement() -> None:
    assert protobuf.number(1, -1) == b"\x08" + b"\xff" * 9 + b"\x01" and protobuf.number(1, 0) == b""


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
