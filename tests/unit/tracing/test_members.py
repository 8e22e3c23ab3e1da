# SPDX-License-Identifier: Apache-2.0
"""Who is of a target that grows, whenever the others are started."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from powerprof.stacks.image import ProcessGoneError, ProcessImage
from powerprof.stacks.registers import X86_64
from powerprof.system.targets import Target
from powerprof.tracing import idle_stacks
from powerprof.tracing.bpf.shared_numbers import Count, Shared
from powerprof.tracing.idle_data import WOKEN
from powerprof.tracing.idle_stacks import DemandStacks, JoinedProcesses, TargetMembers, WindowStacks, keep_every_program
from tests.unit.tracing.programs import FakeProgram


class Tables(FakeProgram):
    """The program's tables. `told`: child and parent of whom the kernel tells at the next look."""

    @property
    def targets(self) -> set[int]:
        return {int.from_bytes(key, "little") for key in self.hashes.get("targets", {})}

    def tell(self, told: dict[int, int]) -> None:
        pairs = ((child.to_bytes(4, "little"), parent.to_bytes(4, "little")) for child, parent in told.items())
        self.hashes["new_processes"] = dict(pairs)


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
    with closing(TargetMembers(tables.as_loaded(), target, JoinedProcesses(target), keep_every_program)) as found:
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
    assert tables.targets == set(looked.images) == {10, 11, 12, 13}
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
    tables.tell({11: 10})
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
    group.start(12)
    group.start(13)
    looked.read()
    assert looked.notes()[0].startswith("3 processes ")


def test_a_child_has_the_latest_memory_of_its_parent() -> None:
    """The parent executed another program before it started a child. Of a child of a child only its parent is known."""
    tables = Tables()
    tables.tell({11: 10, 12: 11, 14: 13})
    target = Target((10,), "group", roots=(10,))
    joining = JoinedProcesses(target)
    images = {
        10: [
            ProcessImage(pid=10, started_ticks=1, executable="/bin/first", mappings=()),
            ProcessImage(pid=10, started_ticks=1, executable="/bin/second", mappings=()),
        ]
    }
    joined = joining.take(tables.as_loaded(), images)
    assert {pid: [(each.pid, each.executable) for each in found] for pid, found in joined.items()} == {
        11: [(11, "/bin/second")],
        12: [(12, "/bin/second")],
    }
    assert joining.children == {11, 12}


def stack_reader(kind: type[Any]) -> tuple[Any, FakeProgram]:
    """Return a reader whose counters grow by 11 to 18."""
    before = list(range(100, 100 + len(Count)))
    program = FakeProgram(counters={"counters": before})
    members = SimpleNamespace(
        images={},
        note_unjoined=lambda count: None,
        exited_cgroups=lambda: {},
        add=lambda pids: None,
        drop_ended=lambda: None,
        read=lambda: None,
    )
    reader = kind(
        program.as_loaded(),
        members,
        X86_64,
        direct=False,
        take_wakings=lambda: np.zeros(0, dtype=WOKEN),
        drain=lambda: None,
    )
    program.put("shared", int(Shared.REGS_OFFSET), (0).to_bytes(8, "little"))
    program.counters["counters"] = [value + 11 + number for number, value in enumerate(before)]
    return reader, program


def test_losses_of_stacks_are_those_of_the_window() -> None:
    reader, program = stack_reader(WindowStacks)
    program.hashes["shared"] = {}
    program.get = lambda name, which: (0).to_bytes(8, "little")  # type: ignore[method-assign]
    reader.read()
    trace = reader.collect()
    assert (trace.lost_count, trace.loaded_count, trace.unsent_count, trace.uncounted_count) == tuple(
        11 + count for count in (Count.LOST_STACKS, Count.LOADED, Count.UNSENT, Count.LOST_WAKINGS)
    )
    assert not trace.registers_found  # threads slept, and no registers were found
    reader.read()
    later = reader.collect()
    assert (later.lost_count, later.loaded_count, later.registers_found) == (0, 0, True)


def test_intervals_of_a_monitor_follow_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    reader, program = stack_reader(DemandStacks)
    program.get = lambda name, which: (7).to_bytes(8, "little")  # type: ignore[method-assign]
    clock = iter([1_000, 2_500, 4_700])
    monkeypatch.setattr(idle_stacks, "time", SimpleNamespace(monotonic_ns=lambda: next(clock)))
    reader._counted_from_ns = 400
    spans = []
    for _ in range(3):
        reader.read()
        trace = reader.collect()
        spans.append((trace.counted_from_ns, trace.counted_to_ns))
    assert spans == [(400, 1_000), (1_000, 2_500), (2_500, 4_700)]
