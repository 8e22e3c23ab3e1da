# SPDX-License-Identifier: Apache-2.0
"""Large compressed sections: any place of them reads like the whole section, within a few MiB of memory."""

from __future__ import annotations

import os
import random
import struct
import tracemalloc
import zlib

import pytest

from powerprof.stacks.compressed_section import CompressedSection
from powerprof.stacks.elf import SHF_COMPRESSED, Elf, Section
from powerprof.stacks.time_budget import DebugBudget, DebugBudgetError
from powerprof.system.errors import DataError

_SIZE = (21 << 20) + 12_345


def _plain(seed: int) -> bytes:
    """Return bytes of which a part repeats and a part does not."""
    draw = random.Random(seed)
    noise = draw.randbytes(1 << 20)
    return b"".join(draw.choice((noise, b"abc" * 400_000)) for _ in range(24))[:_SIZE].ljust(_SIZE, b"x")


def _open(packed: bytes, size: int, budget: DebugBudget) -> CompressedSection:
    data = b"before" + struct.pack("<IIQQ", 1, 0, size, 1) + packed + b"after"
    section = Section(".debug_info", 1, SHF_COMPRESSED, 0, 6, len(data) - 11, 0, 0)
    return CompressedSection(Elf("file", len(data), 0, 0, (), (section,), None, -1, data), section, size, budget)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("level", [1, 9])
def test_any_place_reads_like_the_whole_section(seed: int, level: int) -> None:
    plain, draw, budget = _plain(seed), random.Random(seed), DebugBudget()
    section = _open(zlib.compress(plain, level), len(plain), budget)
    assert section.size == len(plain)
    for _ in range(60):
        at, most = draw.randrange(len(plain)), draw.choice((1, 40, 5000, 3 << 20))
        assert section.read(at, most) == plain[at : at + most]
    assert section.read(len(plain) - 3, 99) == plain[-3:]
    assert section.read(len(plain) + 5, 99) == b""
    assert budget.bytes_left < DebugBudget().bytes_left
    section.release()
    assert budget.bytes_left == DebugBudget().bytes_left


def test_a_large_section_takes_a_few_mib() -> None:
    """The bytes of a section of 300 MiB are never held at once."""
    worker = zlib.compressobj(1)
    packed = b"".join(worker.compress(os.urandom(64) * (1 << 14)) for _ in range(300)) + worker.flush()
    section = _open(packed, 300 << 20, DebugBudget())
    tracemalloc.start()
    try:
        assert [len(section.read(at << 20, 100)) for at in (299, 0, 150, 298, 7)] == [100] * 5
        assert tracemalloc.get_traced_memory()[1] < 40 << 20
    finally:
        tracemalloc.stop()


def test_damaged_and_endless_sections_are_refused() -> None:
    plain = _plain(5)
    packed = zlib.compress(plain, 6)
    broken = packed[: len(packed) // 2] + b"\xff" * 64 + packed[len(packed) // 2 + 64 :]
    with pytest.raises(DataError, match=r"\.debug_info cannot be decompressed"):
        _open(broken, len(plain), DebugBudget()).read(len(plain) - 10, 10)
    with pytest.raises(DataError, match=r"cannot be decompressed \(it ends early\)"):
        _open(packed, len(plain) + (5 << 20), DebugBudget()).read(len(plain) + (4 << 20), 10)
    with pytest.raises(DataError, match="larger than 512 MiB"):
        _open(packed, 1 << 40, DebugBudget())
    with pytest.raises(DebugBudgetError):
        _open(packed, 400 << 20, DebugBudget(bytes_left=8 << 20))
