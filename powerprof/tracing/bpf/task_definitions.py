# SPDX-License-Identifier: Apache-2.0
"""Build the definitions of the ids of threads and processes, as the reader's pid namespace numbers them."""

from __future__ import annotations

from powerprof.system.pid_namespaces import nested_pid_namespace
from powerprof.tracing.bpf.btf import Btf
from powerprof.tracing.bpf.definitions import build_struct_definitions
from powerprof.tracing.bpf.kernel_memory import KernelMemory

_PID_FIELDS = {
    "task_struct_thread_pid": ("task_struct", "thread_pid"),
    "task_struct_signal": ("task_struct", "signal"),
    "signal_struct_pids": ("signal_struct", "pids"),
    "pid_level": ("pid", "level"),
    "upid_nr": ("upid", "nr"),
    "upid_ns": ("upid", "ns"),
    "pid_namespace_inum": ("pid_namespace", "ns.inum"),
}
_UPID_BYTES = 16  # struct upid: a number and a pointer


def build_task_definitions(btf: Btf) -> dict[str, int]:
    """Return the places of a thread's and its process's number, and whether one read gets both.

    They are adjacent in all kernels without shuffled structs. In a nested pid namespace, the programs translate the
    numbers (pid_namespaces.bpf.h).
    """
    pid, tgid = (btf.field_offset("task_struct", name) for name in ("pid", "tgid"))
    level, number = _find_pid_level(btf)
    return {
        "OFFSET_task_struct_pid": pid,
        "OFFSET_task_struct_tgid": tgid,
        "ARE_IDS_ADJACENT": int(tgid == pid + 4),
        "PID_LEVEL": level,
        "PID_NAMESPACE": number,
        **build_struct_definitions(btf, _PID_FIELDS),
        "OFFSET_pid_number": btf.field_offset("pid", "numbers") + level * _UPID_BYTES,
    }


def _find_pid_level(btf: Btf) -> tuple[int, int]:
    """Return the level of this process's pid namespace and its inode number as 32 bits with a sign; zeros on the host.

    The kernel reports the level to no program outside of it, so it is read in the kernel's memory.
    """
    number = nested_pid_namespace()
    if number is None:
        return 0, 0
    with KernelMemory(btf) as memory:
        pid = memory.word(memory.current_task() + memory.offset("task_struct", "thread_pid"))
        level = int.from_bytes(memory.read(pid + memory.offset("pid", "level"), 4), "little")
    return level, number - (1 << 32 if number >> 31 else 0)
