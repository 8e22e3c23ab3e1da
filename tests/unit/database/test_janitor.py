# SPDX-License-Identifier: Apache-2.0
"""The janitor: its trees, the processes with their mark, and the shared memory of a killed server."""

from __future__ import annotations

import builtins
import io
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from powerprof.database import janitor

# key shmid perms size cpid lpid nattch uid gid cuid cgid atime dtime ctime rss swap
_SEGMENTS = """\
       key      shmid perms                  size  cpid  lpid nattch   uid   gid  cuid  cgid
   5432001         11   600                    56  4711  4712      3   112   112   112   112
   5432002         12   600                    56  4713  4713      0   113   113   113   113
"""


@pytest.mark.parametrize(
    ("number", "maker", "owner", "attached"),
    [
        ("11", "4711", 112, 3),
        ("12", "4713", 113, 0),
        ("12", "4713", 112, None),
        ("12", "4711", 113, None),
        ("13", "4713", 113, None),
        ("11", "4711", 11, None),
    ],
)
def test_a_segment_is_known_by_number_maker_and_owner(
    monkeypatch: pytest.MonkeyPatch, number: str, maker: str, owner: int, attached: int | None
) -> None:
    real = builtins.open

    def opened(file: Any, *arguments: Any, **named: Any) -> Any:
        return io.StringIO(_SEGMENTS) if file == "/proc/sysvipc/shm" else real(file, *arguments, **named)

    monkeypatch.setattr(builtins, "open", opened)
    assert janitor._count_attached(number, maker, owner) == attached


def test_only_marked_processes_are_of_the_tree(tmp_path: Path) -> None:
    tree = str(tmp_path / "powerprof-01234567")
    environments = ({janitor.MARK: tree}, {janitor.MARK: f"{tree}8"}, {"OTHER": tree})
    processes = [subprocess.Popen(["/bin/sleep", "60"], env=each) for each in environments]
    try:
        assert janitor.marked_pids(tree) == [processes[0].pid]
        assert janitor.kill_marked(tree)
        assert processes[0].wait(20) == -9
        assert janitor.marked_pids(tree) == []
        assert [process.poll() for process in processes[1:]] == [None, None]
    finally:
        for process in processes:
            process.kill()
            process.wait()


def test_all_trees_are_removed_and_nothing_else(tmp_path: Path) -> None:
    trees = [janitor._make_tree(str(tmp_path)) for _ in range(2)]
    assert trees[0] != trees[1] and all(Path(tree).stat().st_mode & 0o777 == 0o700 for tree in trees)
    (Path(trees[1]) / "server/data").mkdir(parents=True)
    (Path(trees[1]) / "server/data/postmaster.pid").write_text("1\n/d\n")
    (tmp_path / "kept").mkdir()
    janitor.remove_trees(trees)
    janitor.remove_trees(trees)
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]


def test_paths_to_remove_are_noted_until_they_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    reading, writing = os.pipe()
    os.write(writing, b"+/t/one\n+/t/two\n-/t/tree\n-/t/o")
    os.write(writing, b"ne\n+/t/cut")
    os.close(writing)
    saved = os.dup(0)
    trees = ["/t/tree"]
    try:
        os.dup2(reading, 0)
        monkeypatch.setattr(os, "getppid", os.getpid)
        janitor._watch(os.getpid(), trees)
    finally:
        os.dup2(saved, 0)
        os.close(saved)
        os.close(reading)
    assert trees == ["/t/tree", "/t/two"]
