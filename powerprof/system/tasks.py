# SPDX-License-Identifier: Apache-2.0
"""Who a thread is: its process, whether it is the kernel's, and what to call it."""

from __future__ import annotations

import os
from typing import NamedTuple

import msgspec

from powerprof.system import paths
from powerprof.system.errors import CapabilityError
from powerprof.system.files import printable, read_fields, try_text, whole
from powerprof.system.paths import procfs

# psutil provides neither the kernel flags nor the page faults of a process, so this module reads /proc/PID/stat.


class ProcessStat(NamedTuple):
    """What the kernel says of a process or a thread (proc_pid_stat(5)). `comm` is as the process chose it. Times are in
    clock ticks: `reaped_ticks` what those used that it started and waited for, `started_ticks` after the boot."""

    comm: str
    flags: int
    minor_faults: int
    reaped_ticks: int
    started_ticks: int


def process_stat(pid: int) -> ProcessStat | None:
    """None where it has gone, or where the kernel says it in a way that is not understood."""
    # The name in field 2 may have blanks and brackets.
    name, _, rest = (try_text(procfs() / str(pid) / "stat") or "").partition("(")[2].rpartition(")")
    words = rest.split()
    try:
        return ProcessStat(name, int(words[6]), int(words[7]), int(words[13]) + int(words[14]), int(words[19]))
    except (IndexError, ValueError):
        return None


_SWITCHES = "voluntary_ctxt_switches"
_PF_KTHREAD = 0x00200000  # include/linux/sched.h
# From here on a number is no thread's (the kernel gives 2**22): it stands for all threads of one name that had ended.
ENDED = 1 << 31
# From here on for those of processes that had ended and were of the target.
ENDED_IN_TARGET = ENDED | 1 << 30


class Task(msgspec.Struct, frozen=True, array_like=True):
    """One thread. `process` is the main thread's comm, `unit` what its control group is called."""

    tid: int
    pid: int | None
    comm: str
    process: str
    is_kernel: bool
    unit: str | None = None


def switches_of(pid: int) -> dict[int, int]:
    """How often each thread of a process gave up its CPU to wait since it began (proc_pid_status(5))."""
    folder = procfs() / str(pid) / "task"
    counts = {tid: whole(read_fields(folder / str(tid) / "status").get(_SWITCHES, "")) for tid in threads_of(pid)}
    return {tid: count for tid, count in counts.items() if count is not None}


def threads_of(pid: int) -> list[int]:
    """The threads of a process now."""
    try:
        return sorted(int(name) for name in os.listdir(procfs() / str(pid) / "task") if name.isdigit())
    except OSError:
        return []


def clean(comm: str | bytes) -> str:
    """A comm is whatever a process chose: control characters must not reach a terminal."""
    text = comm.decode("utf-8", "replace") if isinstance(comm, bytes) else comm
    return printable(text)


def look_up(tid: int, pid: int | None = None, comm: str = "", is_kernel: bool | None = None) -> Task:
    """The thread as /proc shows it now; for one that has gone what the trace itself knew.

    `comm` and `is_kernel` are what it was when it was traced: its number may be another's by now. None is unknown.
    """
    if tid == 0:
        return Task(0, 0, "idle", "kernel", True)
    root = procfs()
    if tid >= ENDED:
        return _ended(tid, pid, comm, bool(is_kernel))
    stat = process_stat(tid)
    if stat is None or (is_kernel is not None and is_kernel != bool(stat.flags & _PF_KTHREAD)):
        return _gone(tid, pid, comm, bool(is_kernel))
    if pid is None:
        pid = whole(read_fields(root / str(tid) / "status").get("Tgid", "")) or tid
    own = clean(comm) or clean(stat.comm)
    if stat.flags & _PF_KTHREAD:
        return Task(tid, pid, own, "kernel", True)
    # A process is called what its main thread was called then.
    leader = own if tid == pid else clean(try_text(root / str(pid) / "comm") or "")
    return Task(tid, pid, own, leader or own, False)


def as_traced(task: Task, pid: int | None, comm: str, is_kernel: bool) -> Task:
    """The thread that was traced, where `task` is who had its number last."""
    own = clean(comm)
    if not own or own == task.comm:
        return task
    if is_kernel != task.is_kernel or pid != task.pid or task.tid == pid:
        return _gone(task.tid, pid, comm, is_kernel)
    return msgspec.structs.replace(task, comm=own)


def _gone(tid: int, pid: int | None, comm: str, is_kernel: bool) -> Task:
    own = clean(comm)
    return Task(tid, pid, own or f"thread {tid}", "kernel" if is_kernel else own or f"pid {pid or tid}", is_kernel)


def _ended(tid: int, pid: int | None, comm: str, is_kernel: bool) -> Task:
    """Threads of one name, of one process or of many."""
    name = clean(comm) or "threads that have ended"
    pid = pid if pid is not None and pid < ENDED else None
    leader = try_text(procfs() / str(pid) / "comm") if pid is not None else None
    return Task(tid, pid, name, "kernel" if is_kernel else clean(leader) if leader else name, is_kernel)


# Whether process ids mean to the kernel what they mean here: inside most containers they do not.

_INITIAL_PID_NAMESPACE = 0xEFFFFFFC  # PROC_PID_INIT_INO, include/linux/proc_ns.h


def in_pid_namespace() -> bool:
    """This process is in a pid namespace other than the kernel's first one."""
    try:
        return (paths.procfs() / "self/ns/pid").stat().st_ino != _INITIAL_PID_NAMESPACE
    except OSError:
        return False  # a kernel without such namespaces, or without a readable /proc: nothing is known against it


def check_process_ids() -> None:
    """Raises CapabilityError where tracepoints name processes by other ids than /proc and the user do.

    Seen without this check: a program that slept 119 times a second was given none of them, without a message.
    """
    if in_pid_namespace():
        raise CapabilityError(
            "process ids in this pid namespace are not those of the kernel's tracepoints",
            "run powerprof on the host (--cgroup takes a container), or with its namespace: docker run --pid=host",
        )


def outer_ids(pid: int | None) -> dict[int, int]:
    """What the threads of a process call themselves → their ids here; empty where those are the same.

    A server in a container tells its own numbers (THREAD_OS_ID, TID), the kernel's tracepoints tell the host's.
    """
    outer_by_inner: dict[int, int] = {}
    if pid is None:
        return outer_by_inner
    for entry in (paths.procfs() / str(pid) / "task").glob("[0-9]*"):
        known = read_fields(entry / "status").get("NSpid", "").split()
        if len(known) < 2:
            return {}
        inner, outer = whole(known[-1]), whole(entry.name)
        if inner is not None and outer is not None:
            outer_by_inner[inner] = outer
    return outer_by_inner
