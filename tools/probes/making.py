# SPDX-License-Identifier: Apache-2.0
"""One object: the program is compiled with three sets of numbers; where the results differ, numbers are filled in.

Each such place has to be the same sum of definitions in all three, and all else equal: else the shape cannot be
carried.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Container, Mapping, Sequence

import msgspec

from powerprof.tracing.bpf import carried, compiled_cache
from powerprof.tracing.bpf.carried import Carried, Placeholder
from powerprof.tracing.bpf.objects import Compiled, MapPlan, ProgramPlan
from tools.probes.shapes import Definitions, Shape

_SLOT = struct.Struct("=BBhi")
# Multiples that instructions hold; a size of a table is any multiple.
_FACTORS = frozenset((1, 8, -1, 4, -4, -8))
# What a number may be for the compiler's sake; offsets are below 2¹⁵, two of them too.
_RANGES: Mapping[str, tuple[int, int]] = {
    "ARG": (3, 900),
    "NR_CPUS": (65, 900),
    "GROUP_CPUS": (2, 63),
    "CPU_GROUPS": (2, 900),
    "CAUSE_SLOTS": (1000, 60000),
    "PT_REGS_BYTES": (100, 300),
    "PREEMPT_COUNT": (20000, 200000),
    "THREADS": (1000, 60000),
    "ENDED_KEPT": (1000, 60000),
    # Tables are so many times as large.
    **dict.fromkeys(("STACKS", "TARGET_ALL", "GROWS", "HAS_SEND", "SAMPLES", "NAMES_FUNCTIONS"), (2, 16)),
}
_CHOICES: Mapping[str, Sequence[int]] = {
    **dict.fromkeys(("EXIT_PAGES", "STACK_PAGES"), (2, 4, 8, 16, 32, 64, 128, 256, 512)),
    "FUNCTIONS": range(4, 1024, 4),  # numbers of two bytes at the end of a struct
}


def numbered(definitions: Definitions, turn: int) -> Definitions:
    """The definitions with other numbers, the same ones for the same `turn`."""
    chosen: Definitions = {}
    for name in carried.select_numbers(definitions):
        pick = random.Random(f"{turn} {name}")
        if name in _CHOICES:
            chosen[name] = pick.choice(_CHOICES[name])
        else:
            low, high = _RANGES.get(name, _RANGES["ARG"] if name.startswith("ARG_") else (300, 12000))
            chosen[name] = pick.randint(low, high)
    return {**definitions, **chosen}


class DifferentError(Exception):
    """Two compilations differ in more than numbers."""


def _solved(
    numbers: Sequence[Mapping[str, int]], values: Sequence[int], factors: Container[int] | None = _FACTORS
) -> tuple[int, dict[str, int]]:
    """Base and terms of a number that is `values` where the definitions are `numbers`.

    `factors`: those that may be, None: any that is positive.
    """
    names = list(numbers[0])
    steps = [value - values[0] for value in values[1:]]

    def stepped(name: str) -> list[int]:
        return [other[name] - numbers[0][name] for other in numbers[1:]]

    found: list[dict[str, int]] = []
    for name in names:
        of_name = stepped(name)
        factor = steps[0] // of_name[0] if of_name[0] else 0
        is_allowed = factor > 0 if factors is None else factor in factors
        if is_allowed and [factor * step for step in of_name] == steps:
            found.append({name: factor})
    if not found:
        for place, one in enumerate(names):
            for other in names[place + 1 :]:
                if [a + b for a, b in zip(stepped(one), stepped(other), strict=True)] == steps:
                    found.append({one: 1, other: 1})
    if len(found) != 1:
        raise DifferentError(f"{values} is {'no sum' if not found else 'more than one sum'} of definitions: {found}")
    return values[0] - sum(factor * numbers[0][name] for name, factor in found[0].items()), found[0]


def _without_numbers(plan: MapPlan) -> MapPlan:
    return msgspec.structs.replace(plan, entries=0, value_bytes=0)


def _program_places(
    program: int, plans: Sequence[ProgramPlan], numbers: Sequence[Mapping[str, int]]
) -> list[Placeholder]:
    places = []
    if len({(plan.name, len(plan.code)) for plan in plans}) != 1:
        raise DifferentError(f"{[(plan.name, len(plan.code)) for plan in plans]}")
    for at in range(len(plans[0].code) // _SLOT.size):
        slots = [_SLOT.unpack_from(plan.code, at * _SLOT.size) for plan in plans]
        if len({slot[:2] for slot in slots}) != 1:
            raise DifferentError(f"{plans[0].name}: instruction {at} is another one: {slots}")
        for part, is_offset in ((2, True), (3, False)):
            values = [slot[part] for slot in slots]
            if len(set(values)) > 1:
                try:
                    base, terms = _solved(numbers, values)
                except DifferentError as error:
                    raise DifferentError(f"{plans[0].name}: instruction {at}: {error}") from None
                places.append(Placeholder(program=program, at=at, is_offset=is_offset, base=base, terms=terms))
    return places


def places_of(compiled: Sequence[Compiled], numbers: Sequence[Mapping[str, int]]) -> list[Placeholder]:
    """Where the results of compilations with these numbers differ, and by what. Raises DifferentError."""
    places = []
    if len({tuple(map(_without_numbers, one.maps)) for one in compiled}) != 1:
        raise DifferentError("the maps differ")
    if len({tuple(plan.name for plan in one.programs) for one in compiled}) != 1:
        raise DifferentError("the functions differ")
    for number in range(len(compiled[0].maps)):
        for part, attribute in ((-1, "entries"), (-2, "value_bytes")):
            sizes = [getattr(one.maps[number], attribute) for one in compiled]
            if len(set(sizes)) > 1:
                base, terms = _solved(numbers, sizes, None)
                places.append(Placeholder(program=part, at=number, is_offset=False, base=base, terms=terms))
    for number in range(len(compiled[0].programs)):
        places += _program_places(number, [one.programs[number] for one in compiled], numbers)
    return places


def compiled_with(shape: Shape, turn: int) -> tuple[Definitions, Compiled]:
    """The program with the numbers of this turn."""
    definitions = numbered(shape.definitions, turn)
    return definitions, compiled_cache.find_compiled(shape.name, definitions, cached=False)


def made(shape: Shape) -> Carried:
    """The object. Raises DifferentError where the shape cannot be carried, PowerprofError where bcc cannot."""
    turns = [compiled_with(shape, turn) for turn in range(3)]
    numbers = [carried.select_numbers(definitions) for definitions, _ in turns]
    return Carried(
        name=shape.name,
        shape=carried.select_shape(shape.definitions),
        numbers=sorted(numbers[0]),
        compiled=turns[0][1],
        places=places_of([compiled for _, compiled in turns], numbers),
    )


def differs(shape: Shape, found: Carried) -> bool:
    """Whether the program, filled with numbers that it was not made with, is another than bcc makes of them."""
    definitions, compiled = compiled_with(shape, 3)
    return carried.fill_carried(found, definitions) != compiled
