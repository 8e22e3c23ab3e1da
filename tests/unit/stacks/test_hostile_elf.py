# SPDX-License-Identifier: Apache-2.0
"""ELF files that lie: refused in words, and never handed to native code."""

from __future__ import annotations

import lzma
import os
import random
import struct
import sys
import zlib
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from powerprof.stacks import function_ranges
from powerprof.stacks.elf import code_vaddr, parse_elf, read_elf, section_bytes
from powerprof.stacks.registers import X86_64, SavedStack
from powerprof.stacks.store import TableStore
from powerprof.stacks.symbolizer import Symbolizer
from powerprof.stacks.symtab import read_symbols
from powerprof.stacks.unwind import Unwinder
from powerprof.stacks.unwind_tables import extract_table
from powerprof.system.errors import CapabilityError, DataError, PowerprofError
from powerprof.tracing import mysql_places, postgresql_places
from powerprof.tracing.exceptions import find_throwing_modules
from powerprof.tracing.statement_places import open_program
from powerprof.tracing.symbols import find_functions
from tests.unit.stacks.elves import Part, eh_frame, image_of, make, note, symbol, with_symbols


def bend(data: bytes, at: int, shape: str, value: int) -> bytes:
    out = bytearray(data)
    struct.pack_into(shape, out, at, value)
    return bytes(out)


SOUND = with_symbols([("f", 0x100, 16, 0x12)])


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "too short"),
        (b"#!/bin/sh\n" * 10, "not an ELF file"),
        (SOUND[:100], "program headers out of range|section headers out of range"),
        (bend(SOUND, 4, "<B", 1), "not a 64-bit"),
        (bend(SOUND, 18, "<H", 243), "another machine"),
        (bend(SOUND, 16, "<H", 1), "neither program nor library"),
        (bend(SOUND, 32, "<Q", 1 << 62), "program headers out of range"),
        (bend(SOUND, 40, "<Q", len(SOUND) - 8), "section headers out of range"),
        (bend(SOUND, 40, "<Q", (1 << 64) - 1), "section headers out of range"),
        (bend(SOUND, 54, "<H", 1), "program headers out of range"),
        (bend(SOUND, 60, "<H", 0xFFFF), "section headers out of range"),
        (bend(SOUND, 64 + 40, "<Q", (1 << 64) - 1), "impossible size"),
    ],
)
def test_invalid_header_is_refused(data, reason):
    with pytest.raises(DataError, match=reason):
        parse_elf(data, "bent")


def test_section_outside_of_file_is_refused():
    at = struct.unpack_from("<Q", SOUND, 40)[0] + 64
    with pytest.raises(DataError, match="lies outside"):
        parse_elf(bend(SOUND, at + 32, "<Q", 1 << 40), "bent")


def test_file_truncated_while_read_is_refused(tmp_path):
    path = tmp_path / "cut"
    path.write_bytes(SOUND)
    fd = os.open(path, os.O_RDONLY)
    try:
        elf = read_elf(fd, "cut")
        os.truncate(path, 80)
        with pytest.raises(DataError, match="ends inside"):
            read_symbols(elf)
    finally:
        os.close(fd)


@pytest.mark.parametrize("link", [0, 1, 99])
def test_symbol_table_with_invalid_link_is_refused(link):
    elf = parse_elf(make([Part(".symtab", 2, bytes(48), link=link, entry_bytes=24), Part(".strtab", 1, b"\0f\0")]), "x")
    with pytest.raises(DataError, match="symbol table"):
        read_symbols(elf)


def test_compressed_section_larger_than_promised_is_refused():
    bomb = struct.pack("<IIQQ", 1, 0, 100, 1) + zlib.compress(bytes(10_000_000))
    elf = parse_elf(make([Part(".debug_frame", 1, bomb, flags=1 << 11)]), "bomb")
    with pytest.raises(DataError, match="another size than it promises"):
        section_bytes(elf, elf.section(".debug_frame"))
    huge = struct.pack("<IIQQ", 1, 0, 1 << 50, 1) + zlib.compress(b"x")
    elf = parse_elf(make([Part(".debug_frame", 1, huge, flags=1 << 11)]), "bomb")
    with pytest.raises(DataError, match="larger than"):
        section_bytes(elf, elf.section(".debug_frame"))


def test_debugdata_bomb_is_refused(monkeypatch):
    monkeypatch.setattr("powerprof.stacks.symtab.DEBUGDATA_LIMIT_BYTES", 1 << 16)
    elf = parse_elf(make([Part(".gnu_debugdata", 1, lzma.compress(bytes(1 << 20)))]), "bomb")
    with pytest.raises(DataError, match="larger than"):
        read_symbols(elf)
    elf = parse_elf(make([Part(".gnu_debugdata", 1, b"not xz at all, by no means")]), "bomb")
    with pytest.raises(DataError, match="cannot be decompressed"):
        read_symbols(elf)


def test_fde_covers_its_function():
    found = function_ranges.read_fde_functions(eh_frame((0x1000, 0x40, b"")), 0x8000, "x")
    assert (found.starts.tolist(), found.ends.tolist(), found.bottoms) == ([0x1000], [0x1040], ())


def test_broken_unwind_entries_are_refused():
    with pytest.raises(DataError, match="broken at byte"):
        function_ranges.read_fde_functions(struct.pack("<I", 1 << 20) + b"x" * 64, 0, "x")


@settings(max_examples=150, deadline=None)
@given(st.binary(max_size=200))
def test_random_unwind_bytes_are_read_or_refused(data):
    try:
        function_ranges.read_fde_functions(data, 0x1000, "x")
        function_ranges.convert_debug_frame(data, "x")
    except DataError:
        pass


def test_damaged_unwind_table_does_not_crash_the_walk(tmp_path):
    rng = random.Random(20240)
    sound = eh_frame((0x1000, 0x40, b""))
    for round_number in range(60):
        table = bytearray(sound)
        for _ in range(rng.randrange(1, 6)):
            table[rng.randrange(len(table))] = rng.randrange(256)
        data = make([Part(".eh_frame", 1, bytes(table), flags=2, vaddr=0x8000), note()])
        path = tmp_path / f"{round_number}"
        path.write_bytes(data)
        image = image_of(path)
        unwinder = Unwinder(TableStore(use_cache=False))
        registers = X86_64.pack({"ip": 0x11010, "sp": 0x7000_0000, "bp": 0x7000_0020})
        result = unwinder.unwind(image, SavedStack(1, 1, registers, rng.randbytes(256)))
        assert result.pcs[:1] == (0x11010,)
        assert not result.complete or result.reason is None


def test_file_that_is_not_elf_loses_its_names_only(tmp_path):
    path = tmp_path / "text"
    path.write_text("hello" * 100)
    image = image_of(path)
    store = TableStore(use_cache=False)
    unwinder = Unwinder(store)
    result = unwinder.unwind(image, SavedStack(1, 1, X86_64.pack({"ip": 0x11010, "sp": 8}), b""))
    assert (result.complete, len(result.pcs)) == (False, 1)
    symbolizer = Symbolizer(image, store)
    assert symbolizer.stack(result)[0].label == "text+0x1010"
    assert len(symbolizer.notes) == 1


def test_file_without_loaded_segment_is_refused():
    data = bend(make([]), 64, "<I", 0)
    with pytest.raises(DataError, match="nothing in it is loaded"):
        extract_table(parse_elf(data, "x"))


def bent_words(data: bytes, rng: random.Random) -> bytes:
    """One to three words of the headers, of the file, its segments and its sections, at the edges of what they hold."""
    sections_at = struct.unpack_from("<Q", data, 40)[0]
    places = [*range(24, 64 + 56, 8), *range(sections_at + 64, len(data) - 7, 8)]
    edges = (0, 1, 1 << 31, 1 << 32, (1 << 62) - 1, 1 << 62, 1 << 63, 0xFFFF_FFFF_FFFF_0000, (1 << 64) - 1)
    for _ in range(rng.randrange(1, 4)):
        data = bend(data, rng.choice(places), "<Q", rng.choice(edges))
    return data


def server_like(address: int = 0x8000) -> bytes:
    """A program with an unwind table, symbols that a PostgreSQL server and a MariaDB server have, and a build id."""
    strings, rows = bytearray(b"\0"), [bytes(24)]
    for number, name in enumerate(("pgstat_report_activity", "dispatch_command", "_Unwind_RaiseException", "f")):
        rows.append(symbol(len(strings), 0x100 + 16 * number, 16, 0x12))
        strings += name.encode() + b"\0"
    return make(
        [
            Part(".symtab", 2, b"".join(rows), link=2, entry_bytes=24),
            Part(".strtab", 3, bytes(strings)),
            note(),
            Part(".eh_frame", 1, eh_frame((0x1000, 0x40, b"")), flags=2, vaddr=address),
        ]
    )


def everything_read_of(path: Path) -> None:
    """All that powerprof makes of the file of a process, each answer a value or a PowerprofError."""
    image = image_of(path)
    with suppress(PowerprofError), path.open("rb") as file:
        vaddr = code_vaddr(read_elf(file.fileno(), str(path)), 0)
        moved = msgspec.structs.replace(image.mappings[0], bias=None if vaddr is None else 0x10000 - vaddr)
        image = msgspec.structs.replace(image, mappings=(moved,))
    store = TableStore(use_cache=False)
    unwound = Unwinder(store).unwind(image, SavedStack(1, 1, X86_64.pack({"ip": 0x11010, "sp": 0x7000}), bytes(64)))
    Symbolizer(image, store).stack(unwound)
    find_throwing_modules(image)
    readers = [lambda image: find_functions(image, "f*", store=store)]
    readers += [mysql_places.find_dispatch, mysql_places.find_text]
    readers += [postgresql_places.find_dispatch, postgresql_places.find_text]
    for read in readers:
        with suppress(PowerprofError):
            read(image)


def test_unwind_table_at_impossible_address_is_refused(tmp_path):
    path = tmp_path / "high"
    path.write_bytes(server_like(0xFFFF_FFFF_FFFF_0000))
    everything_read_of(path)
    image = image_of(path)
    assert "impossible address" in TableStore(use_cache=False).unwind_table(image, image.mappings[0])


def test_segment_at_impossible_address_is_refused(tmp_path):
    path = tmp_path / "nowhere"
    path.write_bytes(bend(server_like(), 64 + 8, "<Q", 1 << 63))
    everything_read_of(path)
    image = image_of(path)
    with (
        pytest.raises(CapabilityError, match=r"nowhere cannot be read \(ends inside"),
        open_program(image, "none") as (elf, _),
    ):
        elf.read(elf.loads()[0].offset, 16)


def test_extreme_header_values_raise_no_unexpected_error(tmp_path):
    rng = random.Random(20261123)
    path = tmp_path / "bent"
    for _ in range(120):
        path.write_bytes(bent_words(server_like(), rng))
        everything_read_of(path)


def test_sections_and_segments_of_a_real_program_are_in_its_file() -> None:
    """A symbol of a 64-bit file has 24 bytes; a segment has no more bytes in its file than in memory."""
    path = os.path.realpath(sys.executable)
    descriptor = os.open(path, os.O_RDONLY)
    try:
        elf = read_elf(descriptor, path)
    finally:
        os.close(descriptor)
    symbols = elf.section(".dynsym")
    assert symbols is not None and symbols.entry_bytes == 24 and symbols.size % symbols.entry_bytes == 0
    size = Path(path).stat().st_size
    assert elf.loads()
    for segment in elf.loads():
        assert segment.offset >= 0 and segment.offset + segment.file_bytes <= size
        assert segment.file_bytes <= segment.memory_bytes
