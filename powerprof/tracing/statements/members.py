# SPDX-License-Identifier: Apache-2.0
"""The processes and threads that a server works in, and what the kernel itself counts of them."""

from __future__ import annotations

from dataclasses import dataclass

from powerprof.files import try_text
from powerprof.paths import procfs
from powerprof.processes.tasks import clean
from powerprof.sources.procfs import children, process_cpu_ns, reaped_cpu_ns

_MOST_PROCESSES = 65_536


@dataclass(frozen=True)
class ServerProcesses:
    """A server that is one process; with `is_family` one that works in processes, which it and they start."""

    pid: int
    is_family: bool

    def pids(self) -> list[int]:
        """The processes that there are now."""
        found = [self.pid]
        for pid in found:
            if self.is_family and len(found) < _MOST_PROCESSES:
                found += children(pid)
        return found

    def tids(self) -> list[int]:
        """The threads that there are now."""
        return [tid for pid in self.pids() for tid in _tids(pid)]

    def cpu_ns(self) -> int | None:
        """CPU time of all, living and ended; None where the server has gone.

        Of what a family's ended processes used the kernel tells in steps of 10 ms.
        """
        own = process_cpu_ns(self.pid)
        if own is None or not self.is_family:
            return own
        pids = self.pids()
        return sum(reaped_cpu_ns(pid) for pid in pids) + sum(process_cpu_ns(pid) or 0 for pid in pids)


def ran_ns(tid: int) -> int | None:
    """The scheduler's count of a thread; None where it is gone."""
    words = (try_text(procfs() / str(tid) / "schedstat") or "").split()
    return int(words[0]) if words and words[0].isdigit() else None


def comm(tid: int) -> str:
    """What the kernel calls a thread."""
    return clean(try_text(procfs() / str(tid) / "comm") or "") or "ended threads"


def _tids(pid: int) -> list[int]:
    try:
        return [int(entry.name) for entry in (procfs() / str(pid) / "task").iterdir()]
    except OSError:
        return []
