# SPDX-License-Identifier: Apache-2.0
"""Control groups of both versions that limit a disk, and the limited disk."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from powerprof.database.runtree import may_enter


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
