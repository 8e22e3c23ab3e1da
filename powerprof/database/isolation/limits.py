# SPDX-License-Identifier: Apache-2.0
"""What N connections need of this host: checked before anything starts, so that a refusal is clear."""

from __future__ import annotations

import os
import resource
from pathlib import Path

from powerprof import files, paths
from powerprof.errors import PowerprofError, UsageError

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
