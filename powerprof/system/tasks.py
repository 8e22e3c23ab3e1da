# SPDX-License-Identifier: Apache-2.0
"""The identity of threads: their process, whether they belong to the kernel, and their names."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import msgspec

from powerprof.system.cgroups import find_frozen_group
from powerprof.system.files import read_fields, try_text
from powerprof.system.foreign_text import printable, whole
from powerprof.system.paths import procfs


def is_ended(status: Mapping[str, str]) -> bool:
    """Return whether a process has ended, by its fields in /proc/PID/status; also a zombie that its parent has to reap.

    A process whose first thread has ended is alive while it has others, although the kernel shows it as a zombie.
    """
    is_zombie = status.get("State", "").startswith(("Z", "X"))
    return not status or (is_zombie and (whole(status.get("Threads", "")) or 1) <= 1)


def has_ended(pid: int) -> bool:
    """Return whether a process no longer exists, or is a zombie that its parent has not reaped."""
    return is_ended(read_fields(procfs() / str(pid) / "status"))


def process_folder(pid: int) -> Path:
    """Return the folder in /proc with the program, memory, files and network of a process.

    It is the folder of a living thread if the first thread has ended: the kernel took all these from that one. The
    name of a process (comm), its accounts and its control group stay in /proc/PID.
    """
    folder = procfs() / str(pid)
    if _read_state(folder) in ("Z", "X"):
        living = (tid for tid in list_threads(pid) if _read_state(folder / "task" / str(tid)) not in ("", "Z", "X"))
        return procfs() / str(next(living, pid))
    return folder


def _read_state(folder: Path) -> str:
    """Return the state of a thread, one letter; "" if it has ended."""
    return (try_text(folder / "status") or "").partition("\nState:\t")[2][:1]


class Stop(msgspec.Struct, frozen=True):
    """What stopped a process, as the end of "it was …", and the command that resumes it."""

    how: str
    remedy: str
    is_frozen: bool = False


def find_stop(pid: int) -> Stop | None:
    """Return what stopped the process: a signal (SIGSTOP), a debugger or its control group; None if it is not."""
    if _read_state(process_folder(pid)) in ("T", "t"):
        return Stop("stopped by a signal or a debugger", f"kill -CONT {pid}")
    group = find_frozen_group(pid)
    return None if group is None else Stop("frozen by its control group", f"echo 0 > {group / 'cgroup.freeze'}", True)


def is_stopped(pid: int) -> bool:
    """Return whether a signal (SIGSTOP), a debugger or a frozen control group has stopped the process."""
    return find_stop(pid) is not None


_SWITCHES = "voluntary_ctxt_switches"
_KTHREADD = 2
# Numbers from here on are not threads (the kernel's limit is 2**22). Each stands for all ended threads of one name.
ENDED = 1 << 31
# Numbers from here on stand for threads of ended processes of the target.
ENDED_IN_TARGET = ENDED | 1 << 30
# Numbers from here on, below ENDED, are threads of processes outside this pid namespace: OUTSIDE_IDS of
# pid_namespaces.bpf.h. /proc does not show them.
OUTSIDE = 1 << 30
OUTSIDE_PROCESSES = "processes outside this pid namespace"


class Task(msgspec.Struct, frozen=True, array_like=True):
    """A thread. `process` is the main thread's comm, `unit` the name of its control group."""

    tid: int
    pid: int | None
    comm: str
    process: str
    is_kernel: bool
    unit: str | None = None


def parent_of(pid: int) -> int:
    """Return the parent of a process; 0 if there is none."""
    return whole(read_fields(procfs() / str(pid) / "status").get("PPid", "")) or 0


def read_switches(pid: int) -> dict[int, int]:
    """Return the voluntary context switches of each thread of a process since its start (proc_pid_status(5))."""
    folder = procfs() / str(pid) / "task"
    counts = {tid: whole(read_fields(folder / str(tid) / "status").get(_SWITCHES, "")) for tid in list_threads(pid)}
    return {tid: count for tid, count in counts.items() if count is not None}


def list_threads(pid: int) -> list[int]:
    """Return the present threads of a process."""
    try:
        return sorted(int(name) for name in os.listdir(procfs() / str(pid) / "task") if name.isdigit())
    except OSError:
        return []


def clean(comm: str | bytes) -> str:
    """Return a comm without control characters. A process may choose any bytes as its comm."""
    text = comm.decode("utf-8", "replace") if isinstance(comm, bytes) else comm
    return printable(text)


def look_up(tid: int, pid: int | None = None, comm: str = "", is_kernel: bool | None = None) -> Task:
    """Return a thread as /proc shows it now; if it has ended, return what the trace recorded.

    `comm` and `is_kernel` are the traced values, because the number may belong to another thread now. None is unknown.
    """
    if tid == 0:
        return Task(0, 0, "idle", "kernel", True)
    root = procfs()
    if tid >= ENDED:
        return _build_ended_tasks(tid, pid, comm, bool(is_kernel))
    status = read_fields(root / str(tid) / "status")
    is_kernel_now = _is_of_kernel(tid, status)
    if not status or (is_kernel is not None and is_kernel != is_kernel_now):
        return _build_gone_task(tid, pid, comm, bool(is_kernel))
    if pid is None:
        pid = whole(status.get("Tgid", "")) or tid
    name = clean(comm) or clean(try_text(root / str(tid) / "comm") or "")
    if is_kernel_now:
        return Task(tid, pid, name, "kernel", True)
    # A process has the name that its main thread had.
    leader = name if tid == pid else clean(try_text(root / str(pid) / "comm") or "")
    return Task(tid, pid, name, leader or name, False)


def _is_of_kernel(tid: int, status: Mapping[str, str]) -> bool:
    """Return whether a thread is the kernel's, by its status. Linux before 6.8 has no Kthread in it."""
    if "Kthread" in status:
        return status["Kthread"] == "1"
    # Its parent is kthreadd. A program that the kernel starts has an address space.
    return "VmSize" not in status and str(_KTHREADD) in (str(tid), status.get("PPid"))


def restore_traced(task: Task, pid: int | None, comm: str, is_kernel: bool) -> Task:
    """Return the traced thread. `task` is the last thread that had its number."""
    name = clean(comm)
    if not name or name == task.comm:
        return task
    if is_kernel != task.is_kernel or pid != task.pid or task.tid == pid:
        return _build_gone_task(task.tid, pid, comm, is_kernel)
    return msgspec.structs.replace(task, comm=name)


def _build_gone_task(tid: int, pid: int | None, comm: str, is_kernel: bool) -> Task:
    """Return a task for a thread that is not in /proc from its traced values."""
    name = clean(comm)
    if OUTSIDE <= tid < ENDED:
        return Task(tid, None, name or OUTSIDE_PROCESSES, "kernel" if is_kernel else OUTSIDE_PROCESSES, is_kernel)
    return Task(tid, pid, name or f"thread {tid}", "kernel" if is_kernel else name or f"pid {pid or tid}", is_kernel)


def _build_ended_tasks(tid: int, pid: int | None, comm: str, is_kernel: bool) -> Task:
    """Return a task for all ended threads of one name, of one process or of several."""
    name = clean(comm) or "threads that have ended"
    pid = pid if pid is not None and pid < ENDED else None
    leader = try_text(procfs() / str(pid) / "comm") if pid is not None else None
    return Task(tid, pid, name, "kernel" if is_kernel else clean(leader) if leader else name, is_kernel)
