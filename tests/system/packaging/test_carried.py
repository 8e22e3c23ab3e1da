# SPDX-License-Identifier: Apache-2.0
"""The compiled programs that powerprof carries are those of the sources as they are; nothing is compiled to know it."""

from __future__ import annotations

from pathlib import Path

import pytest

from powerprof.tracing.bpf import carried, objects
from tools.probes.shapes import MACHINES, Shape, all_shapes, shapes

_MOST_FILES, _MOST_BYTES = 25, 350_000
Wanted = dict[str, Shape]


@pytest.fixture(scope="module")
def wanted() -> Wanted:
    return all_shapes()


def test_each_shape_has_its_object_and_no_object_is_left_over(wanted: Wanted) -> None:
    files = list(carried.objects_folder().iterdir())
    there = {path.name for path in files}
    missing = [str(shape) for file, shape in wanted.items() if file not in there]
    assert not missing, "a source or a definition changed: make probes"
    assert there == set(wanted), "objects of no shape: make probes"
    assert len(files) <= _MOST_FILES
    assert sum(path.stat().st_size for path in files) <= _MOST_BYTES
    assert set(wanted) == {file for machine in MACHINES for file in shapes(machine)}


def test_each_object_is_whole_and_filled_by_its_own_definitions(wanted: Wanted) -> None:
    for file, shape in wanted.items():
        found = carried.read_carried(file)
        assert found is not None, file
        assert (found.name, found.shape) == (shape.name, carried.select_shape(shape.definitions))
        assert found.numbers == sorted(carried.select_numbers(shape.definitions))
        filled = carried.fill_carried(found, shape.definitions)
        assert filled is not None
        assert [plan.name for plan in filled.programs] == [plan.name for plan in found.compiled.programs]


def test_each_condition_of_a_function_is_a_number_of_its_program(wanted: Wanted) -> None:
    conditions = [
        (shape, condition)
        for file, shape in wanted.items()
        for plan in carried.read_carried(file).compiled.programs
        for condition in plan.name.split("__if_")[1:]
    ]
    assert len(conditions) > 50
    assert not [
        (str(shape), name) for shape, name in conditions if name not in carried.select_numbers(shape.definitions)
    ]


def test_another_source_is_another_object_and_a_comment_is_none() -> None:
    source, definitions = objects.read_source("idle.bpf.c"), {"STACKS": 0, "OFFSET_task_struct_pid": 8}

    def named(text: str = source, **other: int) -> str:
        return carried.object_name("idle.bpf.c", text, {**definitions, **other})

    assert named(source + "/* said otherwise */\n\n") == named(OFFSET_task_struct_pid=12) == named(STACKS=1)
    others = {named(source + "int more;\n"), named(DIRECT=1), named(OFFSET_task_struct_tgid=12)}
    assert len(others | {named()}) == 4


def test_a_damaged_object_is_none(tmp_path: Path, wanted: Wanted) -> None:
    file = next(iter(wanted))
    whole = (carried.objects_folder() / file).read_bytes()
    for damage in (b"", b"junk", whole[:-1], whole[:40] + bytes([whole[40] ^ 1]) + whole[41:]):
        (tmp_path / file).write_bytes(damage)
        assert carried.read_carried(file, tmp_path) is None
    assert carried.read_carried("idle-0", tmp_path) is None
