# SPDX-License-Identifier: Apache-2.0
"""Who a thread is: its process, whether it is the kernel's, and what to call it."""

from __future__ import annotations

import msgspec

from powerprof.files import read_fields, try_text
from powerprof.paths import procfs
from powerprof.untrusted import printable, whole

_PF_KTHREAD = 0x00200000  # include/linux/sched.h
# From here on a number is no thread's (the kernel gives 2**22): it stands for all threads of one name that had ended.
ENDED = 1 << 31
# From here on for those of processes that had ended and were of the target.
ENDED_IN_TARGET = ENDED | 1 << 30


class Task(msgspec.Struct, frozen=True, array_like=True):
    """One thread. `process` is the main thread's comm."""

    tid: int
    pid: int | None
    comm: str
    process: str
    is_kernel: bool


def clean(comm: str | bytes) -> str:
    """A comm is whatever a process chose: control characters must not reach a terminal."""
    text = comm.decode("utf-8", "replace") if isinstance(comm, bytes) else comm
    return printable(text)


def look_up(tid: int, pid: int | None = None, comm: str = "") -> Task:
    """The thread as /proc shows it now; for one that has gone what the trace itself knew."""
    if tid == 0:
        return Task(0, 0, "idle", "kernel", True)
    root = procfs()
    stat = try_text(root / str(tid) / "stat") if tid < ENDED else None
    if stat is None:
        is_kernel = comm.startswith(("kworker/", "ksoftirqd/", "migration/", "rcu_"))
        if tid >= ENDED:
            return _ended(tid, pid, comm, is_kernel)
        process = "kernel" if is_kernel else comm or f"pid {pid or tid}"
        return Task(tid, pid, comm or f"thread {tid}", process, is_kernel)
    name, _, rest = stat.partition("(")[2].rpartition(")")
    fields = rest.split()
    flags = int(fields[6]) if len(fields) > 6 and fields[6].lstrip("-").isdigit() else 0
    if pid is None:
        pid = whole(read_fields(root / str(tid) / "status").get("Tgid", "")) or tid
    own = clean(comm) if comm else clean(name)
    if flags & _PF_KTHREAD:
        return Task(tid, pid, own, "kernel", True)
    leader = try_text(root / str(pid) / "comm")
    return Task(tid, pid, own, clean(leader) if leader else own, False)


def _ended(tid: int, pid: int | None, comm: str, is_kernel: bool) -> Task:
    """Threads of one name, of one process or of many."""
    name = clean(comm) or "threads that have ended"
    pid = pid if pid is not None and pid < ENDED else None
    leader = try_text(procfs() / str(pid) / "comm") if pid is not None else None
    return Task(tid, pid, name, "kernel" if is_kernel else clean(leader) if leader else name, is_kernel)
