# SPDX-License-Identifier: Apache-2.0
"""Who is of a target that grows, whenever the others are started."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, cast

import pytest

from powerprof.stacks.image import ProcessGoneError, ProcessImage
from powerprof.system.targets import Target
from powerprof.tracing import idle_stacks
from powerprof.tracing.bpf.loaded import LoadedProgram
from powerprof.tracing.idle_stacks import JoinedProcesses, TargetMembers, keep_every_program


class Tables:
    """The program's tables, without a program. `told`: child and parent of whom the kernel tells at the next look."""

    def __init__(self) -> None:
        self.targets, self.told = dict[int, bytes](), dict[int, int]()

    def slots(self, name: str) -> int:
        return 100

    def put(self, name: str, key: int, value: bytes) -> None:
        if name == "targets":
            self.targets[key] = value

    def hash_bytes(self, name: str) -> tuple[bytes, bytes]:
        keys, values = (b"".join(pid.to_bytes(4, "little") for pid in pids) for pids in (self.told, self.told.values()))
        return keys, values

    def delete(self, name: str, keys: bytes) -> None:
        if name == "joined":
            self.told.clear()


class Group:
    """A control group of which processes come and go while they are looked at."""

    def __init__(self, folder: Path, *pids: int) -> None:
        self.folder, self.pids, self.gone, self.looked_at = folder, list(pids), set[int](), list[int]()
        self.at_look: Callable[[int], None] = lambda pid: None
        self.write()

    def write(self) -> None:
        (self.folder / "cgroup.procs").write_text("".join(f"{pid}\n" for pid in self.pids))

    def start(self, pid: int) -> None:
        self.pids.append(pid)
        self.write()

    def snapshot(self, pid: int, *rest: object, **more: object) -> ProcessImage:
        self.looked_at.append(pid)
        self.at_look(pid)
        if pid in self.gone:
            raise ProcessGoneError(f"process {pid} is gone")
        return ProcessImage(pid=pid, started_ticks=pid, executable="/bin/program", mappings=())


@pytest.fixture
def group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Group:
    found = Group(tmp_path, 10)
    monkeypatch.setattr(idle_stacks, "snapshot", found.snapshot)
    return found


@pytest.fixture
def tables() -> Tables:
    return Tables()


@pytest.fixture
def looked(group: Group, tables: Tables) -> Iterator[TargetMembers]:
    target = Target((10,), "group", cgroup=group.folder)
    program = cast(LoadedProgram, cast(Any, tables))
    with closing(TargetMembers(program, target, JoinedProcesses(target), keep_every_program)) as found:
        yield found


def test_who_is_started_while_the_target_is_looked_at_is_a_member(
    group: Group, tables: Tables, looked: TargetMembers
) -> None:
    """Until a process is in the kernel's table, the kernel does not tell of its children."""

    def each_starts_one(pid: int) -> None:
        if pid < 13:
            group.start(pid + 1)

    group.at_look = each_starts_one
    looked.add_all()
    looked.prepare()
    assert set(tables.targets) == set(looked.images) == {10, 11, 12, 13}
    assert looked.notes() == []


def test_the_look_for_more_ends_where_all_that_are_left_are_gone(group: Group, looked: TargetMembers) -> None:
    looked.add_all()
    group.start(11)
    group.gone = {11}
    looked.prepare()
    assert group.looked_at == [10, 11]
    assert set(looked.images) == {10}


def test_the_look_for_more_ends_where_each_starts_others_for_ever(group: Group, looked: TargetMembers) -> None:
    group.at_look = lambda pid: group.start(pid + 1)
    looked.prepare()
    assert len(group.looked_at) < 20


def test_who_the_kernel_tells_of_is_not_late(group: Group, tables: Tables, looked: TargetMembers) -> None:
    looked.add_all()
    looked.prepare()
    group.start(11)
    tables.told = {11: 10}
    looked.read()
    assert set(looked.images) == {10, 11}
    assert group.looked_at == [10]
    assert looked.notes() == []


def test_who_came_by_itself_is_late(group: Group, looked: TargetMembers) -> None:
    looked.add_all()
    looked.prepare()
    group.start(11)
    looked.read()
    assert looked.notes() == [
        "1 process joined the target without being started by it: wake-ups before they were found "
        "are not in the figures"
    ]
