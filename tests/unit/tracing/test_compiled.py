# SPDX-License-Identifier: Apache-2.0
"""A compiled program as data: maps by place, and nothing loaded that is not what was saved."""

from __future__ import annotations

import struct

import pytest

from powerprof.system.errors import DataError
from powerprof.tracing.bpf.objects import (
    Compiled,
    MapPlan,
    ProgramPlan,
    link_maps,
    pack_compiled,
    replace_map_numbers,
    unpack_compiled,
)

LOAD, EXIT = 0x18, 0x95
PLAN = MapPlan(name="causes", kind=1, key_bytes=112, value_bytes=136, entries=8192, flags=0)


def slot(operation: int, registers: int = 0, offset: int = 0, number: int = 0) -> bytes:
    return struct.pack("=BBhi", operation, registers, offset, number)


def code(*maps: int) -> bytes:
    """Loads of maps, of a plain number that looks like one, and the end."""
    loads = b"".join(slot(LOAD, 1 << 4 | 1, 0, number) + slot(0) for number in maps)
    return loads + slot(LOAD, 1, 0, 7) + slot(0) + slot(EXIT)


def test_maps_get_places_and_places_descriptors() -> None:
    assert replace_map_numbers(code(7, 9, 7), {7: 0, 9: 1}) == code(0, 1, 0)
    assert link_maps(replace_map_numbers(code(7, 9, 7), {7: 0, 9: 1}), {0: 31, 1: 4}) == code(31, 4, 31)


def test_what_was_not_created_is_a_number_where_nothing_reaches_it() -> None:
    variable, none = (slot(LOAD, 3 << 4 | 1, 0, number) + slot(0) for number in (53, 0))
    assert link_maps(code(0, 1) + variable + none, {0: 31}) == (
        slot(LOAD, 1 << 4 | 1, 0, 31) + slot(0) + slot(LOAD, 1) + slot(0) + code() + variable + slot(LOAD, 1) + slot(0)
    )


def test_a_map_that_is_not_there_is_refused() -> None:
    with pytest.raises(DataError, match="refers to a map 9"):
        replace_map_numbers(code(7, 9), {7: 0})


def test_what_was_packed_is_what_is_unpacked() -> None:
    whole = Compiled(maps=[PLAN], programs=[ProgramPlan(name="raw_tracepoint__cpu_idle", code=code(0))])
    assert unpack_compiled(pack_compiled(whole)) == whole


@pytest.mark.parametrize("cut", [0, 1, 31, 32, 40])
def test_a_cut_file_is_noticed(cut: int) -> None:
    assert unpack_compiled(pack_compiled(Compiled(maps=[PLAN], programs=[]))[:cut]) is None
