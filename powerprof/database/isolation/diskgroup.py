# SPDX-License-Identifier: Apache-2.0
"""A control group in which a server's disk does no more than so many operations a second.

A study had slow disks, one a server; hosts of today have a fast one for all. The kernel's throttle puts that back: it
delays a request until it is due (block/blk-throttle.c). It binds what a process asks of the disk itself, reads and
direct writes, which is InnoDB with `innodb_flush_method = O_DIRECT`; in version 1 of control groups what the kernel
writes later from the page cache is bound to nobody (Documentation/admin-guide/cgroup-v1/blkio-controller.rst).
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from powerprof.errors import CapabilityError, PowerprofError
from powerprof.files import reason_of, try_text

if TYPE_CHECKING:
    from powerprof.database.isolation.runtree import RunTree

GROUPS = Path("/sys/fs/cgroup")
_DEVICES = Path("/sys/dev/block")
_OLD = ("blkio.throttle.read_iops_device", "blkio.throttle.write_iops_device")
_NEW = "io.max"


def limit(tree: RunTree, name: str, place: Path, pid: int, operations_hz: int | None) -> None:
    """Let process `pid` do `operations_hz` reads and as many writes a second on the disk that holds `place`; None: all
    that it can.

    The group is the tree's, and ends with it, also after a kill -9. Raises CapabilityError where this host cannot.
    """
    root = hierarchy()
    device = disk_of(place)
    group = root / f"{tree.path.name}-{name}"
    try:
        if not group.exists():
            # The files of a group cannot be removed, and with the group they are gone: its folder is removed as any is.
            tree.also_remove(group)
            group.mkdir()
        for file, text in settings(root, device, operations_hz).items():
            (group / file).write_text(text)
        (group / "cgroup.procs").write_text(str(pid))
    except OSError as error:
        raise CapabilityError(f"cannot limit a disk by {group} ({reason_of(error)})", "run as root") from error


def settings(root: Path, device: str, operations_hz: int | None) -> dict[str, str]:
    """What is written to which file of a group; pure but for which version it is."""
    if is_old(root):
        return dict.fromkeys(_OLD, f"{device} {operations_hz or 0}\n")
    most = operations_hz or "max"
    return {_NEW: f"{device} riops={most} wiops={most}\n"}


def is_old(root: Path) -> bool:
    """Whether control groups there are of version 1."""
    return (root / _OLD[0]).exists()


def hierarchy(groups: Path = GROUPS) -> Path:
    """Where groups that limit disks are made. Raises CapabilityError where the host has none."""
    if os.geteuid() != 0:
        raise CapabilityError("only root may limit a server's disk", "run as root")
    if is_old(groups / "blkio"):
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


def disk_of(place: Path, devices: Path = _DEVICES) -> str:
    """MAJOR:MINOR of the whole disk that holds `place`: the kernel takes no partition. Raises CapabilityError."""
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
