# SPDX-License-Identifier: Apache-2.0
"""The CPU time of a server by thread in a window, and of the other processes of the host."""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Iterable, Mapping, Sequence

import msgspec

from powerprof.diagnosis.evidence import CpuShares, Neighbour, OpenTransaction, ThreadCpu
from powerprof.measure.procfs import list_children, process_cpu_ns, reaped_cpu_ns
from powerprof.system.files import try_text
from powerprof.system.foreign_text import whole
from powerprof.system.paths import procfs
from powerprof.system.process_stat import read_process_stat
from powerprof.system.processes import list_pids, name_of
from powerprof.system.server_roles import parse_account, parse_state, read_titles
from powerprof.system.tasks import list_threads, look_up

_MOST_THREADS = 16
# A reading takes 10 µs for each thread. Of more threads only the sum is read.
_MOST_READ_THREADS = 4000
_MOST_PROCESSES = 20_000
# In percent of one CPU: a program that uses less is no reason for a hot CPU.
_NEIGHBOUR_PERCENT = 25.0


class CpuTimes(msgspec.Struct, frozen=True):
    """CPU times at one moment in ns: of each thread, and of all processes with their ended threads and children."""

    at_s: float
    process_ns: int
    threads_ns: Mapping[int, int]


def read_cpu_times(pids: Sequence[int]) -> CpuTimes | None:
    """Return the CPU times of the processes of a server; None if all have ended.

    The threads' times are from schedstat (Documentation/scheduler/sched-stats.rst).
    """
    tids = [(pid, tid) for pid in pids for tid in list_threads(pid)]
    threads: dict[int, int] = {}
    for pid, tid in tids if len(tids) <= _MOST_READ_THREADS else ():
        words = (try_text(procfs() / str(pid) / "task" / str(tid) / "schedstat") or "").split()
        spent_ns = whole(words[0]) if words else None
        if spent_ns is not None:
            threads[tid] = spent_ns
    processes = [ns for pid in pids if (ns := process_cpu_ns(pid)) is not None]
    ended_ns = sum(map(reaped_cpu_ns, pids))
    return CpuTimes(time.monotonic(), sum(processes) + ended_ns, threads) if processes else None


def compute_cpu_shares(before: CpuTimes | None, after: CpuTimes | None, names: Mapping[int, str]) -> CpuShares:
    """Return the CPU use between two readings; unknown if one is missing.

    All CPU time of a thread that is only in the second reading belongs to the window.
    """
    if before is None or after is None or after.at_s <= before.at_s:
        return CpuShares()
    span_ns = (after.at_s - before.at_s) * 1e9
    if not before.threads_ns or not after.threads_ns:
        return CpuShares(cpu_percent=100.0 * max(0, after.process_ns - before.process_ns) / span_ns)
    spent = {tid: max(0, value - before.threads_ns.get(tid, 0)) for tid, value in after.threads_ns.items()}
    process_ns = max(0, after.process_ns - before.process_ns)
    return CpuShares(
        cpu_percent=100.0 * process_ns / span_ns,
        threads_cpu=[
            ThreadCpu(
                tid=tid,
                comm=look_up(tid).comm,
                name=names.get(tid),
                percent=100.0 * spent[tid] / span_ns,
                age_s=_read_age_s(tid),
            )
            for tid in sorted(spent, key=lambda tid: -spent[tid])[:_MOST_THREADS]
            if spent[tid]
        ],
        ended_cpu_percent=100.0 * max(0, process_ns - sum(spent.values())) / span_ns,
    )


def add_titles(shares: CpuShares) -> CpuShares:
    """Return the CPU use with the accounts of PostgreSQL's processes, from their titles."""
    titles = read_titles(thread.tid for thread in shares.threads_cpu)
    threads = [
        msgspec.structs.replace(thread, account=parse_account(titles.get(thread.tid, "")))
        for thread in shares.threads_cpu
    ]
    return msgspec.structs.replace(shares, threads_cpu=threads)


def _read_age_s(tid: int) -> float | None:
    stat = read_process_stat(tid)
    if stat is None:
        return None
    started_s = stat.started_ticks / os.sysconf("SC_CLK_TCK")
    return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - started_s)


class WaitingTransactions:
    """The transactions of PostgreSQL whose clients send nothing, from the titles and CPU times of its processes."""

    def __init__(self, pid: int | None) -> None:
        """Read them. `pid` is the server's first process; None for another server."""
        self._began_s = time.monotonic()
        self._before = {} if pid is None else _read_waiting(list_children(pid))

    def list_still_waiting(self) -> list[OpenTransaction]:
        """Return those that used no CPU time since the start."""
        open_s, after = time.monotonic() - self._began_s, _read_waiting(self._before)
        return [
            OpenTransaction(connection=pid, account=account, open_s=open_s)
            for pid, (account, cpu_ns) in self._before.items()
            if after.get(pid) == (account, cpu_ns)
        ]


def _read_waiting(pids: Iterable[int]) -> dict[int, tuple[str, int]]:
    waiting = {}
    for pid, title in read_titles(pids).items():
        account, cpu_ns = parse_account(title), process_cpu_ns(pid)
        if account is not None and cpu_ns is not None and parse_state(title).startswith("idle in transaction"):
            waiting[pid] = (account, cpu_ns)
    return waiting


class OtherProcesses:
    """The CPU times of the processes that are neither the server's nor powerprof's."""

    def __init__(self) -> None:
        self._began_s, self._before = time.monotonic(), _read_processes()

    def find_largest(self, server: Collection[int]) -> Neighbour | None:
        """Return the other process with the highest CPU use since the start; None if all use little."""
        span_ns = (time.monotonic() - self._began_s) * 1e9
        left_out = {os.getpid(), *list_children(os.getpid()), *server}
        spent = {
            pid: value - self._before.get(pid, value) for pid, value in _read_processes().items() if pid not in left_out
        }
        pid = max(spent, key=lambda pid: spent[pid], default=None)
        if pid is None or span_ns <= 0 or 100.0 * spent[pid] / span_ns < _NEIGHBOUR_PERCENT:
            return None
        return Neighbour(pid=pid, comm=name_of(pid) or str(pid), percent=100.0 * spent[pid] / span_ns)


def _read_processes() -> dict[int, int]:
    pids = list_pids()[:_MOST_PROCESSES]
    return {pid: ns for pid in pids if (ns := process_cpu_ns(pid)) is not None}
