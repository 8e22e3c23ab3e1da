# SPDX-License-Identifier: Apache-2.0
"""perf_event_open(2): one descriptor is one event, counted or sampled, on one CPU or in one process."""

from __future__ import annotations

import ctypes
import os
import platform
import struct
from typing import Any

# The call's number in the kernel's tables (arch/*/entry/syscalls, include/uapi/asm-generic/unistd.h).
_SYSCALL = {"x86_64": 298, "aarch64": 241, "ppc64le": 319, "s390x": 331, "riscv64": 241, "i686": 336}
_ATTR_SIZE = 64  # PERF_ATTR_SIZE_VER0: every kernel takes it
_CLOEXEC = 8  # PERF_FLAG_FD_CLOEXEC
# _IOW('$', 6, char *), _IOW('$', 8, __u32)
_SET_FILTER, _SET_PROGRAM = {"ppc64le": (0x80082406, 0x80042408)}.get(platform.machine(), (0x40082406, 0x40042408))
_FREQUENCY = 1 << 10  # the attributes' bit that makes the period a rate
TYPE_SOFTWARE = 1
TYPE_TRACEPOINT = 2


def open_counter(kind: int, config: int, cpu: int) -> int:
    """A descriptor that counts from now on, over all processes. Raises OSError."""
    return open_event(struct.pack("=IIQ", kind, _ATTR_SIZE, config).ljust(_ATTR_SIZE, b"\0"), cpu=cpu)


def open_sampler(kind: int, config: int, cpu: int, *, period: int = 0, frequency_hz: int = 0) -> int:
    """As `open_counter`, with an overflow every `period` events, or `frequency_hz` times a second. Raises OSError."""
    flags = _FREQUENCY if frequency_hz else 0
    attributes = struct.pack("=IIQQQQQ", kind, _ATTR_SIZE, config, frequency_hz or period, 0, 0, flags)
    return open_event(attributes.ljust(_ATTR_SIZE, b"\0"), cpu=cpu)


def open_event(attributes: bytes, *, pid: int = -1, cpu: int = -1) -> int:
    """The event of a struct perf_event_attr. Raises OSError."""
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
    """Count only what fulfils this (Documentation/trace/events.rst, "Event filtering"). Raises OSError."""
    _control(descriptor, _SET_FILTER, ctypes.create_string_buffer(condition.encode()))


def set_program(descriptor: int, program: int) -> None:
    """Run a BPF program at every overflow. Raises OSError."""
    _control(descriptor, _SET_PROGRAM, ctypes.c_int(program))


def _control(descriptor: int, request: int, argument: Any) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.ioctl(ctypes.c_int(descriptor), ctypes.c_ulong(request), argument):
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))


def read_counter(descriptor: int) -> int | None:
    """The count now; None where the CPU has gone (perf_read gives end of file). Raises OSError."""
    data = os.read(descriptor, 8)
    return struct.unpack("=Q", data)[0] if len(data) == 8 else None
