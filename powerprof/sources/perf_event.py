# SPDX-License-Identifier: Apache-2.0
"""perf_event_open(2) for counting: one descriptor counts one event on one CPU, over all processes."""

from __future__ import annotations

import ctypes
import os
import platform
import struct

# The call's number in the kernel's tables (arch/*/entry/syscalls, include/uapi/asm-generic/unistd.h).
_SYSCALL = {"x86_64": 298, "aarch64": 241, "ppc64le": 319, "s390x": 331, "riscv64": 241, "i686": 336}
_ATTR_SIZE = 64  # PERF_ATTR_SIZE_VER0: every kernel takes it
_CLOEXEC = 8  # PERF_FLAG_FD_CLOEXEC
_SET_FILTER = {"ppc64le": 0x80082406}.get(platform.machine(), 0x40082406)  # _IOW('$', 6, char *)
TYPE_TRACEPOINT = 2


def open_counter(kind: int, config: int, cpu: int) -> int:
    """A descriptor that counts from now on. Raises OSError."""
    number = _SYSCALL.get(platform.machine())
    if number is None:
        raise OSError(38, f"perf_event_open is not known on {platform.machine()}")
    attributes = struct.pack("=IIQ", kind, _ATTR_SIZE, config).ljust(_ATTR_SIZE, b"\0")
    buffer = ctypes.create_string_buffer(attributes, _ATTR_SIZE)
    libc = ctypes.CDLL(None, use_errno=True)
    descriptor = int(
        libc.syscall(
            ctypes.c_long(number),
            buffer,
            ctypes.c_int(-1),
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
    """Count only what fulfils this (Documentation/trace/events.rst, "Event filtering"). Raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    text = ctypes.create_string_buffer(condition.encode())
    if libc.ioctl(ctypes.c_int(descriptor), ctypes.c_ulong(_SET_FILTER), text):
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))


def read_counter(descriptor: int) -> int | None:
    """The count now; None where the CPU has gone (perf_read gives end of file). Raises OSError."""
    data = os.read(descriptor, 8)
    return struct.unpack("=Q", data)[0] if len(data) == 8 else None
