# SPDX-License-Identifier: Apache-2.0
"""Process ids in pid namespaces."""

from __future__ import annotations

import os
from contextlib import nullcontext
from pathlib import Path

import pytest

from powerprof.system import pid_namespaces
from powerprof.system.errors import CapabilityError
from powerprof.system.paths import procfs
from tests.conftest import Tree


@pytest.mark.parametrize(("number", "is_inside"), [(0xEFFFFFFC, False), (0xEFFFFFFD, True), (None, False)])
def test_a_pid_namespace_has_its_own_number(
    fake_tree: Tree, monkeypatch: pytest.MonkeyPatch, number: int | None, is_inside: bool
) -> None:
    fake_tree({"proc/self/ns/pid": ""} if number else {})
    real = Path.stat

    def stat(path: Path) -> os.stat_result:
        fields = list(real(path))
        fields[1] = number
        return os.stat_result(fields)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "stat", stat)
        assert pid_namespaces.is_in_pid_namespace() is is_inside
        assert pid_namespaces.nested_pid_namespace() == (number if is_inside else None)


@pytest.mark.parametrize(("ahead", "refusal"), [(0, None), (1, "another pid namespace")])
def test_proc_of_another_pid_namespace_is_refused(
    fake_tree: Tree, monkeypatch: pytest.MonkeyPatch, ahead: int, refusal: str | None
) -> None:
    shown = os.getpid() + ahead
    fake_tree({f"proc/{shown}/stat": ""})
    (procfs() / "self").symlink_to(str(shown))
    monkeypatch.setattr(pid_namespaces, "nested_pid_namespace", lambda: 0xEFFFFFFD)
    with pytest.raises(CapabilityError, match=refusal) if refusal else nullcontext():
        pid_namespaces.check_process_ids()


def add_container_thread(procfs: Path, tid: int, status: str) -> None:
    folder = procfs / "4711/task" / str(tid)
    folder.mkdir(parents=True)
    (folder / "status").write_text(f"Name:\tmysqld\n{status}")


def test_container_threads_are_found_by_their_own_ids(procfs: Path) -> None:
    add_container_thread(procfs, 4711, "NSpid:\t4711\t1\n")
    add_container_thread(procfs, 4730, "NSpid:\t4730\t30\t19\n")
    assert pid_namespaces.read_outer_ids(4711) == {1: 4711, 19: 4730}


@pytest.mark.parametrize("status", ["NSpid:\t4711\n", "", "NSpid:\tx\n"])
def test_threads_of_this_namespace_need_no_other_ids(status: str, procfs: Path) -> None:
    add_container_thread(procfs, 4711, status)
    assert (
        pid_namespaces.read_outer_ids(4711)
        == pid_namespaces.read_outer_ids(4712)
        == pid_namespaces.read_outer_ids(None)
        == {}
    )
