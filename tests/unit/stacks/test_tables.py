# SPDX-License-Identifier: Apache-2.0
"""Look-ups of symbols, unwind entries, lines, mappings and budgets at their edges, on tables made by hand."""

from __future__ import annotations

import os
import struct
import zlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from powerprof.stacks import debug_files, dwarf_units
from powerprof.stacks.dwarf import Call
from powerprof.stacks.dwarf_lines import Lines
from powerprof.stacks.dwarf_values import sleb, uleb
from powerprof.stacks.elf import Elf, Segment, build_id_of_notes, code_vaddr, parse_elf
from powerprof.stacks.file_names import _find_covered, is_complete
from powerprof.stacks.function_ranges import returns_nowhere
from powerprof.stacks.image import Mapping as CodeMapping
from powerprof.stacks.image import ProcessImage, find_code_ranges
from powerprof.stacks.inline import InlineReader
from powerprof.stacks.perf_map import _find_refusal
from powerprof.stacks.registers import X86_64
from powerprof.stacks.store import TableStore
from powerprof.stacks.symbolizer import Frame, Symbolizer, _NamedModule
from powerprof.stacks.symtab import SymbolTable
from powerprof.stacks.thread_starts import find_start_names
from powerprof.stacks.time_budget import Budget, DebugBudget, DebugBudgetError
from powerprof.stacks.unwind_tables import extract_table
from powerprof.stacks.walker import _Module
from powerprof.system.errors import DataError
from tests.conftest import Tree
from tests.unit.stacks.elves import Part, eh_frame, make


def symbols(*rows: tuple[str, int, int]) -> SymbolTable:
    """Return a table of (name, start, end), sorted by start."""
    names, offsets = b"\0", []
    for name, _, _ in rows:
        offsets.append(len(names))
        names += name.encode() + b"\0"
    starts, ends = (b"".join(struct.pack("<Q", row[at]) for row in rows) for at in (1, 2))
    return SymbolTable(starts=starts, ends=ends, offsets=struct.pack(f"<{len(offsets)}I", *offsets), names=names)


NESTED = symbols(("outer", 0x100, 0x200), ("inner@V1", 0x140, 0x160), ("alias", 0x300, 0x310), ("longer", 0x300, 0x330))


@pytest.mark.parametrize(
    ("vaddr", "name", "following", "size"),
    [
        (0xFF, None, 0x100, 0),
        (0x100, "outer", 0x140, 0x100),
        (0x140, "inner", 0x300, 0x20),
        (0x15F, "inner", 0x300, 0),
        (0x160, "outer", 0x300, 0),
        (0x1FF, "outer", 0x300, 0),
        (0x200, None, 0x300, 0),
        (0x300, "longer", 1 << 64, 0x30),
        (0x32F, "longer", 1 << 64, 0),
        (0x330, None, 1 << 64, 0),
    ],
)
def test_symbols_at_their_edges(vaddr: int, name: str | None, following: int, size: int) -> None:
    found = NESTED.lookup(vaddr)
    assert (found and found[0], NESTED.next_start(vaddr), NESTED.size_at(vaddr)) == (name, following, size)
    assert NESTED.ranges_of({"alias", "outer", "none"}) == {(0x300, 0x310), (0x100, 0x200)}


def test_named_functions_are_those_that_a_symbol_covers() -> None:
    """A short symbol inside of a long one does not end it."""
    starts = np.array([0xFF, 0x100, 0x150, 0x170, 0x1FF, 0x200, 0x32F, 0x330], "<u8")
    assert _find_covered(NESTED, starts).tolist() == [False, True, True, True, True, False, True, False]


def test_bottoms_and_entries_end_before_the_next_function() -> None:
    module = _Module(None, (0x100, 0x300), (0x140, 0x310), None)
    assert [module.is_bottom(at) for at in (0xFF, 0x100, 0x13F, 0x140, 0x300, 0x310)] == [
        False,
        True,
        True,
        False,
        True,
        False,
    ]


def test_unwind_table_of_a_file() -> None:
    """Ranges, the pages of its segments, and the functions without a caller: by entry point, table and name."""
    strings = b"\0_start_c\0clone\0"
    rows = bytes(24) + b"".join(
        struct.pack("<IBBHQQ", name, 0x12, 0, 1, value, 0x10) for name, value in ((1, 0x1800), (10, 0x1050))
    )
    parts = [
        Part(
            ".eh_frame",
            1,
            eh_frame((0x1000, 0x40, b""), (0x1040, 0x30, b"\x0e\x20"), (0x1100, 0x20, b"\x07\x10")),
            2,
            vaddr=0x8000,
        ),
        Part(".symtab", 2, rows, link=3, entry_bytes=24),
        Part(".strtab", 3, strings),
    ]
    elf = parse_elf(make(parts, entry=0x1008), "x")
    segments = (Segment(1, 5, 0, 0x1234, 0x100, 0x3000), Segment(1, 6, 0, 0x7000, 0x100, 0x2500))
    table = extract_table(Elf(**{**{name: getattr(elf, name) for name in Elf.__struct_fields__}, "segments": segments}))
    assert (table.low, table.high) == (0x1000, 0x9500)
    assert [table.covers(at) for at in (0xFFF, 0x1000, 0x103F, 0x1040, 0x106F, 0x1070, 0x1100, 0x1120)] == [
        *(False, True, True, True, True),
        *(False, True, False),
    ]
    # clone is covered by an entry, which has a caller; _start_c is not covered.
    assert table.bottoms == ((0x1000, 0x1040), (0x1100, 0x1120), (0x1800, 0x1810))


@pytest.mark.parametrize(
    ("code", "nowhere"),
    [
        ("0710", True),
        ("0711", False),
        ("03aaaa0710", True),  # advance by two bytes
        ("03010710", False),  # the operand looks like one
        ("0201 0710", True),
        ("04010203040710", True),
        ("0e200710", True),
        ("0e07 10", False),
        ("0f0207100710", True),  # a block of two bytes
        ("0f020710", False),
        ("9005 0710", True),  # offset of a register
        ("44 0710", True),
        ("ff0710", True),
    ],
)
def test_functions_without_a_return_address(code: str, nowhere: bool) -> None:
    assert returns_nowhere(bytes.fromhex(code), 0x1B, 0x10) is nowhere


def line_program(*, smallest: int, program: bytes, base: int = -3, span: int = 12) -> bytes:
    """Return a line table of version 4 with the files `one.c` and `dir/two.c`."""
    header = bytes((smallest, 1, 1)) + struct.pack("<bBB", base, span, 13) + bytes((0, 1, 1, 1, 1, 0, 0, 0, 1, 0, 0, 1))
    header += b"dir\0\0" + b"one.c\0\0\0\0" + b"two.c\0\1\0\0" + b"\0"
    rest = struct.pack("<HI", 4, len(header)) + header + program
    return struct.pack("<I", len(rest)) + rest


@pytest.mark.parametrize("smallest", [1, 4])
def test_line_program(smallest: int) -> None:
    """Instructions of arm64 have four bytes, so advances count in units of them."""
    program = b"\x00\x09\x02" + struct.pack("<Q", 0x1000)
    program += b"\x03\x09\x01"  # line 10, row
    program += b"\x02\x05\x01"  # five units further, row
    program += bytes((13 + 2 * 12 + 3 + 4,))  # two units and four lines further, row
    program += b"\x04\x02\x03\x7f\x01"  # the second file, line before, row
    program += bytes((8,)) + b"\x01"  # advance as the last special opcode does, row
    program += b"\x09\x07\x00\x01"  # seven bytes, row
    program += b"\x02\x01\x00\x01\x01"  # one unit further the sequence ends
    lines = Lines(line_program(smallest=smallest, program=program), lambda form, at: "")
    first = 0x1000
    assert lines.at(first - 1) is None
    assert lines.at(first) == lines.at(first + 5 * smallest - 1) == ("one.c", 10)
    assert lines.at(first + 5 * smallest) == ("one.c", 10)
    second = first + 7 * smallest
    assert lines.at(second - 1) == ("one.c", 10)
    third = second + (255 - 13) // 12 * smallest
    assert lines.at(second) == lines.at(third - 1) == ("dir/two.c", 13)
    assert lines.at(third) == lines.at(third + 6) == ("dir/two.c", 13)
    assert lines.at(third + 7) == ("dir/two.c", 13) and lines.at(third + 7 + smallest) is None
    assert (lines.file(1), lines.file(2), lines.file(3)) == ("one.c", "dir/two.c", None)


def test_levels_of_inlined_calls_have_the_lines_of_their_calls() -> None:
    """The innermost level has the line of the address, each other one that of the call inlined in it."""
    reader = InlineReader.__new__(InlineReader)
    calls = [Call("main", None, None), Call("work", "a.c", 12), Call("_Z4leafi", "b.h", 34)]
    reader._elf, reader._budget, reader.note = SimpleNamespace(fd=os.open("/dev/null", 0)), DebugBudget(), None  # type: ignore[assignment]
    reader._dwarf = SimpleNamespace(calls=lambda vaddr: (calls, ("c.h", 56)))  # type: ignore[assignment]
    assert [(level.name, level.source, level.inlined) for level in reader.levels(0x1000)] == [
        ("leaf(int)", "c.h:56", True),
        ("work", "b.h:34", True),
        ("main", "a.c:12", False),
    ]
    reader._dwarf = SimpleNamespace(calls=lambda vaddr: (calls[:1], None))  # type: ignore[assignment]
    assert [(level.name, level.source, level.inlined) for level in reader.levels(0x1000)] == [("main", None, False)]


def test_ranges_of_an_entry_end_before_their_end() -> None:
    unit = dwarf_units.OpenUnit.__new__(dwarf_units.OpenUnit)
    unit.ranges = lambda entry: [(0x100, 0x140), (0x200, 0x210)]  # type: ignore[method-assign]
    holds = [unit._holds(None, at) for at in (0xFF, 0x100, 0x13F, 0x140, 0x20F, 0x210)]  # type: ignore[arg-type]
    assert holds == [False, True, True, False, True, False]


def mapping(start: int, end: int, path: str = "/usr/bin/x", **more: Any) -> CodeMapping:
    return CodeMapping(start=start, end=end, path=path, device="8:1", **({"offset": 0, "inode": 7} | more))


def image(*mappings: CodeMapping, **more: Any) -> ProcessImage:
    values = {"pid": 4194303, "started_ticks": 5_000, "executable": "/usr/bin/x", "uid": 7} | more
    return ProcessImage(mappings=mappings, **values)


def test_mappings_end_before_their_end() -> None:
    made = image(mapping(0x1000, 0x2000), mapping(0x3000, 0x3800, "/usr/lib/y.so"))
    assert [
        found and found.start for found in map(made.mapping_at, (0xFFF, 0x1000, 0x1FFF, 0x2000, 0x37FF, 0x3800))
    ] == [*(None, 0x1000, 0x1000), *(None, 0x3000, None)]
    assert mapping(0x1000, 0x2000, bias=0x50_0000).in_memory(0x1234) == 0x50_1234
    assert mapping(0x1000, 0x2000).in_memory(0x1234) == 0x1234
    assert mapping(0x1000, 0x2000, bias=-0x1000).in_memory(0x234) == (1 << 64) - 0xDCC


def test_code_ranges_are_parted_by_the_widest_gap() -> None:
    parts = [(0x1000, 0x1800), (0x2000, 0x2400), (0x9000, 0x9900), (0xA000, 0xA100)]
    made = image(*(mapping(*part) for part in parts), mapping(0xFF000, 0xFF100, "[vdso]"))
    assert find_code_ranges(made) == (0x1000, 0x1400, 0x9000, 0x1100)
    assert find_code_ranges(image(mapping(0x1000, 0x1800))) == (0x1000, 0x800, 0, 0)
    assert find_code_ranges(image()) == (0, 0, 0, 0)


def test_names_of_the_debug_file_come_before_exported_ones() -> None:
    made = image(mapping(0x10000, 0x20000, bias=0xF000))
    symbolizer = Symbolizer(made, TableStore(use_cache=False, downloads=False))
    tables = SimpleNamespace(symbols=symbols(("exported", 0x1000, 0x1200), ("other", 0x1300, 0x1310)))
    starts, ends = np.array([0x1400], "<u8"), np.array([0x1480], "<u8")
    debug = symbols(("local", 0x1080, 0x10C0))
    symbolizer._modules[0x10000] = _NamedModule(0xF000, tables, debug, None, starts, ends)  # type: ignore[arg-type]

    def named(pc: int, exact: bool = True) -> tuple[str | None, int | None, int | None]:
        (frame,) = symbolizer.frames(pc, exact)
        return frame.function, frame.function_start, frame.offset

    assert named(0x10090) == ("local", 0x1080, 0x10)
    assert named(0x10070) == ("exported", 0x1000, 0x70)
    # A return address after the last instruction of a function.
    assert named(0x100C0, exact=False) == ("local", 0x1080, 0x40)
    assert named(0x100C0) == ("exported", 0x1000, 0xC0)
    assert named(0x10410) == (None, 0x1400, 0x10)
    assert named(0x10480) == (None, None, None)
    assert symbolizer.frames(0x30000) == (Frame(None, "[unmapped]", 0x30000, None, None),)


@pytest.mark.parametrize(
    ("mode", "age_s", "refused"), [(0o644, 100, False), (0o644, -1, False), (0o644, -5, True), (0o646, 100, True)]
)
def test_maps_older_than_their_process_are_refused(fake_tree: Tree, mode: int, age_s: int, refused: bool) -> None:
    """The process started 50 s after the boot; the kernel reports the boot time in whole seconds."""
    fake_tree({"proc/stat": "cpu 1 2\nbtime 1700000000\n"})
    started_s = 1_700_000_000 + 5_000 / os.sysconf("SC_CLK_TCK")
    opened = SimpleNamespace(mode=mode, mtime_ns=round((started_s + age_s) * 1e9))
    assert (_find_refusal(opened, image()) is not None) is refused  # type: ignore[arg-type]


# Numbers of variable length, notes and segments.


@pytest.mark.parametrize(
    ("data", "unsigned", "signed"),
    [
        ("02", 2, 2),
        ("7f", 127, -1),
        ("8001", 128, 128),
        ("ff00", 127, 127),
        ("807f", 16256, -128),
        ("e58e26", 624485, 624485),
    ],
)
def test_variable_length_numbers(data: str, unsigned: int, signed: int) -> None:
    raw = bytes.fromhex(data)
    assert uleb(b"\0" + raw, 1) == (unsigned, 1 + len(raw)) and sleb(b"\0" + raw, 1) == (signed, 1 + len(raw))


def test_build_id_among_notes() -> None:
    """Names and contents are padded to four bytes."""
    other = struct.pack("<III", 6, 3, 1) + b"Linux\0\0\0" + b"abc\0"
    odd = struct.pack("<III", 7, 5, 9) + b"stapsdt"[:7] + b"\0" + b"12345\0\0\0"
    own = struct.pack("<III", 4, 6, 3) + b"GNU\0" + bytes.fromhex("0102030405ff")
    assert build_id_of_notes(other + odd + own) == "0102030405ff"
    assert build_id_of_notes(other) is None and build_id_of_notes(own[:-1]) is None


def test_code_is_mapped_from_the_page_of_its_segment() -> None:
    elf = Elf(
        "x",
        0x9000,
        3,
        0,
        (Segment(1, 6, 0x1000, 0x1000, 0x234, 0x234), Segment(1, 5, 0x1240, 0x2240, 0x500, 0x500)),
        (),
        None,
    )
    assert [code_vaddr(elf, at) for at in (0x1000, 0x1240, 0x173F, 0x1740, 0xFFF)] == [
        0x2000,
        0x2240,
        0x273F,
        None,
        None,
    ]


# Limits of bytes and time.


def test_bytes_that_were_refused_are_not_taken() -> None:
    budget = Budget(bytes_left=100)
    with budget.meter(7) as meter:
        meter.take(60, "first")
        with pytest.raises(DataError):
            meter.take(41, "second")
        meter.take(40, "third")
    assert budget.bytes_left == 0 and list(budget.left_out) == [7]


def test_budget_of_a_process_is_separate() -> None:
    budget = Budget()
    budget.meter(7)._payers[1].bytes_left = 10
    with pytest.raises(DataError):
        budget.meter(7).take(11, "own")
    budget.meter(8).take(11, "other")


def test_time_of_a_walk_is_charged_on_request() -> None:
    budget = Budget()
    with budget.meter(7) as meter:
        meter.charge_only(1.25)
    left_s = [payer.seconds_left for payer in budget.meter(7)._payers]
    assert left_s == pytest.approx([20.0 - 1.25, 2.0 - 1.25, 15.0 - 1.25], abs=0.1)
    with pytest.raises(DataError), budget.meter(7) as meter:
        meter.charge_only(1.0)
        meter.take(0, "late")


def test_debug_information_is_held_and_released() -> None:
    budget = DebugBudget(bytes_left=100)
    with budget.holding(70):
        pass
    with pytest.raises(DebugBudgetError), budget.holding(31):
        pass
    budget.release(20)
    with pytest.raises(KeyError), budget.holding(50):
        raise KeyError
    with budget.holding(50):
        pass
    assert budget.bytes_left == 0


# Sources of names.


@pytest.mark.parametrize(
    ("names_from", "debug_from", "functions", "complete"),
    [
        ("symtab", None, 9, True),
        ("dynsym", None, 9, False),
        ("dynsym", "build_id", 9, True),
        ("gopclntab", None, None, True),
        ("gopclntab", None, 9, False),
        ("gnu_debugdata", None, 9, False),
        (None, None, None, False),
    ],
)
def test_files_whose_names_a_debug_file_completes(
    names_from: str | None, debug_from: str | None, functions: int | None, complete: bool
) -> None:
    assert is_complete(names_from, debug_from, functions) is complete


@pytest.mark.parametrize("name", [b"x.debug", b"ab.debug", b"abc.debug", b"abcd.debug"])
def test_debug_link_is_aligned(name: bytes) -> None:
    data = name + b"\0"
    data += bytes(-len(data) % 4) + struct.pack("<I", 0x12345678)
    elf = parse_elf(make([Part(".gnu_debuglink", 1, data)]), "x")
    assert debug_files._read_debuglink(elf) == (name.decode(), 0x12345678)


def test_checksum_covers_the_whole_file(tmp_path: Path) -> None:
    path = tmp_path / "big"
    data = os.urandom(5 << 20)
    path.write_bytes(data)
    with path.open("rb") as file:
        opened = SimpleNamespace(fd=file.fileno(), size_bytes=len(data), stored_bytes=len(data))
        assert debug_files._compute_checksum(opened, 7, Budget()) == zlib.crc32(data)  # type: ignore[arg-type]
        sparse = SimpleNamespace(fd=file.fileno(), size_bytes=len(data), stored_bytes=len(data) // 2 - 1)
        assert debug_files._compute_checksum(sparse, 7, Budget()) is None  # type: ignore[arg-type]


# Names of threads by the keys of performance_schema.


def test_start_functions_have_the_names_of_their_keys() -> None:
    """A key next to one start function, one in a start function, and one function with two keys."""
    text, base = bytearray(b"\x90" * 0x400), 0x78
    keys = {0x5000: b"page_cleaner_thread", 0x5010: b"srv_master_thread", 0x5020: b"signal_handler", 0x5030: b"manager"}

    def refer(at: int, target: int) -> None:
        """Let an operand at this offset name an address relative to its end."""
        text[at : at + 4] = struct.pack("<i", target - (base + at + 4))

    refer(0x20, 0x5000)
    refer(0x30, base + 0x200)  # in the function that starts the thread of 0x200
    refer(0x244, 0x5010)  # in the start function at 0x240 itself
    refer(0x284, 0x5020)
    refer(0x294, 0x5030)
    names = b"\0".join(keys.values()) + b"\0"
    texts_at = base + len(text)
    relocations = b""
    for number, (key, name) in enumerate(keys.items()):
        entry = 0x6000 + 32 * number
        place = texts_at + names.index(name + b"\0")
        relocations += struct.pack("<3Q", entry, 8, key) + struct.pack("<3Q", entry + 8, 8, place)
    parts = [
        Part(".text", 1, bytes(text), 6, vaddr=base),
        Part(".rodata", 1, names, 2, vaddr=texts_at),
        Part(".rela.dyn", 4, relocations, 2, vaddr=0x7000),
    ]
    functions = [base + at for at in (0, 0x200, 0x240, 0x280, 0x300)]
    elf = parse_elf(make(parts), "x")
    assert find_start_names(elf, functions, [base + at for at in (0x200, 0x240, 0x280)]) == {
        base + 0x200: "page_cleaner_thread",
        base + 0x240: "srv_master_thread",
    }
    assert elf.machine is X86_64
