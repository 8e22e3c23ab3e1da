# SPDX-License-Identifier: Apache-2.0
"""powerprof's own processes: itself and its helpers, such as turbostat, ipmitool and the child that reads files.

Their CPU time and wake-ups are powerprof's own cost in every command, and in no target. Servers, clients, loads and
measured commands are children of powerprof too, but no helpers.
"""

from __future__ import annotations

import os
import resource
import time
from pathlib import Path

import msgspec

# Helpers that ended stay powerprof's for the windows in which they ran. A limit, because the kernel reuses numbers.
_KEPT = 1024
_HELPERS: dict[int, None] = {}
# Those that have not been seen to end: only their cost is read at the edges of windows.
_RUNNING: set[int] = set()


def add_helper(pid: int) -> None:
    """Add a child that works for powerprof."""
    _HELPERS.pop(pid, None)
    _HELPERS[pid] = None
    _RUNNING.add(pid)
    while len(_HELPERS) > _KEPT:
        del _HELPERS[next(iter(_HELPERS))]


def own_pids() -> frozenset[int]:
    """Return the numbers of this process and of its helpers, including those that ended."""
    return frozenset((os.getpid(), *_HELPERS))


def is_own(pid: int) -> bool:
    """Return whether a running process is powerprof's. Drop a helper whose number another process has now."""
    if pid == os.getpid() or pid not in _HELPERS:
        return pid == os.getpid()
    try:
        parent = int(_read_field(Path("/proc", str(pid), "status").read_text(), "PPid"))
    except (OSError, ValueError, IndexError):
        return True
    if parent != os.getpid():
        del _HELPERS[pid]
    return pid in _HELPERS


class OwnCost(msgspec.Struct, frozen=True):
    """CPU seconds and voluntary switches by process until a moment. Each switch is followed by a wake-up."""

    spent: dict[int, tuple[float, int]]

    def since(self, before: OwnCost) -> tuple[float, int]:
        """Return CPU seconds and switches since `before`. A helper that ended in between counts until then only."""
        cpu_s, switches = 0.0, 0
        for pid, (new_s, new_count) in self.spent.items():
            old_s, old_count = before.spent.get(pid, (0.0, 0))
            cpu_s, switches = cpu_s + max(new_s - old_s, 0.0), switches + max(new_count - old_count, 0)
        return cpu_s, switches


def read_own_cost() -> OwnCost:
    """Return the cost of this process and of its helpers until now."""
    spent = {os.getpid(): (time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw)}
    for pid in list(_RUNNING):
        # A helper has one thread. Its cost is that of the running kernel, whatever POWERPROF_PROCFS is.
        try:
            folder = Path("/proc", str(pid))
            cpu_s = int((folder / "schedstat").read_text().split()[0]) / 1e9
            status = (folder / "status").read_text()
            if int(_read_field(status, "PPid")) != os.getpid():
                raise ProcessLookupError  # another process has the number now
            spent[pid] = (cpu_s, int(_read_field(status, "voluntary_ctxt_switches")))
        except (OSError, ValueError, IndexError):
            _RUNNING.discard(pid)
    return OwnCost(spent | _ENDED)


def _read_field(status: str, name: str) -> str:
    return status.partition(f"\n{name}:")[2].split()[0]


# The cost of helpers that `programs.run` has waited for, under a number that no process has.
_ENDED: dict[int, tuple[float, int]] = {0: (0.0, 0)}


def add_ended_cost(before: resource.struct_rusage, after: resource.struct_rusage) -> None:
    """Add the cost of a helper that ended, from RUSAGE_CHILDREN before and after it."""
    cpu_s, switches = _ENDED[0]
    cpu_s += after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    _ENDED[0] = (cpu_s, switches + after.ru_nvcsw - before.ru_nvcsw)
