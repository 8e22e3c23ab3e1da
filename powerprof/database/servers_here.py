# SPDX-License-Identifier: Apache-2.0
"""Running servers of this host: program, version, addresses, processes and CPU time, for a user who chooses one."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from powerprof.database.base import Limits
from powerprof.database.local_login import log_in_locally
from powerprof.database.products import find_program
from powerprof.database.sql import read_version
from powerprof.measure.procfs import process_cpu_ns
from powerprof.system.errors import PowerprofError
from powerprof.system.listeners import describe_listeners
from powerprof.system.processes import label_of, name_of, owner_of
from powerprof.system.reader_process import link_of, shared
from powerprof.system.server_names import guess_product, is_postgres_program, is_server_program
from powerprof.system.targets import list_family
from powerprof.system.tasks import process_folder

_WINDOW_S = 0.25
_LOGIN_S = 1.0


def describe_servers(roots: Sequence[int]) -> list[list[str]]:
    """Return the phrases about each server by its first process. It takes a quarter of a second, for the CPU time."""
    families = {root: list_family(root) for root in roots}
    before, begun_s = {root: _read_clocks(families[root]) for root in roots}, time.monotonic()
    owners = {root: owner_of(root) for root in roots}
    titles = {root: _title(root, is_trusted=owners[root].distrust is None) for root in roots}
    phrases = {}
    for root in roots:
        distrust = owners[root].distrust
        count = len(families[root])
        phrases[root] = [
            f"{label_of(root)} {root}",
            titles[root],
            describe_listeners(root) or ("socket unknown" if titles[root] else ""),
            f"{count} process{'' if count == 1 else 'es'}",
            distrust or "",
        ]
    time.sleep(_WINDOW_S)
    for root in roots:
        after, took_s = _read_clocks(families[root]), time.monotonic() - begun_s
        used_ns = [ns - before[root][pid] for pid, ns in after.items() if pid in before[root]]
        phrases[root].append(f"{sum(used_ns) / took_s / 1e7:.1f} % CPU" if used_ns else "CPU unknown")
    return [[phrase for phrase in phrases[root] if phrase] for root in roots]


def _read_clocks(pids: Sequence[int]) -> dict[int, int]:
    """Return the CPU time in ns by process, without those that have ended."""
    return {pid: ns for pid in pids if (ns := process_cpu_ns(pid)) is not None}


def _title(pid: int, *, is_trusted: bool) -> str:
    """Return product and version of a server; "" for another program. Only trusted programs are run or queried."""
    name = name_of(pid) or ""
    if not is_server_program(name):
        return ""
    with suppress(PowerprofError, OSError):
        binary = find_own_program(pid) if is_trusted else None
        if binary is not None:
            return find_program("mysql", binary).name
    if is_trusted and not is_postgres_program(name) and (entered := log_in_locally(pid, Limits(waiting_s=_LOGIN_S))):
        with suppress(PowerprofError, OSError), entered[1]:
            return read_version(entered[1])
    return f"{guess_product(name)}, version unknown"


def find_own_program(pid: int) -> Path | None:
    """Return the path of a process's program; None if this path is another file here, as for a container."""
    exe = process_folder(pid) / "exe"
    path, running = Path(link_of(exe) or "/nonexistent"), shared().status(exe)
    if running is None or not path.is_file():
        return None
    present = path.stat()
    return path if (present.st_dev, present.st_ino) == (running.device, running.inode) else None
