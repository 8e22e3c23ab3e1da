# SPDX-License-Identifier: Apache-2.0
"""The janitor: its trees, the processes with their mark, and the shared memory of a killed server."""

from __future__ import annotations

import builtins
import io
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from powerprof.database import janitor
from powerprof.system.child import Child
from tests.programs.unprivileged import NOBODY

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


def _start_marked(mark: int | None, uid: int | None) -> subprocess.Popen[bytes]:
    return subprocess.Popen(["/bin/sleep", "60"], user=uid, preexec_fn=Child(mark=mark).prepare)


def test_only_marked_processes_are_of_the_tree(tmp_path: Path) -> None:
    """A process of root with the mark was started by another account's program, and is not a program of the tree."""
    tree = str(tmp_path / "powerprof-0123456789ab")
    mark = janitor.mark_of(tree)
    is_root = os.geteuid() == 0
    uid = NOBODY if is_root else None
    marks = [(mark, uid), (mark + 1, uid), (mark % 10**18, uid), (None, uid), *([(mark, None)] if is_root else [])]
    processes = [_start_marked(*each) for each in marks]
    try:
        assert janitor.marked_pids(tree) == [processes[0].pid]
        assert janitor.kill_marked(tree)
        assert processes[0].wait(20) == -9
        assert janitor.marked_pids(tree) == []
        assert [process.poll() for process in processes[1:]] == [None] * (len(marks) - 1)
    finally:
        for process in processes:
            process.kill()
            process.wait()


def test_all_trees_are_removed_and_nothing_else(tmp_path: Path) -> None:
    trees, locks = zip(*(janitor._make_tree(str(tmp_path)) for _ in range(2)), strict=True)
    assert trees[0] != trees[1] and all(Path(tree).stat().st_mode & 0o777 == 0o700 for tree in trees)
    (Path(trees[1]) / "server/data").mkdir(parents=True)
    (Path(trees[1]) / "server/data/postmaster.pid").write_text("1\n/d\n")
    (tmp_path / "kept").mkdir()
    janitor.remove_trees(list(trees))
    janitor.remove_trees(list(trees))
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]
    for lock in locks:
        os.close(lock)


def test_a_base_that_is_missing_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        janitor._make_tree(str(tmp_path / "none"))


def test_left_trees_are_removed_with_their_processes(tmp_path: Path) -> None:
    """A tree that is used, other names, links and the folders of other accounts stay."""
    left, used = janitor._make_tree(str(tmp_path)), janitor._make_tree(str(tmp_path))
    also = tmp_path / "partial copy"
    also.mkdir()
    janitor._write_also(left[0], [str(also)])
    process = _start_marked(janitor.mark_of(left[0]), NOBODY if os.geteuid() == 0 else None)
    others = ["powerprof-01234567", "powerprof-0123456789abc", "powerprof-0123456789ab.d", "kept"]
    for name in others:
        (tmp_path / name).mkdir()
    (tmp_path / "powerprof-ba9876543210").symlink_to(tmp_path / "kept")
    (tmp_path / "powerprof-ffffffffffff").write_text("a file")
    before = set(tmp_path.iterdir())
    if os.geteuid() == 0:
        foreign = tmp_path / "powerprof-0123456789ab"
        foreign.mkdir()
        os.chown(foreign, NOBODY, NOBODY)
        before.add(foreign)
    os.close(left[1])
    try:
        janitor.remove_left(str(tmp_path))
        assert process.wait(20) == -9
        assert set(tmp_path.iterdir()) == before - {Path(left[0]), also}
    finally:
        process.kill()
        process.wait()
        os.close(used[1])


def test_trees_of_any_depth_are_removed(tmp_path: Path) -> None:
    """Servers and workloads can nest folders. Python's recursion ends at 1,000, a path at 4,096 bytes."""
    tree, lock = janitor._make_tree(str(tmp_path))
    here = os.open(tree, os.O_RDONLY)
    for _ in range(1500):
        os.mkdir("inner", dir_fd=here)
        os.close(os.open("file", os.O_CREAT | os.O_WRONLY, dir_fd=here))
        os.symlink("/etc", "link", dir_fd=here)
        inner = os.open("inner", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = inner
    os.close(here)
    try:
        janitor.remove_trees([tree])
        assert list(tmp_path.iterdir()) == []
    finally:
        os.close(lock)
        subprocess.run(["rm", "-rf", tree], check=True)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root mounts file systems")
def test_a_mount_with_the_name_of_a_tree_is_neither_asked_nor_removed(tmp_path: Path) -> None:
    """It can be a FUSE of another account, which would answer stat(2) late or never."""
    (tmp_path / "powerprof-0123456789ab").mkdir()
    left, lock = janitor._make_tree(str(tmp_path))
    os.close(lock)
    script = """
cd "$1" && mount -t tmpfs none powerprof-0123456789ab && touch powerprof-0123456789ab/kept
"$2" -c "from powerprof.database import janitor; janitor.remove_left('$1')"
ls powerprof-0123456789ab
"""
    words = ["unshare", "--mount", "sh", "-ec", script, "sh", str(tmp_path), sys.executable]
    done = subprocess.run(words, capture_output=True, text=True, check=True, timeout=60)
    assert (done.stdout, done.stderr) == ("kept\n", "")
    assert not Path(left).exists()


def test_paths_to_remove_are_noted_until_they_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    reading, writing = os.pipe()
    os.write(writing, b"+/t/one\n+/t/two\n-/t/tree\n-/t/o")
    os.write(writing, b"ne\n+/t/cut")
    os.close(writing)
    saved = os.dup(0)
    written: list[list[str]] = []
    monkeypatch.setattr(janitor, "_write_also", lambda tree, paths: written.append(list(paths)))
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
    assert written[-1] == ["/t/two"]
