# SPDX-License-Identifier: Apache-2.0
"""Limits of a server's disk."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from powerprof.database import disk_limits
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
    assert disk_limits.find_group_root(old) == old / "blkio"
    assert disk_limits.group_settings(old / "blkio", "8:0", 120) == {
        "blkio.throttle.read_iops_device": "8:0 120\n",
        "blkio.throttle.write_iops_device": "8:0 120\n",
    }
    new = _tree(tmp_path / "new", {"cgroup.controllers": "cpu io memory\n", "cgroup.subtree_control": "cpu io\n"})
    assert disk_limits.find_group_root(new) == new
    assert disk_limits.group_settings(new, "8:0", 120) == {"io.max": "8:0 riops=120 wiops=120\n"}
    # And no limit any more.
    assert set(disk_limits.group_settings(old / "blkio", "8:0", None).values()) == {"8:0 0\n"}
    assert disk_limits.group_settings(new, "8:0", None) == {"io.max": "8:0 riops=max wiops=max\n"}


def test_a_host_that_cannot_is_told_what_is_missing(tmp_path: Path, root: None) -> None:
    off = _tree(tmp_path / "off", {"cgroup.controllers": "cpu io\n", "cgroup.subtree_control": "cpu\n"})
    with pytest.raises(CapabilityError) as refused:
        disk_limits.find_group_root(off)
    assert refused.value.hint == f"echo +io >{off}/cgroup.subtree_control, as root"
    with pytest.raises(CapabilityError, match="CONFIG_BLK_DEV_THROTTLING"):
        disk_limits.find_group_root(tmp_path / "none")


def test_without_root_it_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(CapabilityError, match="only root"):
        disk_limits.find_group_root(tmp_path)


def test_the_disk_of_a_partition_is_meant(tmp_path: Path) -> None:
    number = tmp_path.stat().st_dev
    name = f"{os.major(number)}:{os.minor(number)}"
    devices = tmp_path / "devices"
    devices.mkdir()
    with pytest.raises(CapabilityError, match="lies on no disk whose speed could be limited"):
        disk_limits.find_disk(tmp_path, devices)
    # As in sysfs: a link to the partition's folder, which lies in its disk's.
    _tree(tmp_path / "sda", {"dev": "8:0\n", "sda1/dev": f"{name}\n", "sda1/partition": "1\n"})
    (devices / name).symlink_to(tmp_path / "sda/sda1")
    assert disk_limits.find_disk(tmp_path, devices) == "8:0"
    (tmp_path / "sda/sda1/partition").unlink()
    assert disk_limits.find_disk(tmp_path, devices) == name
