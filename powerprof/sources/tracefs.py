# SPDX-License-Identifier: Apache-2.0
"""A tracepoint's number, by which perf counts it. Mounts nothing where others could see it.

Where tracefs is not mounted the file is read through a mount of our own that has no place in any tree
(fsopen(2), fsmount(2); Linux ≥ 5.2) and is gone with its descriptor.
"""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

from powerprof import paths
from powerprof.files import try_int

# The new mount calls have the same numbers on every architecture.
_FSOPEN, _FSCONFIG, _FSMOUNT = 430, 431, 432
_CMD_CREATE = 6  # FSCONFIG_CMD_CREATE
_CLOEXEC = 1


def tracepoint_number(name: str) -> int | None:
    """The number of a tracepoint (`power/cpu_idle`); None where this process may not know it."""
    for mounted in (paths.sysfs() / "kernel/tracing", paths.sysfs() / "kernel/debug/tracing"):
        number = try_int(mounted / "events" / name / "id")
        if number is not None:
            return number
    return _through_own_mount(f"events/{name}/id") if paths.is_this_host() else None


def _through_own_mount(file: str) -> int | None:
    libc = ctypes.CDLL(None, use_errno=True)
    context = libc.syscall(ctypes.c_long(_FSOPEN), b"tracefs", ctypes.c_uint(_CLOEXEC))
    if context < 0:
        return None
    try:
        if libc.syscall(ctypes.c_long(_FSCONFIG), ctypes.c_int(context), ctypes.c_uint(_CMD_CREATE), None, None, 0) < 0:
            return None
        mount = libc.syscall(ctypes.c_long(_FSMOUNT), ctypes.c_int(context), ctypes.c_uint(_CLOEXEC), ctypes.c_uint(0))
    finally:
        os.close(context)
    if mount < 0:
        return None
    try:
        return try_int(Path(f"/proc/self/fd/{mount}") / file)
    finally:
        os.close(mount)
