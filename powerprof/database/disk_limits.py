# SPDX-License-Identifier: Apache-2.0
"""Limits of a server's disk.

Studies used one slow disk per server, and present hosts have one fast disk for all. A control group limits a server's
disk to a number of operations per second.
"""

from __future__ import annotations

import os
from pathlib import Path

from powerprof.database.runtree import RunTree
from powerprof.system.errors import CapabilityError, PowerprofError, reason_of
from powerprof.system.files import try_text

GROUPS_ROOT = Path("/sys/fs/cgroup")
_DEVICES = Path("/sys/dev/block")
_THROTTLE_FILES = ("blkio.throttle.read_iops_device", "blkio.throttle.write_iops_device")


def limit_disk(tree: RunTree, name: str, place: Path, pid: int, operations_hz: int | None) -> None:
    """Limit process `pid` to this many reads, and as many writes, per second on the disk of `place`.

    None removes the limit. The control group belongs to the tree and is removed with it, even after a kill -9. The
    kernel delays each request until it is due (block/blk-throttle.c). The limit applies to I/O of the process itself,
    reads and direct writes, as InnoDB does with `innodb_flush_method = O_DIRECT`. In version 1 of control groups, later
    writes from the page cache are not limited (Documentation/admin-guide/cgroup-v1/blkio-controller.rst). Raises
    CapabilityError if this host cannot.
    """
    root = find_group_root()
    device = find_disk(place)
    group = root / f"{tree.path.name}-{name}"
    try:
        if not group.exists():
            # The files of a group cannot be removed one by one. They disappear with its folder.
            tree.also_remove(group)
            group.mkdir()
        for file, text in group_settings(root, device, operations_hz).items():
            (group / file).write_text(text)
        (group / "cgroup.procs").write_text(str(pid))
    except OSError as error:
        raise CapabilityError(f"cannot limit a disk by {group} ({reason_of(error)})", "run as root") from error


def group_settings(root: Path, device: str, operations_hz: int | None) -> dict[str, str]:
    """Return the text to write into each file of a control group."""
    if is_version_1(root):
        return dict.fromkeys(_THROTTLE_FILES, f"{device} {operations_hz or 0}\n")
    most = operations_hz or "max"
    return {"io.max": f"{device} riops={most} wiops={most}\n"}


def is_version_1(root: Path) -> bool:
    """Return whether the control groups below `root` have version 1."""
    return (root / _THROTTLE_FILES[0]).exists()


def find_group_root(groups: Path = GROUPS_ROOT) -> Path:
    """Return the folder for control groups that limit disks. Raise CapabilityError if the host has none."""
    if os.geteuid() != 0:
        raise CapabilityError("only root may limit a server's disk", "run as root")
    if is_version_1(groups / "blkio"):
        return groups / "blkio"
    if "io" in (try_text(groups / "cgroup.subtree_control") or "").split():
        return groups
    if "io" in (try_text(groups / "cgroup.controllers") or "").split():
        raise CapabilityError(
            "control groups limit no disks here", f"echo +io >{groups}/cgroup.subtree_control, as root"
        )
    raise CapabilityError(
        "this kernel has no control groups that limit disks (CONFIG_BLK_DEV_THROTTLING)", "boot one that has"
    )


def find_disk(place: Path, devices: Path = _DEVICES) -> str:
    """Return MAJOR:MINOR of the whole disk that holds `place`. Raise CapabilityError."""
    try:
        number = place.stat().st_dev
    except OSError as error:
        raise PowerprofError(
            f"cannot look at {place} ({reason_of(error)})", "set TMPDIR to a folder on a disk"
        ) from error
    name = f"{os.major(number)}:{os.minor(number)}"
    entry = devices / name
    if not entry.exists():
        raise CapabilityError(
            f"{place} lies on no disk whose speed could be limited", "set TMPDIR to a folder on a disk"
        )
    if not (entry / "partition").exists():
        return name
    whole = (try_text(entry.resolve().parent / "dev") or "").strip()
    if not whole:
        raise CapabilityError(f"the disk of partition {name} is unknown", "set TMPDIR to a folder on another disk")
    return whole
