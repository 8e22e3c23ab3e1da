# SPDX-License-Identifier: Apache-2.0
"""CPU time of a process and of its threads, between two moments."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from powerprof import paths
from powerprof.diagnosis.evidence import ThreadCpu
from powerprof.files import try_text
from powerprof.processes.tasks import look_up
from powerprof.sources.procfs import process_cpu_ns
from powerprof.untrusted import whole

_MOST = 16


@dataclass(frozen=True)
class CpuTimes:
    """Nanoseconds at a moment: of the process with threads that have ended, and of each thread."""

    at_s: float
    process_ns: int
    threads_ns: Mapping[int, int]


def read(pid: int) -> CpuTimes | None:
    """Now; None where the process has gone. Threads by schedstat (Documentation/scheduler/sched-stats.rst)."""
    folder = paths.procfs() / str(pid) / "task"
    try:
        tids = [int(entry.name) for entry in folder.iterdir() if entry.name.isdigit()]
    except OSError:
        return None
    threads: dict[int, int] = {}
    for tid in tids:
        words = (try_text(folder / str(tid) / "schedstat") or "").split()
        spent = whole(words[0]) if words else None
        if spent is not None:
            threads[tid] = spent
    process = process_cpu_ns(pid)
    return None if process is None else CpuTimes(time.monotonic(), process, threads)


def between(before: CpuTimes | None, after: CpuTimes | None, pid: int, names: Mapping[int, str]) -> dict[str, Any]:
    """The fields of the evidence; none where one of the two is missing. A thread of the second moment alone is new:
    all of it is of the window."""
    if before is None or after is None or after.at_s <= before.at_s:
        return {}
    span_ns = (after.at_s - before.at_s) * 1e9
    spent = {tid: max(0, value - before.threads_ns.get(tid, 0)) for tid, value in after.threads_ns.items()}
    process = max(0, after.process_ns - before.process_ns)
    most = sorted(spent, key=lambda tid: -spent[tid])[:_MOST]
    return {
        "cpu_percent": 100.0 * process / span_ns,
        "threads_cpu": [
            ThreadCpu(tid=tid, comm=look_up(tid, pid).comm, name=names.get(tid), percent=100.0 * spent[tid] / span_ns)
            for tid in most
            if spent[tid]
        ],
        "ended_cpu_percent": 100.0 * max(0, process - sum(spent.values())) / span_ns,
    }
