# SPDX-License-Identifier: Apache-2.0
"""What N connections need of this host: checked before anything starts, so that a refusal is clear."""

from __future__ import annotations

import os
import resource
from pathlib import Path
from typing import TYPE_CHECKING

from powerprof.system import files, paths
from powerprof.system.errors import CapabilityError, PowerprofError, UsageError
from powerprof.system.files import reason_of, try_text

if TYPE_CHECKING:
    from powerprof.database.isolation.runtree import RunTree


MAX_CLIENTS = 60_000
# MariaDB and MySQL lower max_connections where fewer than 10 + 2 × 400 files are left for tables.
SPARE_FILES = 1500
_SPARE_THREADS = 200


def check_clients(count: int) -> None:
    """Raises UsageError for a number of clients that makes no sense."""
    if count < 0:
        raise UsageError(f"{count} clients are not possible", "0 or more")
    if count > MAX_CLIENTS:
        raise UsageError(f"{count} clients are more than {MAX_CLIENTS}", "one process cannot hold that many")


def raise_open_files(needed: int) -> None:
    """Raise RLIMIT_NOFILE of this process and of its children-to-be. Raises PowerprofError."""
    needed += SPARE_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return
    top = hard if hard == resource.RLIM_INFINITY else max(hard, needed)
    for limits in ((needed, hard), (needed, top)):
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        except (ValueError, OSError):
            continue
        return
    raise PowerprofError(
        f"{needed} open files are needed and this process may have {hard}",
        f"run as root, raise it (ulimit -Hn {needed}), or use fewer --clients",
    )


def check_threads(count: int, *, server_uid: int | None = None) -> None:
    """A server on this host runs one thread per connection: refuse what the host's limits forbid.

    `server_uid` is the user id the server runs as. Raises PowerprofError naming the limit.
    """
    needed = count + _SPARE_THREADS
    for name, room in _thread_room():
        if room < needed:
            raise PowerprofError(
                f"{count} connections need {count} server threads, and {name} leaves {room}",
                f"raise {name}, or use fewer --clients",
            )
    soft, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    # The kernel does not hold root to RLIMIT_NPROC (copy_process, CAP_SYS_RESOURCE).
    if server_uid not in (None, 0) and soft != resource.RLIM_INFINITY and soft < needed:
        raise PowerprofError(
            f"{count} connections need {count} server threads, and the process limit is {soft}",
            f"ulimit -u {needed}, or use fewer --clients",
        )


def _thread_room() -> list[tuple[str, int]]:
    kernel = paths.procfs() / "sys"
    running = _running_threads()
    maps = files.try_int(kernel / "vm/max_map_count")
    room = []
    for name in ("threads-max", "pid_max"):
        most = files.try_int(kernel / "kernel" / name)
        if most is not None:
            room.append((f"kernel.{name}", most - running))
    if maps is not None:
        # A thread's stack and its guard page are two mappings; the server itself has some hundred.
        room.append(("vm.max_map_count", (maps - 1500) // 2))
    for group in _pids_groups():
        allowed = files.try_int(group / "pids.max")
        current = files.try_int(group / "pids.current")
        if allowed is not None and current is not None:
            room.append((f"{group}/pids.max", allowed - current))
    return room


def _running_threads() -> int:
    # /proc/loadavg's fourth field is running/all scheduling entities (proc(5)).
    text = files.try_text(paths.procfs() / "loadavg") or ""
    try:
        return int(text.split()[3].split("/")[1])
    except (IndexError, ValueError):
        return 0


def _pids_groups() -> list[Path]:
    """The control groups, from ours to the root, that can limit the number of tasks (version 2, then 1)."""
    text = files.try_text(paths.procfs() / "self/cgroup") or ""
    groups: list[Path] = []
    for line in text.splitlines():
        number, controllers, path = [*line.split(":", 2), "", ""][:3]
        if number == "0" and not controllers:
            roots = [paths.sysfs() / "fs/cgroup", paths.sysfs() / "fs/cgroup/unified"]
        elif "pids" in controllers.split(","):
            roots = [paths.sysfs() / "fs/cgroup/pids"]
        else:
            continue
        for root in roots:
            leaf = Path(os.path.normpath(f"{root}/{path.lstrip('/')}"))
            groups += [group for group in (leaf, *leaf.parents) if group.is_relative_to(root)]
    return groups


# A control group in which a server's disk does no more than so many operations a second.
#
# A study had slow disks, one a server; hosts of today have a fast one for all. The kernel's throttle puts that back: it
# delays a request until it is due (block/blk-throttle.c). It binds what a process asks of the disk itself, reads and
# direct writes, which is InnoDB with `innodb_flush_method = O_DIRECT`; in version 1 of control groups what the kernel
# writes later from the page cache is bound to nobody (Documentation/admin-guide/cgroup-v1/blkio-controller.rst).

GROUPS_ROOT = Path("/sys/fs/cgroup")
_DEVICES = Path("/sys/dev/block")
_OLD = ("blkio.throttle.read_iops_device", "blkio.throttle.write_iops_device")
_NEW = "io.max"


def limit_disk(tree: RunTree, name: str, place: Path, pid: int, operations_hz: int | None) -> None:
    """Let process `pid` do `operations_hz` reads and as many writes a second on the disk that holds `place`; None: all
    that it can.

    The group is the tree's, and ends with it, also after a kill -9. Raises CapabilityError where this host cannot.
    """
    root = find_group_root()
    device = find_disk(place)
    group = root / f"{tree.path.name}-{name}"
    try:
        if not group.exists():
            # The files of a group cannot be removed, and with the group they are gone: its folder is removed as any is.
            tree.also_remove(group)
            group.mkdir()
        for file, text in group_settings(root, device, operations_hz).items():
            (group / file).write_text(text)
        (group / "cgroup.procs").write_text(str(pid))
    except OSError as error:
        raise CapabilityError(f"cannot limit a disk by {group} ({reason_of(error)})", "run as root") from error


def group_settings(root: Path, device: str, operations_hz: int | None) -> dict[str, str]:
    """What is written to which file of a group; pure but for which version it is."""
    if is_version_1(root):
        return dict.fromkeys(_OLD, f"{device} {operations_hz or 0}\n")
    most = operations_hz or "max"
    return {_NEW: f"{device} riops={most} wiops={most}\n"}


def is_version_1(root: Path) -> bool:
    """Whether control groups there are of version 1."""
    return (root / _OLD[0]).exists()


def find_group_root(groups: Path = GROUPS_ROOT) -> Path:
    """Where groups that limit disks are made. Raises CapabilityError where the host has none."""
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
