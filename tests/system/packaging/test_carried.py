# SPDX-License-Identifier: Apache-2.0
"""The compiled programs that powerprof carries are those of the sources as they are; nothing is compiled to know it."""

from __future__ import annotations

from pathlib import Path

import pytest

from powerprof.stacks.registers import Machine
from powerprof.tracing.bpf import objects
from tools.probes.shapes import MACHINES, Shape, file_of, shapes

_MOST_BYTES = 1_500_000
Wanted = dict[str, Shape]


@pytest.fixture(scope="module", params=MACHINES, ids=lambda machine: machine.name)
def machine(request: pytest.FixtureRequest) -> Machine:
    found: Machine = request.param
    return found


@pytest.fixture(scope="module")
def wanted(machine: Machine) -> Wanted:
    return {file_of(shape): shape for shape in shapes(machine)}


def test_each_shape_has_its_object_and_no_object_is_left_over(machine: Machine, wanted: Wanted) -> None:
    files = list(objects.objects_folder(machine.name).iterdir())
    there = {path.name for path in files}
    missing = [str(shape) for file, shape in wanted.items() if file not in there]
    assert not missing, "a source or a definition changed: make probes"
    assert there == set(wanted), "objects of no shape: make probes"
    assert sum(path.stat().st_size for path in files) < _MOST_BYTES


def test_each_object_is_whole_and_filled_by_its_own_definitions(machine: Machine, wanted: Wanted) -> None:
    for file, shape in wanted.items():
        found = objects.read_carried(file, objects.objects_folder(machine.name))
        assert found is not None, file
        assert (found.name, found.shape) == (shape.name, objects.select_shape(shape.definitions))
        assert found.numbers == sorted(objects.select_numbers(shape.definitions))
        filled = objects.fill_carried(found, shape.definitions)
        assert filled is not None
        assert [plan.name for plan in filled.programs] == [plan.name for plan in found.compiled.programs]


def test_another_source_is_another_object_and_a_comment_is_none() -> None:
    source, definitions = objects.read_source("idle.bpf.c"), {"STACKS": 0, "OFFSET_task_struct_pid": 8}

    def named(text: str = source, **other: int) -> str:
        return objects.object_name("idle.bpf.c", text, {**definitions, **other})

    assert named(source + "/* said otherwise */\n\n") == named(OFFSET_task_struct_pid=12) == named(HAVE_ipi_entry=1)
    others = {named(source + "int more;\n"), named(STACKS=1), named(DIRECT=1), named(OFFSET_task_struct_tgid=12)}
    assert len(others | {named()}) == 5


def test_a_damaged_object_is_none(tmp_path: Path, machine: Machine, wanted: Wanted) -> None:
    file = next(iter(wanted))
    whole = (objects.objects_folder(machine.name) / file).read_bytes()
    for damage in (b"", b"junk", whole[:-1], whole[:40] + bytes([whole[40] ^ 1]) + whole[41:]):
        (tmp_path / file).write_bytes(damage)
        assert objects.read_carried(file, tmp_path) is None
    assert objects.read_carried("idle-0", tmp_path) is None
