# SPDX-License-Identifier: Apache-2.0
"""Places in a server's program and memory that show its statements."""

from __future__ import annotations

import struct

import pytest

from powerprof.stacks.elf import Elf, parse_elf
from powerprof.stacks.image import Mapping, ProcessImage
from powerprof.tracing.postgresql_places import find_activity_offset, major_of
from powerprof.tracing.statement_places import Dispatch, TextPlace, is_dispatch_copied, pack_text_place
from tests.unit.stacks.elves import Part, make, symbol

BASE = 0x78  # of the first part of the file, whose segment begins at 0
_LOAD, _OTHER, _END = b"\x48\x8b\x83", b"\x48\x8b\x8b", b"\xc3"  # mov rax, [rbx + N]; mov rcx, [rbx + N]; ret
_CLEAR, _CLEAR_AT, _CLEAR_OTHER = (
    b"\xc6\x00\x00",
    b"\xc6\x04\x10\x00",
    b"\xc6\x03\x00",
)  # byte ptr [rax], [rax + rdx], [rbx]


def reports(code: bytes) -> Elf:
    """A program whose pgstat_report_activity is this code."""
    rows = bytes(24) + symbol(1, BASE, len(code))
    table = Part(".symtab", 2, rows, link=3, entry_bytes=24)
    strings = Part(".strtab", 3, b"\0pgstat_report_activity\0")
    return parse_elf(make([Part(".text", 1, code), table, strings]), "postgres")


@pytest.mark.parametrize("clear", [_CLEAR, _CLEAR_AT])
def test_the_text_of_a_process_is_where_its_end_is_written(clear: bytes) -> None:
    code = _OTHER + struct.pack("<i", 0xE8) + _CLEAR_OTHER + _LOAD + struct.pack("<i", 0xF8) + clear + _END
    assert find_activity_offset(reports(code)) == 0xF8


@pytest.mark.parametrize(
    "code",
    [
        _END,
        _LOAD + struct.pack("<i", 0xF8) + _CLEAR_OTHER + _END,
        _LOAD + struct.pack("<i", 0xF8) + b"\x90" + _CLEAR + _END,
    ],
)
def test_other_code_shows_no_text(code: bytes) -> None:
    assert find_activity_offset(reports(code)) is None


@pytest.mark.parametrize(("version", "major"), [("15.18", 15), ("18beta1", 18), (None, 0), ("devel", 0)])
def test_the_major_version_is_its_first_number(version: str | None, major: int) -> None:
    assert major_of(version) == major


def test_a_place_is_seven_words_and_counts_backwards() -> None:
    place = TextPlace(-8, 2, 3, entry=4, activity=5, limit=6, running=7, version="15.1")
    assert struct.unpack("<7Q", pack_text_place(place)) == ((1 << 64) - 8, 2, 3, 4, 5, 6, 7)


@pytest.mark.parametrize(
    ("offset", "copied"), [(0x1000, False), (0x1FFF, False), (0x2000, True), (0x2FFF, True), (0x9000, False)]
)
def test_a_function_in_copied_code_is_found_by_its_place_in_the_file(offset: int, copied: bool) -> None:
    first = Mapping(start=0x401000, end=0x402000, offset=0x1000, path="/mysqld", device="8:1", inode=5, bias=0x400000)
    second = Mapping(
        start=0x402000,
        end=0x403000,
        offset=0x2000,
        path="/mysqld",
        device="8:1",
        inode=5,
        bias=0x400000,
        opened_at=(1, 2),
    )
    image = ProcessImage(pid=1, started_ticks=1, executable="/mysqld", mappings=(first, second))
    dispatch = Dispatch(first, "dispatch_command", offset, 0, None, False)
    assert is_dispatch_copied(image, dispatch) is copied
