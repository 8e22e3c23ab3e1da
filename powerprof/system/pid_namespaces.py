# SPDX-License-Identifier: Apache-2.0
"""Process ids in a pid namespace, which in most containers differ from those of the kernel and its tracepoints.

A command that traces refuses to run in one (`check_process_ids`). The ids that a server in a container reports are
translated (`read_outer_ids`).
"""

from __future__ import annotations

from powerprof.system.errors import CapabilityError
from powerprof.system.files import read_fields
from powerprof.system.foreign_text import whole
from powerprof.system.paths import procfs
from powerprof.system.tasks import list_threads

_INITIAL_PID_NAMESPACE = 0xEFFFFFFC  # PROC_PID_INIT_INO, include/linux/proc_ns.h


def is_in_pid_namespace() -> bool:
    """Return whether this process is in a pid namespace other than the kernel's first one, as in most containers."""
    try:
        return (procfs() / "self/ns/pid").stat().st_ino != _INITIAL_PID_NAMESPACE
    except OSError:
        return False  # The kernel has no such namespaces, or /proc is not readable.


def check_process_ids() -> None:
    """Raise CapabilityError if tracepoints use other process ids than /proc and the user.

    Without this check, a program that slept 119 times a second got no wake-ups, and no message appeared.
    """
    if is_in_pid_namespace():
        raise CapabilityError(
            "process ids in this pid namespace differ from the ids in the kernel's tracepoints",
            "run powerprof on the host (--cgroup takes a container), or with its namespace: docker run --pid=host",
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
