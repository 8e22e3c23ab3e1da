# SPDX-License-Identifier: Apache-2.0
"""Process ids in a pid namespace, which in most containers differ from those of the kernel and its tracepoints.

BPF programs translate the ids (probes/bpf/pid_namespaces.bpf.h). The ids that a server in a container reports are
translated too (`read_outer_ids`).
"""

from __future__ import annotations

import os

from powerprof.system.errors import CapabilityError
from powerprof.system.files import read_fields
from powerprof.system.foreign_text import whole
from powerprof.system.paths import procfs
from powerprof.system.tasks import list_threads

_INITIAL_PID_NAMESPACE = 0xEFFFFFFC  # PROC_PID_INIT_INO, include/linux/proc_ns.h


def nested_pid_namespace() -> int | None:
    """Return the number of this process's pid namespace; None if it is the kernel's first one."""
    try:
        number = (procfs() / "self/ns/pid").stat().st_ino
    except OSError:
        return None  # The kernel has no such namespaces, or /proc is not readable.
    return None if number == _INITIAL_PID_NAMESPACE else number


def is_in_pid_namespace() -> bool:
    """Return whether this process is in a pid namespace other than the kernel's first one, as in most containers."""
    return nested_pid_namespace() is not None


def check_process_ids() -> None:
    """Raise CapabilityError if /proc has other process ids than this process.

    BPF programs translate ids into this process's namespace (pid_namespaces.bpf.h), and names are read in /proc.
    """
    if is_in_pid_namespace() and (procfs() / "self").readlink().name != str(os.getpid()):
        raise CapabilityError(
            "/proc shows the process ids of another pid namespace",
            "mount this namespace's own: unshare --pid --fork --mount-proc",
        )


def read_outer_ids(pid: int | None) -> dict[int, int]:
    """Return the id on this host by the thread's own id for all threads; empty if both are the same.

    A server in a container reports its own ids (THREAD_OS_ID, TID). The kernel's tracepoints report the host's.
    """
    outer_by_inner: dict[int, int] = {}
    if pid is None:
        return outer_by_inner
    for tid in list_threads(pid):
        numbers = read_fields(procfs() / str(pid) / "task" / str(tid) / "status").get("NSpid", "").split()
        if len(numbers) < 2:
            return {}
        if (inner := whole(numbers[-1])) is not None:
            outer_by_inner[inner] = tid
    return outer_by_inner
