# SPDX-License-Identifier: Apache-2.0
"""Dropping capabilities after everything that needs them is open.

Loading BPF programs and opening meters needs many capabilities. Reading threads, maps and files of processes, and
writing as the caller, needs few. Code that reads bytes of other accounts' processes and files runs with these few.
The user stays root, because sysfs and the cache belong to root. This process and its children lose the rights to
override permissions, change owners, mount, load modules, access raw devices and configure the network.
"""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

from powerprof.system.errors import PowerprofError

# Numbers of include/uapi/linux/capability.h, each with its use here.
TRACING = {
    "dac_read_search": 2,  # files of processes below other users' folders
    "setgid": 6,  # files with the caller's rights
    "setuid": 7,
    "sys_ptrace": 19,  # /proc/PID/{maps,map_files,root,environ} of other users
    "sys_resource": 24,  # locked memory on kernels before 5.11
    "syslog": 34,  # the kernel's own function names: without it kallsyms shows zeros, and timers have no names
    "perfmon": 38,  # detaching programs and counting their run time
    "bpf": 39,  # reading maps
    "checkpoint_restore": 40,  # map_files since Linux 5.9
}
_PR_CAPBSET_READ, _PR_CAPBSET_DROP = 23, 24
_PR_SET_NO_NEW_PRIVS = 38
_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL = 47, 4
_CAPABILITY_VERSION_3 = 0x20080522
_MAX_CAPABILITIES = 64


class _Header(ctypes.Structure):
    _fields_ = (("version", ctypes.c_uint32), ("pid", ctypes.c_int))


class _Data(ctypes.Structure):
    _fields_ = (("effective", ctypes.c_uint32), ("permitted", ctypes.c_uint32), ("inheritable", ctypes.c_uint32))


def drop_capabilities(capabilities: dict[str, int]) -> None:
    """Drop every capability except these, permanently, for this thread and its children.

    Does nothing if we are not root. Raise PowerprofError if the kernel refuses.
    """
    if os.geteuid() != 0:
        return
    libc = ctypes.CDLL(None, use_errno=True)
    kept = sum(1 << number for number in capabilities.values())
    for number in range(_MAX_CAPABILITIES):
        if not kept >> number & 1 and libc.prctl(_PR_CAPBSET_READ, number, 0, 0, 0) == 1:
            _check_dropped(libc.prctl(_PR_CAPBSET_DROP, number, 0, 0, 0))
    libc.prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0)
    _check_dropped(libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
    remaining = kept & _read_permitted()
    halves = (_Data * 2)(
        *(_Data(remaining >> shift & 0xFFFFFFFF, remaining >> shift & 0xFFFFFFFF, 0) for shift in (0, 32))
    )
    _check_dropped(libc.capset(ctypes.byref(_Header(_CAPABILITY_VERSION_3, 0)), halves))


def drop_privileges(is_last_step: bool = True) -> None:
    """Drop every capability except TRACING, after everything that needs more is open.

    Call it only in a process that needs no more (`is_last_step`). perf events must be open already: the kernels of
    Debian and Ubuntu require CAP_SYS_ADMIN for them (kernel.perf_event_paranoid of 3 and more), and not CAP_PERFMON
    alone.
    """
    if is_last_step:
        drop_capabilities(TRACING)


def _read_permitted() -> int:
    for line in Path("/proc/thread-self/status").read_text().splitlines():
        if line.startswith("CapPrm:"):
            return int(line.split()[1], 16)
    return 0


def _check_dropped(result: int) -> None:
    if result != 0:
        raise PowerprofError(
            f"cannot give up privileges ({os.strerror(ctypes.get_errno()).lower()})",
            "allow capset: a container's seccomp profile may forbid it",
        )
