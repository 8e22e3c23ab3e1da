# SPDX-License-Identifier: Apache-2.0
"""The processes and threads of a server: their numbers, names and CPU time."""

from __future__ import annotations

import msgspec

from powerprof.measure.procfs import list_children, process_cpu_ns, reaped_cpu_ns
from powerprof.system.files import try_text
from powerprof.system.paths import procfs
from powerprof.system.server_roles import ENDED_THREADS
from powerprof.system.tasks import clean, has_ended, list_threads

_MOST_PROCESSES = 65_536


class ServerProcesses(msgspec.Struct, frozen=True):
    """The processes of a server. With `is_family` the server works in several processes, which it and they start."""

    pid: int
    is_family: bool

    def pids(self) -> list[int]:
        """Return the present processes."""
        found = [self.pid]
        for pid in found:
            if self.is_family and len(found) < _MOST_PROCESSES:
                found += list_children(pid)
        return found

    def tids(self) -> list[int]:
        """Return the present threads."""
        return [tid for pid in self.pids() for tid in list_threads(pid)]

    def cpu_ns(self) -> int | None:
        """Return the CPU time of all processes in ns, living and ended, or None if the server has ended.

        The kernel reports the time of a family's ended processes in steps of 10 ms.
        """
        own = process_cpu_ns(self.pid)
        if own is None or not self.is_family:
            return own
        if has_ended(self.pid):
            return None  # A zombie has a clock, and its helpers have another parent.
        pids = self.pids()
        return sum(reaped_cpu_ns(pid) for pid in pids) + sum(process_cpu_ns(pid) or 0 for pid in pids)


def read_run_ns(tid: int) -> int | None:
    """Return the scheduler's running time of a thread in ns, or None if it has ended."""
    words = (try_text(procfs() / str(tid) / "schedstat") or "").split()
    return int(words[0]) if words and words[0].isdigit() else None


def read_comm(tid: int) -> str:
    """Return the kernel's name of a thread."""
    return clean(try_text(procfs() / str(tid) / "comm") or "") or ENDED_THREADS
