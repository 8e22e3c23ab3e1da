# SPDX-License-Identifier: Apache-2.0
"""perf_event_open(2): one descriptor per event, counted or sampled, on one CPU or in one process."""

from __future__ import annotations

import ctypes
import os
import platform
import struct
from pathlib import Path
from typing import Any

from powerprof.system import paths
from powerprof.system.files import try_int

# The number of the call in the kernel's tables (arch/*/entry/syscalls, include/uapi/asm-generic/unistd.h).
_SYSCALL = {"x86_64": 298, "aarch64": 241, "ppc64le": 319, "s390x": 331, "riscv64": 241, "i686": 336}
_ATTR_SIZE = 64  # PERF_ATTR_SIZE_VER0: every kernel takes it
_CLOEXEC = 8  # PERF_FLAG_FD_CLOEXEC
# _IOW('$', 6, char *), _IOW('$', 8, __u32)
_SET_FILTER, _SET_PROGRAM = {"ppc64le": (0x80082406, 0x80042408)}.get(platform.machine(), (0x40082406, 0x40042408))
TYPE_SOFTWARE = 1
TYPE_TRACEPOINT = 2


def open_counter(kind: int, config: int, cpu: int) -> int:
    """Return a descriptor that counts an event on a CPU from now on, over all processes. Raise OSError."""
    return open_event(struct.pack("=IIQ", kind, _ATTR_SIZE, config).ljust(_ATTR_SIZE, b"\0"), cpu=cpu)


def open_sampler(kind: int, config: int, cpu: int, period: int) -> int:
    """Return a counter that overflows every `period` events. Raise OSError."""
    attributes = struct.pack("=IIQQ", kind, _ATTR_SIZE, config, period)
    return open_event(attributes.ljust(_ATTR_SIZE, b"\0"), cpu=cpu)


def open_event(attributes: bytes, *, pid: int = -1, cpu: int = -1) -> int:
    """Return the descriptor of the event of a struct perf_event_attr. Raise OSError."""
    number = _SYSCALL.get(platform.machine())
    if number is None:
        raise OSError(38, f"perf_event_open is not known on {platform.machine()}")
    buffer = ctypes.create_string_buffer(attributes, len(attributes))
    libc = ctypes.CDLL(None, use_errno=True)
    descriptor = int(
        libc.syscall(
            ctypes.c_long(number),
            buffer,
            ctypes.c_int(pid),
            ctypes.c_int(cpu),
            ctypes.c_int(-1),
            ctypes.c_ulong(_CLOEXEC),
        )
    )
    if descriptor < 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
    return descriptor


def set_filter(descriptor: int, condition: str) -> None:
    """Count only events that meet a condition (Documentation/trace/events.rst, "Event filtering"). Raise OSError."""
    _send_request(descriptor, _SET_FILTER, ctypes.create_string_buffer(condition.encode()))


def set_program(descriptor: int, program: int) -> None:
    """Run a BPF program at every overflow, or at every hit of a uprobe. Raise OSError."""
    _send_request(descriptor, _SET_PROGRAM, ctypes.c_int(program))


def _send_request(descriptor: int, request: int, argument: Any) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.ioctl(ctypes.c_int(descriptor), ctypes.c_ulong(request), argument):
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))


def read_counter(descriptor: int) -> int | None:
    """Return the count now. None if the CPU no longer exists (perf_read returns end of file). Raise OSError."""
    data = os.read(descriptor, 8)
    return struct.unpack("=Q", data)[0] if len(data) == 8 else None


# The mount calls of Linux 5.2 have the same numbers on every architecture.
_FSOPEN, _FSCONFIG, _FSMOUNT = 430, 431, 432
_CMD_CREATE = 6  # FSCONFIG_CMD_CREATE
_TRACEFS_CLOEXEC = 1


def tracepoint_number(name: str) -> int | None:
    """Return the number of a tracepoint (`power/cpu_idle`), by which perf counts it. None if it cannot be read.

    If tracefs is not mounted, the file is read through a private mount outside any tree (fsopen(2), fsmount(2); Linux
    5.2) that ends with its descriptor.
    """
    for mounted in (paths.sysfs() / "kernel/tracing", paths.sysfs() / "kernel/debug/tracing"):
        number = try_int(mounted / "events" / name / "id")
        if number is not None:
            return number
    return _read_through_own_mount(f"events/{name}/id") if paths.is_this_host() else None


def _read_through_own_mount(file: str) -> int | None:
    libc = ctypes.CDLL(None, use_errno=True)
    context = libc.syscall(ctypes.c_long(_FSOPEN), b"tracefs", ctypes.c_uint(_TRACEFS_CLOEXEC))
    if context < 0:
        return None
    try:
        if libc.syscall(ctypes.c_long(_FSCONFIG), ctypes.c_int(context), ctypes.c_uint(_CMD_CREATE), None, None, 0) < 0:
            return None
        mount = libc.syscall(
            ctypes.c_long(_FSMOUNT), ctypes.c_int(context), ctypes.c_uint(_TRACEFS_CLOEXEC), ctypes.c_uint(0)
        )
    finally:
        os.close(context)
    if mount < 0:
        return None
    try:
        return try_int(Path(f"/proc/self/fd/{mount}") / file)
    finally:
        os.close(mount)
