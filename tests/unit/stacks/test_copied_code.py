# SPDX-License-Identifier: Apache-2.0
"""A hole in a load segment of a file is that file; other memory without a file is generated code."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from powerprof.stacks.copied_code import FilePart, find_neighbours, find_origin
from powerprof.stacks.elf import PF_X, PT_LOAD, Elf, Segment
from powerprof.stacks.image import ProcessImage, _parse_file_part, snapshot
from powerprof.stacks.registers import X86_64
from powerprof.stacks.store import TableStore
from powerprof.stacks.symbolizer import Symbolizer
from powerprof.system.errors import UsageError
from powerprof.tracing.function_places import find_probed, parse_place
from powerprof.tracing.symbols import COPIED, refuse_too_many
from tests.conftest import REPOSITORY

_PAGE = 4096
_STRIPPED = ("-O1", "-s")


def elf_of(*segments: tuple[int, int, int, int]) -> Elf:
    """A file with load segments of (flags, offset, link-time address, bytes)."""
    loads = tuple(Segment(PT_LOAD, flags, offset, vaddr, size, size, _PAGE) for flags, offset, vaddr, size in segments)
    return Elf("file", 1 << 40, 3, 0, loads, (), build_id=None, machine=X86_64)


@given(
    base=st.integers(1, 1 << 20).map(lambda page: page * _PAGE),
    sizes=st.lists(st.integers(1, 9 * _PAGE), min_size=1, max_size=5),
    gaps=st.lists(st.sampled_from([0, 0, _PAGE, 0x200000]), min_size=5, max_size=5),
    code=st.integers(0, 4),
    part=st.integers(0, 4),
    inside=st.tuples(st.integers(0, 8), st.integers(1, 9)),
)
def test_law_of_origins(
    base: int, sizes: list[int], gaps: list[int], code: int, part: int, inside: tuple[int, int]
) -> None:
    """Code within the pages of an executable segment is that file, at its own place. Other memory is not."""
    code, part = code % len(sizes), part % len(sizes)
    segments, offset, vaddr = [], 0, 0
    for number, size in enumerate(sizes):
        segments.append((4 | (PF_X if number == code else 0), offset, vaddr, size))
        pages = -(-size // _PAGE) * _PAGE
        offset, vaddr = offset + pages, vaddr + pages + gaps[number]
    elf = elf_of(*segments)
    _, part_offset, part_vaddr, _ = segments[part]
    near = FilePart(base + part_vaddr, base + part_vaddr + _PAGE, part_offset, "8:1", 5, "/file")
    _, code_offset, code_vaddr, code_size = segments[code]
    pages = -(-code_size // _PAGE)
    first = inside[0] % pages
    count = 1 + inside[1] % (pages - first)
    start = base + code_vaddr + first * _PAGE
    assert find_origin(elf, near, start, start + count * _PAGE) == (base, code_offset + first * _PAGE)
    assert find_origin(elf, near, start, base + code_vaddr + (pages + 1) * _PAGE) is None
    assert find_origin(elf, near, start - (first + 1) * _PAGE, start + _PAGE) is None


def test_neighbours_are_the_files_that_touch_a_hole() -> None:
    lines = [
        "1000-2000 r--p 00000000 08:01 5 /a",
        "2000-3000 r-xp 00000000 00:00 0 ",
        "3000-4000 r-xp 00000000 00:00 0 ",
        "4000-5000 r--p 00003000 08:01 5 /a",
        "5000-6000 rw-p 00000000 00:00 0 [heap]",
        "6000-7000 rwxp 00000000 00:00 0 ",
        "8000-9000 r-xp 00000000 08:01 6 /b",
        "",
    ]
    found = find_neighbours(lines, (0x2000, 0x3000, 0x6000), _parse_file_part)
    assert [[part.start for part in found[start]] for start in (0x2000, 0x3000)] == [[0x1000, 0x4000]] * 2
    assert found[0x6000] == [], "the heap is no file, and /b does not touch it"


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory, compilers: tuple[str, str]) -> Path:
    built = tmp_path_factory.mktemp("copied") / "copied_truth"
    source = REPOSITORY / "tests/programs/copied_truth.c"
    subprocess.run([compilers[0], "-O1", "-g", "-o", str(built), str(source)], check=True)
    subprocess.run([compilers[0], *_STRIPPED, "-o", str(built.with_name("bare")), str(source)], check=True)
    return built


@contextmanager
def running(program: Path, how: str) -> Iterator[ProcessImage]:
    with subprocess.Popen([str(program), how], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None and process.stdout.readline() == "ready\n"
            yield snapshot(process.pid)
        finally:
            process.kill()


def place_of(image: ProcessImage, program: Path, name: str) -> int:
    """Where a function is in the process."""
    words = subprocess.run(["nm", str(program)], capture_output=True, text=True, check=True).stdout.split("\n")
    vaddr = next(int(line.split()[0], 16) for line in words if line.endswith(f" T {name}"))
    mapping = next(one for one in image.mappings if one.path == image.executable)
    return mapping.in_memory(vaddr)


@pytest.mark.parametrize("how", ["none", "all", "part", "memfd"])
def test_copied_code_has_the_names_of_its_file(program: Path, how: str) -> None:
    with running(program, how) as image:
        again = snapshot(image.pid, before=image)
        for one in (image, again):
            at = place_of(one, program, "tick")
            (frame,) = Symbolizer(one, TableStore(use_cache=False)).frames(at + 4)
            assert (frame.function, frame.module) == ("tick", "copied_truth")
            mapping = one.mapping_at(at)
            assert mapping is not None
            assert (mapping.is_copy, mapping.is_file) == (how != "none", True)
            plain = [each for each in one.mappings if each.path == one.executable and not each.is_copy]
            assert bool(plain) == (how in ("none", "part"))
        matched = find_probed(image, "tick", TableStore(use_cache=False))
        assert matched.count == (how == "none")
        if how != "none":
            assert matched.refused == (("tick", COPIED),)
            with pytest.raises(UsageError, match=r"^'tick' cannot be probed .*huge pages"):
                refuse_too_many([matched], "tick", 10)


def test_a_printed_address_is_the_function_that_covers_it(program: Path) -> None:
    bare = program.with_name("bare")
    with running(bare, "none") as image:
        store = TableStore(use_cache=False)
        at = place_of(image, program, "tick")
        # The code is that of the other build, except its names.
        printed = Symbolizer(image, store).frames(at + 4)[0].label
        name, _, address = printed.partition("+0x")
        assert name == "bare"
        for inside in (0, 1, 5):
            matched = find_probed(image, f"bare+{int(address, 16) + inside:#x}", store)
            ((module,), ()) = matched.modules, matched.refused
            (function,) = module.functions
            assert (function.name, function.vaddr, function.has_name) == (printed, int(address, 16), False)
            assert function.vaddr in module.starts
        ((absolute,),) = ([each.functions[0] for each in find_probed(image, f"bare {at:#x}", store).modules],)
        assert absolute.name == printed
        for pattern, why in {
            "bare+0x1": "neither a symbol nor the unwind information",
            "other+0x1149": "no code of a file other",
            "[anonymous]+0x3b8": "no file holds this code",
            "bare 0x10": "not at this address",
        }.items():
            matched = find_probed(image, pattern, store)
            assert matched.count == 0
            with pytest.raises(UsageError, match=why) as refusal:
                refuse_too_many([matched], pattern, 10)
            assert refusal.value.message.startswith(f"'{pattern}' cannot be probed (")


@pytest.mark.parametrize(
    "pattern", ["handle_slave*", "libc.so*:mem*", "ns::name", "a+b", "operator+", "x+0xg", "*+0x1"]
)
def test_patterns_of_names_are_no_addresses(pattern: str) -> None:
    assert parse_place(pattern) is None
