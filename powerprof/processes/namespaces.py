# SPDX-License-Identifier: Apache-2.0
"""Whether process ids mean to the kernel what they mean here: inside most containers they do not."""

from __future__ import annotations

from powerprof import paths
from powerprof.errors import CapabilityError
from powerprof.files import read_fields
from powerprof.untrusted import whole

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
