# SPDX-License-Identifier: Apache-2.0
"""Copies of a data directory that belongs to another user."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from powerprof.database import preparation
from powerprof.system.errors import PowerprofError


def test_a_copy_has_the_same_files_and_private_modes(tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / "mysql").mkdir(parents=True)
    data = os.urandom(300_000)
    (source / "mysql/db.ibd").write_bytes(data)
    (source / "empty").touch(0o666)
    preparation.clone_folder(source, tmp_path / "copy", None)
    assert (tmp_path / "copy/mysql/db.ibd").read_bytes() == data
    assert (tmp_path / "copy/empty").stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "copy/mysql").stat().st_mode & 0o777 == 0o700
    assert preparation.measure_folder(source) >= 300_000


def test_links_and_devices_are_not_followed(tmp_path: Path) -> None:
    for name, make in (("link", lambda path: path.symlink_to("/etc/passwd")), ("fifo", os.mkfifo)):
        source = tmp_path / name
        source.mkdir()
        make(source / "x")
        with pytest.raises(PowerprofError, match=r"is not a regular file|cannot copy"):
            preparation.clone_folder(source, tmp_path / f"{name}-copy", None)
        assert not (tmp_path / f"{name}-copy/x").exists()


def test_an_existing_target_is_not_touched(tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    (tmp_path / "target").mkdir()
    with pytest.raises(PowerprofError, match="file exists"):
        preparation.clone_folder(tmp_path / "source", tmp_path / "target", None)
