# SPDX-License-Identifier: Apache-2.0
"""Functions of stripped Go programs, by the runtime's own table; and such tables that lie."""

from __future__ import annotations

import os
import random
import struct
from pathlib import Path

import pytest

from powerprof.stacks.elf import parse_elf, read_elf
from powerprof.stacks.go_functions import read_go_functions
from powerprof.stacks.symtab import SymbolTable, read_symbols
from powerprof.system.errors import DataError
from tests.unit.stacks.elves import with_go_table


def symbols_of(path: Path) -> SymbolTable:
    fd = os.open(path, os.O_RDONLY)
    try:
        return read_symbols(read_elf(fd, str(path)))
    finally:
        os.close(fd)


def names(table: SymbolTable) -> dict[int, str]:
    starts = struct.unpack(f"<{table.count}Q", table.starts)
    return {start: table.name_at(at) for at, start in enumerate(starts)}


def test_stripped_go_program_has_all_names(built):
    whole, stripped = names(symbols_of(built("goroutines"))), names(symbols_of(built("goroutines-stripped")))
    # The symbol table says by which convention a function is called, and spells a middle dot as a dot.
    alike = {start: name.removesuffix(".abi0") for start, name in whole.items()}
    assert len(stripped) > 1000
    others = {name for start, name in stripped.items() if alike.get(start) != name.replace("·", ".")}
    # Go 1.19 names two functions of 1,454 otherwise, Go 1.26 none of 1,980.
    assert len(others) <= 2 and not any(name.startswith("main.") for name in others)
    assert {"main.sleeper", "main.answerer", "main.main", "runtime.mcall", "runtime.goexit"} <= set(stripped.values())


def test_position_independent_go_program_has_all_names(built):
    found = set(names(symbols_of(built("goroutines-pie"))).values())
    assert {"main.sleeper", "main.answerer", "runtime.mcall"} <= found


def test_other_languages_have_no_go_table(built):
    data = built("sleepers").read_bytes()
    assert read_go_functions(parse_elf(data, "sleepers")) is None


def test_damaged_go_table_is_ignored(built):
    data = built("goroutines-stripped").read_bytes()
    section = parse_elf(data, "x").section(".gopclntab")
    drawn = random.Random(7)
    for number in range(300):
        changed = bytearray(data)
        # Mostly the header and the ends of tables, where a lie leads astray.
        reach = 72 if number % 3 else section.size
        for _ in range(drawn.randint(1, 4)):
            at = section.offset + drawn.randrange(reach)
            changed[at] = drawn.choice((0, 1, 0x7F, 0xFF, drawn.randrange(256)))
        try:
            found = read_go_functions(parse_elf(bytes(changed), "x"))
        except DataError:
            continue
        if found is not None:
            starts, sizes, places, text = found
            assert len(starts) == len(sizes) == len(places)
            assert all(place < len(text) for place in places.tolist())
            assert all(sizes.tolist())


FUNCTIONS = [("_rt0_amd64_linux", 0), ("runtime.mcall", 0x40), ("main.main", 0x100)]


@pytest.mark.parametrize("told", [True, False], ids=["go1.25", "go1.26"])
def test_text_start_is_read_from_table_or_module_record(told):
    table = read_symbols(parse_elf(with_go_table(FUNCTIONS, 0x180, told=told), "x"))
    assert names(table) == {0x1000 + at: name for name, at in FUNCTIONS}
    assert table.lookup(0x117F) == ("main.main", 0x1100, 0x1180)
    assert table.lookup(0x1180) is None
    assert table.ranges_of(["runtime.mcall"]) == {(0x1040, 0x1100)}


def test_go_functions_outside_of_code_are_refused():
    assert read_go_functions(parse_elf(with_go_table(FUNCTIONS, 0x180, text=0x7FFF_FFFF_FFFF_F000), "x")) is None
    assert read_go_functions(parse_elf(with_go_table(FUNCTIONS, 0xFFFF_FFFF), "x")) is None
    backwards = [("b", 0x40), ("a", 0)]
    assert read_go_functions(parse_elf(with_go_table(backwards, 0x180), "x")) is None


@pytest.mark.parametrize("size", [1, 71, 72, 100])
def test_truncated_go_table_is_ignored(built, size):
    data = built("goroutines-stripped").read_bytes()
    elf = parse_elf(data, "x")
    at = next(number for number, section in enumerate(elf.sections) if section.name == ".gopclntab")
    header = struct.unpack_from("<Q", data, 40)[0] + 64 * at
    changed = bytearray(data)
    struct.pack_into("<Q", changed, header + 32, size)
    assert read_go_functions(parse_elf(bytes(changed), "x")) is None
