# SPDX-License-Identifier: Apache-2.0
"""Carried programs: numbers are filled in where compilations differ, and what is off is left out."""

from __future__ import annotations

import struct

import pytest

from powerprof.tracing.bpf.carried import Carried, Placeholder, fill_carried
from powerprof.tracing.bpf.objects import Compiled, MapPlan, ProgramPlan, select_programs
from tools.probes.making import DifferentError, places_of

NAMES = (
    "raw_tracepoint__cpu_idle",
    "raw_tracepoint__irq_work_entry__if_HAVE_irq_work_entry",
    "raw_tracepoint__irq_work_exit__if_HAVE_irq_work_entry__if_VECTORS_IN_PAIRS",
)


def compiled(offset: int, argument: int, pages: int, functions: int, *, operation: int = 0x79) -> Compiled:
    """A load of a field, one of an argument, and maps of such a size."""
    code = struct.pack("=BBhi", operation, 0x61, offset + 8, 0) + struct.pack("=BBhi", 0x07, 1, 0, 8 * argument)
    exits = MapPlan(name="exits", kind=27, key_bytes=0, value_bytes=0, entries=4096 * pages, flags=0)
    threads = MapPlan(name="threads", kind=1, key_bytes=4, value_bytes=32 + 2 * functions, entries=8192, flags=0)
    return Compiled(maps=[exits, threads], programs=[ProgramPlan(name=name, code=code) for name in NAMES])


def numbers(offset: int, argument: int, pages: int, functions: int) -> dict[str, int]:
    return {"OFFSET_a": offset, "ARG_b": argument, "EXIT_PAGES": pages, "FUNCTIONS": functions}


TURNS = ((100, 3, 4, 96), (1250, 41, 64, 8), (703, 7, 16, 640))


@pytest.fixture
def an_object() -> Carried:
    places = places_of([compiled(*turn) for turn in TURNS], [numbers(*turn) for turn in TURNS])
    return Carried(name="x", shape={}, numbers=[], compiled=compiled(*TURNS[0]), places=places)


def test_places_are_found_and_filled_with_other_numbers(an_object: Carried) -> None:
    assert an_object.places[:4] == [
        Placeholder(program=-1, at=0, is_offset=False, base=0, terms={"EXIT_PAGES": 4096}),
        Placeholder(program=-2, at=1, is_offset=False, base=32, terms={"FUNCTIONS": 2}),
        Placeholder(program=0, at=0, is_offset=True, base=8, terms={"OFFSET_a": 1}),
        Placeholder(program=0, at=1, is_offset=False, base=0, terms={"ARG_b": 8}),
    ]
    assert fill_carried(an_object, numbers(31, 0, 512, 4)) == compiled(31, 0, 512, 4)


@pytest.mark.parametrize(
    ("have", "pairs", "ends"),
    [
        (0, 0, ["cpu_idle"]),
        (1, 0, ["cpu_idle", "irq_work_entry"]),
        (0, 1, ["cpu_idle"]),
        (1, 1, ["cpu_idle", "irq_work_entry", "irq_work_exit"]),
    ],
)
def test_a_function_is_loaded_only_where_all_its_conditions_are_met(
    an_object: Carried, have: int, pairs: int, ends: list[str]
) -> None:
    """Under its name without them; a condition that is not defined is not met."""
    definitions = {"VECTORS_IN_PAIRS": pairs, **({"HAVE_irq_work_entry": 1} if have else {})}
    found = select_programs(an_object.compiled, definitions)
    assert [plan.name for plan in found] == [f"raw_tracepoint__{end}" for end in ends]
    assert [plan.code for plan in found] == [plan.code for plan in an_object.compiled.programs[: len(ends)]]


def test_a_number_that_does_not_fit_is_no_program(an_object: Carried) -> None:
    assert fill_carried(an_object, numbers(32767 - 8, 1, 1, 4)) is not None
    assert fill_carried(an_object, numbers(32768 - 8, 1, 1, 4)) is None


def test_compilations_that_differ_in_more_are_refused() -> None:
    told = [numbers(*turn) for turn in TURNS]
    others = [compiled(*TURNS[0]), compiled(*TURNS[1]), compiled(*TURNS[2], operation=0x61)]
    with pytest.raises(DifferentError, match="instruction 0 is another one"):
        places_of(others, told)
    with pytest.raises(DifferentError, match="no sum"):
        places_of([compiled(*TURNS[0]), compiled(*TURNS[1]), compiled(704, *TURNS[2][1:])], told)
