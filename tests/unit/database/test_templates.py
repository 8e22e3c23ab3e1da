# SPDX-License-Identifier: Apache-2.0
"""Templates: their copies and the room for them."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from powerprof.database import templates
from powerprof.database.templates import check_room_in
from powerprof.system.errors import PowerprofError


def test_a_copy_has_the_same_files_and_private_modes(tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / "mysql").mkdir(parents=True)
    data = os.urandom(300_000)
    (source / "mysql/db.ibd").write_bytes(data)
    (source / "empty").touch(0o666)
    templates.clone_folder(source, tmp_path / "copy", None)
    assert (tmp_path / "copy/mysql/db.ibd").read_bytes() == data
    assert (tmp_path / "copy/empty").stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "copy/mysql").stat().st_mode & 0o777 == 0o700
    assert templates.measure_folder(source) >= 300_000


def test_links_and_devices_are_not_followed(tmp_path: Path) -> None:
    for name, make in (("link", lambda path: path.symlink_to("/etc/passwd")), ("fifo", os.mkfifo)):
        source = tmp_path / name
        source.mkdir()
        make(source / "x")
        with pytest.raises(PowerprofError, match=r"is not a regular file|cannot copy"):
            templates.clone_folder(source, tmp_path / f"{name}-copy", None)
        assert not (tmp_path / f"{name}-copy/x").exists()


def test_an_existing_target_is_not_touched(tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    (tmp_path / "target").mkdir()
    with pytest.raises(PowerprofError, match="file exists"):
        templates.clone_folder(tmp_path / "source", tmp_path / "target", None)


# 300 blocks of 1 MiB are free, 200 of them for other accounts than root.
_DISK = SimpleNamespace(f_bavail=200, f_bfree=300, f_frsize=1 << 20, f_bsize=4096)


def test_room_of_root_is_no_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "statvfs", lambda _: _DISK)
    check_room_in(tmp_path, 200 << 20)
    with pytest.raises(PowerprofError, match=r"\(200 MiB free, 201 MiB needed\)") as error:
        check_room_in(tmp_path, (200 << 20) + 1)
    assert f"in {tmp_path.parent} " in error.value.message


@pytest.mark.parametrize(("number", "is_full"), [(errno.ENOSPC, True), (errno.EDQUOT, True), (errno.EACCES, False)])
def test_only_a_full_disk_has_a_hint_about_room(number: int, is_full: bool) -> None:
    assert (templates.hint_about_room(OSError(number, "")) is not None) is is_full
