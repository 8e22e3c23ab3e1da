# SPDX-License-Identifier: Apache-2.0
"""Carried programs: numbers are filled in where compilations differ, and what a kernel lacks is left out."""

from __future__ import annotations

import struct

import pytest

from powerprof.tracing.bpf import objects
from powerprof.tracing.bpf.objects import Carried, Compiled, MapPlan, Placeholder, ProgramPlan, fill_carried
from tools.probes.making import DifferentError, places_of

NAMES = ("raw_tracepoint__cpu_idle", "raw_tracepoint__irq_work_entry", "raw_tracepoint__irq_work_exit")


def compiled(offset: int, argument: int, pages: int, *, operation: int = 0x79) -> Compiled:
    """A load of a field, one of an argument, and a map."""
    code = struct.pack("=BBhi", operation, 0x61, offset + 8, 0) + struct.pack("=BBhi", 0x07, 1, 0, 8 * argument)
    plan = MapPlan(name="exits", kind=27, key_bytes=0, value_bytes=0, entries=4096 * pages, flags=0)
    return Compiled(maps=[plan], programs=[ProgramPlan(name=name, code=code) for name in NAMES])


def numbers(offset: int, argument: int, pages: int) -> dict[str, int]:
    return {"OFFSET_a": offset, "ARG_b": argument, "EXIT_PAGES": pages}


TURNS = ((100, 3, 4), (1250, 41, 64), (703, 7, 16))


@pytest.fixture
def an_object() -> Carried:
    places = places_of([compiled(*turn) for turn in TURNS], [numbers(*turn) for turn in TURNS])
    return Carried(name="x", shape={}, numbers=[], compiled=compiled(*TURNS[0]), places=places)


def test_places_are_found_and_filled_with_other_numbers(an_object: Carried) -> None:
    assert an_object.places[:3] == [
        Placeholder(program=-1, at=0, is_offset=False, base=0, terms={"EXIT_PAGES": 4096}),
        Placeholder(program=0, at=0, is_offset=True, base=8, terms={"OFFSET_a": 1}),
        Placeholder(program=0, at=1, is_offset=False, base=0, terms={"ARG_b": 8}),
    ]
    wanted = {**numbers(31, 0, 512), "HAVE_irq_work_entry": 1}
    assert fill_carried(an_object, wanted) == compiled(31, 0, 512)


def test_a_tracepoint_that_is_not_there_takes_its_functions_with_it(an_object: Carried) -> None:
    found = fill_carried(an_object, numbers(1, 2, 3))
    assert [plan.name for plan in found.programs] == [NAMES[0]]


def test_a_number_that_does_not_fit_is_no_program(an_object: Carried) -> None:
    assert fill_carried(an_object, numbers(32767 - 8, 1, 1)) is not None
    assert fill_carried(an_object, numbers(32768 - 8, 1, 1)) is None


def test_compilations_that_differ_in_more_are_refused() -> None:
    told = [numbers(*turn) for turn in TURNS]
    others = [compiled(*TURNS[0]), compiled(*TURNS[1]), compiled(*TURNS[2], operation=0x61)]
    with pytest.raises(DifferentError, match="instruction 0 is another one"):
        places_of(others, told)
    with pytest.raises(DifferentError, match="no sum"):
        places_of([compiled(*TURNS[0]), compiled(*TURNS[1]), compiled(704, 7, 16)], told)


def test_threads_numbers_that_do_not_adjoin_have_no_object() -> None:
    assert objects.are_ids_adjacent({"OFFSET_task_struct_pid": 8, "OFFSET_task_struct_tgid": 12})
    assert not objects.are_ids_adjacent({"OFFSET_task_struct_pid": 8, "OFFSET_task_struct_tgid": 16})
    assert objects.are_ids_adjacent({"FUNCTIONS": 8})
