# SPDX-License-Identifier: Apache-2.0
"""Files from outside: limits of their size, gzip files, and tables."""

from __future__ import annotations

import gzip
import os
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from powerprof.system import outside_files
from powerprof.system.errors import DataError
from powerprof.system.outside_files import read_outside, read_outside_text


@pytest.mark.parametrize("pack", [lambda data: data, gzip.compress])
@pytest.mark.parametrize(("size", "refused"), [(1000, False), (1001, True)])
def test_a_file_at_its_limit_is_read(tmp_path: Path, pack: Callable[[bytes], bytes], size: int, refused: bool) -> None:
    place = tmp_path / "file"
    data = (bytes(range(50)) * 21)[:size]
    place.write_bytes(pack(data))
    if refused:
        with pytest.raises(DataError, match="larger than 0 MiB"):
            read_outside(place, 1000)
    else:
        assert read_outside(place, 1000) == data


def test_all_parts_of_a_packed_file_count_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outside_files, "_LEAST_BYTES", 1000)
    monkeypatch.setattr(outside_files, "_MAX_RATIO", 10)
    monkeypatch.setattr(outside_files, "_PART_BYTES", 100)
    member = gzip.compress(os.urandom(400) + bytes(9000))
    (tmp_path / "file").write_bytes(member)
    with pytest.raises(DataError, match="when it is unpacked"):
        read_outside(tmp_path / "file")
    (tmp_path / "file").write_bytes(gzip.compress(os.urandom(400) + bytes(4000)))
    assert len(read_outside(tmp_path / "file")) == 4400
    # Each member is below the limit of 1,000 + 10 × 880 bytes, and both are above it.
    (tmp_path / "file").write_bytes(member * 2)
    with pytest.raises(DataError, match="when it is unpacked"):
        read_outside(tmp_path / "file")


@pytest.mark.parametrize(("members", "refused"), [(1000, False), (1001, True)])
def test_a_packed_file_has_a_thousand_members(tmp_path: Path, members: int, refused: bool) -> None:
    (tmp_path / "file").write_bytes(gzip.compress(b"x") * members)
    if refused:
        with pytest.raises(DataError, match="in too many parts"):
            read_outside(tmp_path / "file")
    else:
        assert read_outside(tmp_path / "file") == b"x" * members


def test_a_packed_file_may_be_forty_times_as_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outside_files, "_LEAST_BYTES", 1000)
    place = tmp_path / "file"
    random = os.urandom(400)

    def packed(zeros: int) -> bytes:
        return gzip.compress(random + bytes(zeros))

    limit = 1000 + 40 * len(packed(15_000))
    for zeros, refused in ((limit - 500, False), (limit + 2000, True)):
        place.write_bytes(packed(zeros))
        if refused:
            with pytest.raises(DataError, match="when it is unpacked"):
                read_outside(place)
        else:
            assert read_outside(place) == random + bytes(zeros)


@given(st.lists(st.binary(max_size=300), min_size=1, max_size=4), st.integers(0, 3))
def test_all_members_of_a_packed_file_count(
    tmp_path_factory: pytest.TempPathFactory, parts: list[bytes], zeros: int
) -> None:
    place = tmp_path_factory.getbasetemp() / "members"
    place.write_bytes(b"".join(map(gzip.compress, parts)) + bytes(zeros))
    whole_data = b"".join(parts)
    assert read_outside(place, 2000) == whole_data
    if whole_data:
        with pytest.raises(DataError, match="larger than"):
            read_outside(place, len(whole_data) - 1)
    place.write_bytes(b"".join(map(gzip.compress, parts))[:-1])
    with pytest.raises(DataError, match="damaged gzip file"):
        read_outside(place, 2000)


@pytest.mark.parametrize(("text", "line"), [(b"\xff", 1), (b"a\nb\xff\n", 2), (b"\n\n\n\x80", 4)])
def test_an_error_has_its_line(tmp_path: Path, text: bytes, line: int) -> None:
    (tmp_path / "file").write_bytes(text)
    with pytest.raises(DataError, match=rf"file:{line}: not text \(byte 0x") as error:
        read_outside_text(tmp_path / "file")
    assert error.value.line == line


@pytest.mark.parametrize("mark", ["\n", "\r", "\x0b", "\x0c", "\x1c", "\x1d", "\x1e", "\x85", "\u2028", "\u2029"])
def test_a_text_has_at_most_half_a_million_lines(tmp_path: Path, mark: str) -> None:
    """29 KB of gzip took 41 s and 2.1 GB. Whatever ends a line for Python counts."""
    place = tmp_path / "log.gz"
    for count, refused in ((500_000, False), (500_001, True)):
        text = f"1{mark}" * count
        place.write_bytes(gzip.compress(text.encode()))
        assert len(text.splitlines()) == count
        with pytest.raises(DataError, match="500,001 lines, at most 500,000") if refused else nullcontext():
            assert outside_files.read_outside_table(place) == text


@pytest.mark.parametrize("mark", [",", ";", "\t"])
def test_a_text_has_at_most_six_million_cells(tmp_path: Path, mark: str) -> None:
    place = tmp_path / "log.gz"
    place.write_bytes(gzip.compress((mark * 3000 + "\n").encode() * 2001))
    with pytest.raises(DataError, match="6,003,000 cells"):
        outside_files.read_outside_table(place)


def test_sql_is_no_table(tmp_path: Path) -> None:
    """A data set has more commas and lines than any recording."""
    place = tmp_path / "data.sql"
    place.write_text("INSERT INTO t VALUES (1,2);\n" * 500_001)
    assert len(outside_files.read_outside_text(place).splitlines()) == 500_001
    with pytest.raises(DataError, match="500,001 lines"):
        outside_files.read_outside_table(place)
