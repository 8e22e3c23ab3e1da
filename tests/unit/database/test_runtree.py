# SPDX-License-Identifier: Apache-2.0
"""Control groups of both versions that limit a disk, and the limited disk."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from powerprof.database.runtree import RunTree, may_enter
from powerprof.system import targets
from tests.conftest import REPOSITORY


@pytest.mark.parametrize(
    ("mode", "uid", "gid", "enters"),
    [
        (0o701, 0, 0, True),
        (0o700, 7, 8, False),
        (0o701, 7, 8, True),
        (0o710, 7, 0, True),
        (0o701, 7, 0, False),
        (0o077, 0, 8, False),
        (0o100, 0, 8, True),
        (0o010, 0, 0, False),
    ],
)
def test_the_first_matching_class_of_a_directory_decides(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: int, uid: int, gid: int, enters: bool
) -> None:
    """The kernel checks the owner's bits for the owner, the group's for the group, and else the rest (7 path)."""
    inner = tmp_path / "outer/inner"
    inner.mkdir(parents=True)
    real = Path.stat

    def stat(path: Path) -> os.stat_result:
        fields = list(real(path))
        if tmp_path == path or tmp_path in path.parents:
            fields[0] = (fields[0] & ~0o777) | (mode if path == inner else 0o755)
            fields[4:6] = [0, 0]
        else:
            fields[0] |= 0o111
        return os.stat_result(fields)

    monkeypatch.setattr(Path, "stat", stat)
    assert may_enter(inner, uid, gid) == (None if enters else inner)
    assert may_enter(inner / "below", uid, gid) == (inner / "below" if enters else inner)


def test_a_missing_directory_cannot_be_entered(tmp_path: Path) -> None:
    assert may_enter(tmp_path / "none/below", os.geteuid(), os.getegid()) == tmp_path / "none"


def test_a_server_in_a_tree_is_private_for_every_command(tmp_path: Path) -> None:
    """The name of the folder has two owners, because the janitor is a program without powerprof."""
    with RunTree(tmp_path) as tree:
        assert targets._PRIVATE_FOLDER.search(f"--datadir={tree.path}/server/data")
        for page in ("server", "environment"):
            text = (REPOSITORY / f"docs/reference/{page}.md").read_text("utf-8")
            assert re.sub(r"[0-9a-f]{12}", "X" * 12, tree.path.name) in text
