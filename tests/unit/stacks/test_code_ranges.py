# SPDX-License-Identifier: Apache-2.0
"""The two ranges of a process's code, by which words on a stack count as part of its call path."""

from __future__ import annotations

import random

import pytest

from powerprof.stacks.image import Mapping, ProcessImage, find_code_ranges

Maps = list[tuple[int, int, str]]


def image_of(maps: Maps, executable: str = "/usr/bin/node") -> ProcessImage:
    mappings = tuple(
        Mapping(start=start, end=end, offset=0, path=path, device="08:01", inode=7 if path.startswith("/") else 0)
        for start, end, path in sorted(maps)
    )
    return ProcessImage(pid=9, started_ticks=1, executable=executable, mappings=mappings)


def contains(ranges: tuple[int, int, int, int], address: int) -> bool:
    return any(start <= address < start + size for start, size in (ranges[:2], ranges[2:]))


LIBC = (0x7F3F6ED64000, 0x7F3F6EEBA000, "/usr/lib/libc.so.6")
VDSO = (0x7FFC12345000, 0x7FFC12347000, "[vdso]")
# Node 20: V8 maps its built-in functions a second time, near the libraries and its JIT code.
NODE: Maps = [
    (0xB6F000, 0x2601000, "/usr/bin/node"),
    (0x7F3F48003000, 0x7F3F4803F000, ""),
    (0x7F3F67E40000, 0x7F3F67FD2000, "/usr/bin/node"),
    LIBC,
    VDSO,
]
PIE: Maps = [(0x55D4A0001000, 0x55D4A0100000, "/usr/bin/node"), LIBC, VDSO]
JAVA: Maps = [
    (0x55D4A0001000, 0x55D4A0002000, "/usr/bin/java"),
    (0x7F3F50000000, 0x7F3F50270000, ""),
    (0x7F3F6A000000, 0x7F3F6B000000, "/usr/lib/libjvm.so"),
    LIBC,
    VDSO,
]
GO: Maps = [(0x401000, 0x900000, "/usr/bin/go"), VDSO]
NO_RANDOM_ADDRESSES: Maps = [
    (0x555555554000, 0x555555600000, "/usr/bin/node"),
    (0x7FFFF7D00000, 0x7FFFF7F00000, LIBC[2]),
    (0x7FFFF7FC0000, 0x7FFFF7FC2000, "[vdso]"),
]
BY_LOADER: Maps = [(0x7F3F6E000000, 0x7F3F6E100000, "/usr/bin/node"), LIBC, VDSO]
NAMED_JIT: Maps = [(0x7F3F48003000, 0x7F3F4803F000, "[anon:v8]"), *PIE]
OLD_X86: Maps = [*PIE, (0xFFFFFFFFFF600000, 0xFFFFFFFFFF601000, "[vsyscall]")]
ALL = {
    "node": NODE,
    "pie": PIE,
    "java": JAVA,
    "go": GO,
    "no random addresses": NO_RANDOM_ADDRESSES,
    "started by the loader": BY_LOADER,
    "named JIT code": NAMED_JIT,
    "vsyscall": OLD_X86,
}


@pytest.mark.parametrize("name", ALL)
def test_all_code_is_inside_and_data_is_not(name: str) -> None:
    ranges = find_code_ranges(image_of(ALL[name]))
    for start, end, path in ALL[name]:
        assert contains(ranges, start) == contains(ranges, end - 1) == (path not in ("[vdso]", "[vsyscall]"))
    heap, v8_heap, stack = 0x40AFD000, 0x36384F640000, 0x7FFC30000000
    if name != "go":
        assert not contains(ranges, heap)
    assert not contains(ranges, v8_heap)
    assert not contains(ranges, stack)
    assert all(0 <= figure < 1 << 63 for figure in ranges)


def test_a_process_without_code_has_no_range() -> None:
    assert find_code_ranges(image_of([])) == find_code_ranges(image_of([VDSO])) == (0, 0, 0, 0)


def test_ranges_of_drawn_processes_are_the_narrowest() -> None:
    drawn = random.Random(3)
    for _ in range(300):
        starts = sorted(drawn.sample(range(1, 1 << 30), drawn.randint(2, 12)))
        maps = [(start << 16, (start << 16) + 0x1000 * drawn.randint(1, 16), "/lib/x") for start in starts]
        ranges = find_code_ranges(image_of(maps))
        assert all(contains(ranges, start) and contains(ranges, end - 1) for start, end, _ in maps)
        narrowest = min(maps[at - 1][1] - maps[0][0] + maps[-1][1] - maps[at][0] for at in range(1, len(maps)))
        assert ranges[1] + ranges[3] == narrowest
