# SPDX-License-Identifier: Apache-2.0
"""Giving up what root may do, once all is open that needs it.

Loading BPF programs and opening meters takes many capabilities; looking at threads, maps and files of processes, and
writing as the caller, takes few. What reads the bytes of other people's processes and files does it with the few.
The user stays root, because sysfs and the cache are root's: what is gone is overriding permissions, changing owners,
mounting, modules, raw devices, the network, and all of it for every child.
"""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

from powerprof.errors import PowerprofError

# Numbers of include/uapi/linux/capability.h, and what each is for here.
TRACING = {
    "dac_read_search": 2,  # files of processes that root may not read as such: below other users' folders
    "setgid": 6,  # acting as the caller
    "setuid": 7,
    "sys_ptrace": 19,  # /proc/PID/{maps,map_files,root,environ} of other users
    "sys_resource": 24,  # locked memory on kernels before 5.11
    "syslog": 34,  # the kernel's own function names: without it kallsyms shows zeros, and no timer has a name
    "perfmon": 38,  # detaching, and counting the run time of, what was attached
    "bpf": 39,  # reading maps
    "checkpoint_restore": 40,  # map_files since Linux 5.9
}
_PR_CAPBSET_READ, _PR_CAPBSET_DROP = 23, 24
_PR_SET_NO_NEW_PRIVS = 38
_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL = 47, 4
_VERSION_3 = 0x20080522
_MOST = 64


class _Header(ctypes.Structure):
    _fields_ = (("version", ctypes.c_uint32), ("pid", ctypes.c_int))


class _Data(ctypes.Structure):
    _fields_ = (("effective", ctypes.c_uint32), ("permitted", ctypes.c_uint32), ("inheritable", ctypes.c_uint32))


def keep(capabilities: dict[str, int]) -> None:
    """Give up every capability but these, for this thread and for whatever it starts, for good.

    Does nothing where we are not root: nobody gave us what we do not need. Raises PowerprofError where the kernel
    refuses.
    """
    if os.geteuid() != 0:
        return
    libc = ctypes.CDLL(None, use_errno=True)
    wanted = sum(1 << number for number in capabilities.values())
    for number in range(_MOST):
        if not wanted >> number & 1 and libc.prctl(_PR_CAPBSET_READ, number, 0, 0, 0) == 1:
            _must(libc.prctl(_PR_CAPBSET_DROP, number, 0, 0, 0))
    libc.prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0)
    _must(libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
    left = wanted & _permitted()
    halves = (_Data * 2)(*(_Data(left >> shift & 0xFFFFFFFF, left >> shift & 0xFFFFFFFF, 0) for shift in (0, 32)))
    _must(libc.capset(ctypes.byref(_Header(_VERSION_3, 0)), halves))


def settle(wanted: bool = True, energy_source: str = "") -> None:
    """All is open that takes more: from here on TRACING is enough, where this process does nothing else (`wanted`).

    Events of perf are opened before: kernels of Debian and Ubuntu want CAP_SYS_ADMIN for them, not CAP_PERFMON alone
    (kernel.perf_event_paranoid of 3 and more).

    Not with PowerTOP as meter, which is started again for each of its reports, and wants to be root.
    """
    if wanted and "powertop" not in energy_source:
        keep(TRACING)


def _permitted() -> int:
    for line in Path("/proc/thread-self/status").read_text().splitlines():
        if line.startswith("CapPrm:"):
            return int(line.split()[1], 16)
    return 0


def _must(result: int) -> None:
    if result != 0:
        raise PowerprofError(
            f"cannot give up privileges ({os.strerror(ctypes.get_errno()).lower()})",
            "run it where capset is allowed (a container's seccomp profile may forbid it)",
        )
