# SPDX-License-Identifier: Apache-2.0
"""Control groups of both versions that limit a disk, and the limited disk."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from powerprof.database import runtree
from powerprof.database.runtree import may_enter
from powerprof.system.errors import CapabilityError


@pytest.fixture
def root(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever runs the tests."""
    monkeypatch.setattr(os, "geteuid", lambda: 0)


def _tree(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def test_version_1_has_two_files_and_version_2_one(tmp_path: Path, root: None) -> None:
    old = _tree(tmp_path / "old", {"blkio/blkio.throttle.read_iops_device": ""})
    assert runtree.find_group_root(old) == old / "blkio"
    assert runtree.group_settings(old / "blkio", "8:0", 120) == {
        "blkio.throttle.read_iops_device": "8:0 120\n",
        "blkio.throttle.write_iops_device": "8:0 120\n",
    }
    new = _tree(tmp_path / "new", {"cgroup.controllers": "cpu io memory\n", "cgroup.subtree_control": "cpu io\n"})
    assert runtree.find_group_root(new) == new
    assert runtree.group_settings(new, "8:0", 120) == {"io.max": "8:0 riops=120 wiops=120\n"}
    # And no limit any more.
    assert set(runtree.group_settings(old / "blkio", "8:0", None).values()) == {"8:0 0\n"}
    assert runtree.group_settings(new, "8:0", None) == {"io.max": "8:0 riops=max wiops=max\n"}


def test_a_host_that_cannot_is_told_what_is_missing(tmp_path: Path, root: None) -> None:
    off = _tree(tmp_path / "off", {"cgroup.controllers": "cpu io\n", "cgroup.subtree_control": "cpu\n"})
    with pytest.raises(CapabilityError) as refused:
        runtree.find_group_root(off)
    assert refused.value.hint == f"echo +io >{off}/cgroup.subtree_control, as root"
    with pytest.raises(CapabilityError, match="CONFIG_BLK_DEV_THROTTLING"):
        runtree.find_group_root(tmp_path / "none")


def test_without_root_it_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(CapabilityError, match="only root"):
        runtree.find_group_root(tmp_path)


def test_the_disk_of_a_partition_is_meant(tmp_path: Path) -> None:
    number = tmp_path.stat().st_dev
    name = f"{os.major(number)}:{os.minor(number)}"
    devices = tmp_path / "devices"
    devices.mkdir()
    with pytest.raises(CapabilityError, match="lies on no disk whose speed could be limited"):
        runtree.find_disk(tmp_path, devices)
    # As in sysfs: a link to the partition's folder, which lies in its disk's.
    _tree(tmp_path / "sda", {"dev": "8:0\n", "sda1/dev": f"{name}\n", "sda1/partition": "1\n"})
    (devices / name).symlink_to(tmp_path / "sda/sda1")
    assert runtree.find_disk(tmp_path, devices) == "8:0"
    (tmp_path / "sda/sda1/partition").unlink()
    assert runtree.find_disk(tmp_path, devices) == name


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
