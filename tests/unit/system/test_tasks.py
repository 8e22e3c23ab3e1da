# SPDX-License-Identifier: Apache-2.0
"""Who a thread was when it was traced, whoever has its number now."""

from __future__ import annotations

from pathlib import Path

import pytest

from powerprof.system.tasks import ENDED, Task, look_up, restore_traced

KERNEL, USER = 0x00208040, 0x00400000


@pytest.fixture
def proc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("POWERPROF_PROCFS", str(tmp_path))
    return tmp_path


def alive(proc: Path, tid: int, comm: str, flags: int = USER, tgid: int | None = None) -> None:
    folder = proc / str(tid)
    folder.mkdir()
    (folder / "stat").write_text(f"{tid} ({comm}) S 1 1 1 0 -1 {flags}{' 0' * 30}")
    (folder / "comm").write_text(f"{comm}\n")
    (folder / "status").write_text(f"Name:\t{comm}\nTgid:\t{tgid or tid}\n")


@pytest.mark.parametrize("is_kernel", [False, True])
@pytest.mark.parametrize("tid", [77, ENDED + 5])
def test_a_thread_that_ended_is_the_kernel_s_where_its_flags_said_so(proc: Path, tid: int, is_kernel: bool) -> None:
    """Not by its name, which any program may choose."""
    task = look_up(tid, tid, "kworker/0:1-x", is_kernel)
    assert (task.is_kernel, task.process) == (is_kernel, "kernel" if is_kernel else "kworker/0:1-x")


def test_of_a_thread_that_nothing_was_told_of_it_is_not_said_to_be_the_kernel_s(proc: Path) -> None:
    assert look_up(77, 77, "kworker/0:1-x") == Task(77, 77, "kworker/0:1-x", "kworker/0:1-x", False)


def test_a_number_that_is_another_s_now_is_told_as_it_was(proc: Path) -> None:
    alive(proc, 77, "later")
    alive(proc, 78, "kworker/1:2", KERNEL)
    assert look_up(77, 77, "earlier", False) == Task(77, 77, "earlier", "earlier", False)
    assert look_up(77, 77, "kworker/1:2", True) == Task(77, 77, "kworker/1:2", "kernel", True)
    assert look_up(78, 78, "kworker/1:2", False) == Task(78, 78, "kworker/1:2", "kworker/1:2", False)
    assert look_up(78, 78, "kworker/1:2", True) == Task(78, 78, "kworker/1:2", "kernel", True)


def test_a_thread_that_lives_has_its_process_s_name(proc: Path) -> None:
    alive(proc, 100, "server")
    alive(proc, 101, "worker", tgid=100)
    assert look_up(101, 100, "worker", False) == Task(101, 100, "worker", "server", False)
    assert look_up(101) == Task(101, 100, "worker", "server", False)


def test_of_two_that_had_one_number_each_has_its_own_name() -> None:
    last = Task(77, 77, "later", "later", False)
    assert restore_traced(last, 77, "later", False) is last
    assert restore_traced(last, 77, "earlier", False) == Task(77, 77, "earlier", "earlier", False)
    assert restore_traced(Task(101, 100, "b", "server", False), 100, "a", False) == Task(101, 100, "a", "server", False)
    assert restore_traced(Task(101, 100, "b", "server", False), 60, "a", False) == Task(101, 60, "a", "a", False)
    assert restore_traced(last, 77, "", False) is last
