# SPDX-License-Identifier: Apache-2.0
"""perf_event_open(2): one descriptor per event, counted or sampled, on one CPU or in one process."""

from __future__ import annotations

import ctypes
import os
import platform
import struct
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from powerprof.measure.cpuidle import pin_to_cpu, restore_affinity
from powerprof.system import paths
from powerprof.system.closeable import Closeable
from powerprof.system.errors import CapabilityError
from powerprof.system.files import reason_of, try_int

# The number of the call in the kernel's tables (arch/*/entry/syscalls, include/uapi/asm-generic/unistd.h).
_SYSCALL = {"x86_64": 298, "aarch64": 241, "ppc64le": 319, "s390x": 331, "riscv64": 241, "i686": 336}
_ATTR_SIZE = 64  # PERF_ATTR_SIZE_VER0: every kernel takes it
_CLOEXEC = 8  # PERF_FLAG_FD_CLOEXEC
# _IOW('$', 6, char *), _IOW('$', 8, __u32)
_SET_FILTER, _SET_PROGRAM = {"ppc64le": (0x80082406, 0x80042408)}.get(platform.machine(), (0x40082406, 0x40042408))
_FREQUENCY = 1 << 10  # the attributes' bit that makes the period a rate
TYPE_SOFTWARE = 1
TYPE_TRACEPOINT = 2


def open_counter(kind: int, config: int, cpu: int) -> int:
    """Return a descriptor that counts an event on a CPU from now on, over all processes. Raise OSError."""
    return open_event(struct.pack("=IIQ", kind, _ATTR_SIZE, config).ljust(_ATTR_SIZE, b"\0"), cpu=cpu)


def open_sampler(kind: int, config: int, cpu: int, *, period: int = 0, frequency_hz: int = 0) -> int:
    """Return a counter that overflows every `period` events, or `frequency_hz` times per second. Raise OSError."""
    flags = _FREQUENCY if frequency_hz else 0
    attributes = struct.pack("=IIQQQQQ", kind, _ATTR_SIZE, config, frequency_hz or period, 0, 0, flags)
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
    _control(descriptor, _SET_FILTER, ctypes.create_string_buffer(condition.encode()))


def set_program(descriptor: int, program: int) -> None:
    """Run a BPF program at every overflow. Raise OSError."""
    _control(descriptor, _SET_PROGRAM, ctypes.c_int(program))


def _control(descriptor: int, request: int, argument: Any) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.ioctl(ctypes.c_int(descriptor), ctypes.c_ulong(request), argument):
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))


def read_counter(descriptor: int) -> int | None:
    """Return the count now. None if the CPU no longer exists (perf_read returns end of file). Raise OSError."""
    data = os.read(descriptor, 8)
    return struct.unpack("=Q", data)[0] if len(data) == 8 else None


# The number of a tracepoint, which perf needs to count it. If tracefs is not mounted, the file is read through a
# private mount outside any tree (fsopen(2), fsmount(2); Linux ≥ 5.2) that ends with its descriptor.

# The mount calls of Linux 5.2 have the same numbers on every architecture.
_FSOPEN, _FSCONFIG, _FSMOUNT = 430, 431, 432
_CMD_CREATE = 6  # FSCONFIG_CMD_CREATE
_TRACEFS_CLOEXEC = 1


def tracepoint_number(name: str) -> int | None:
    """Return the number of a tracepoint (`power/cpu_idle`). None if this process may not read it."""
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


# Idle exits of each CPU by perf's count of the cpu_idle tracepoint, for hosts without a cpuidle driver.
#
# The idle loop fires the tracepoint with or without a driver (kernel/sched/idle.c, default_idle_call). The count is the
# kernel's: it needs no compilation and no recording, only one number per CPU, and it does not depend on our tracing.
# `idle_calls` of /proc/timer_list is no substitute: without a driver Linux 6.1 shows about half of the idle periods
# there.
#
# A trial on each CPU comes first. perf drops events of a task that it takes to be inside an event already, and that
# mark can be stuck on one CPU's idle task (seen on 6.18, where `perf stat` shows 0 too).

_TRACEPOINT = "power/cpu_idle"
_LEAVING = "state==4294967295"  # PWR_EVENT_EXIT, include/trace/events/power.h
_SWITCH, _TO_IDLE = "sched/sched_switch", "next_pid==0"
_TRIAL_SLEEPS, _TRIAL_SLEEP_S = 3, 0.0001


def _open_filtered(number: int, cpu: int, condition: str) -> int:
    """Return a descriptor that counts a tracepoint on one CPU if the condition holds. Raise OSError."""
    descriptor = open_counter(TYPE_TRACEPOINT, number, cpu)
    try:
        set_filter(descriptor, condition)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


class IdleEvents(Closeable):
    """Counts the idle exits of each CPU while the context is open."""

    def __init__(self, cpus: Iterable[int]) -> None:
        """Begin to count. Raises CapabilityError if this process may not. CPUs that no longer exist are left out."""
        self._descriptors: dict[int, int] = {}
        number = tracepoint_number(_TRACEPOINT) if paths.is_this_host() else None
        if number is None:
            raise CapabilityError(f"the tracepoint {_TRACEPOINT} cannot be counted: no tracefs here", "run as root")
        try:
            for cpu in cpus:
                self._descriptors[cpu] = _open_filtered(number, cpu, _LEAVING)
            self._check_counting()
        except OSError as error:
            self.close()
            raise CapabilityError(
                f"the tracepoint {_TRACEPOINT} cannot be counted ({reason_of(error)})", "run as root"
            ) from error
        except BaseException:  # a signal too: the trial takes a moment
            self.close()
            raise

    def _check_counting(self) -> None:
        """Sleep briefly on each CPU. If it switches to the idle task without an idle exit, raise CapabilityError."""
        switch = tracepoint_number(_SWITCH)
        with restore_affinity():
            for cpu in self._descriptors:
                if switch is None or not pin_to_cpu(cpu):
                    continue
                switches = _open_filtered(switch, cpu, _TO_IDLE)
                before = self.read_cpu(cpu)
                try:
                    for _ in range(_TRIAL_SLEEPS):
                        time.sleep(_TRIAL_SLEEP_S)
                    idled, counted = read_counter(switches) or 0, (self.read_cpu(cpu) or 0) - (before or 0)
                finally:
                    os.close(switches)
                if idled >= _TRIAL_SLEEPS - 1 and not counted:
                    raise CapabilityError(
                        f"perf does not count the tracepoint {_TRACEPOINT} on CPU {cpu}",
                        "--residency-source procfs does without; powerprof doctor says what works",
                    )

    def close(self) -> None:
        """Stop counting."""
        for descriptor in self._descriptors.values():
            os.close(descriptor)
        self._descriptors.clear()

    def read_cpu(self, cpu: int) -> int | None:
        """Return one CPU's exits since the counter was opened.

        None if the CPU no longer exists. It is cheapest on that CPU itself.
        """
        descriptor = self._descriptors.get(cpu)
        return None if descriptor is None else read_counter(descriptor)

    def read(self) -> dict[int, int]:
        """Return all CPUs' exits."""
        counts = {cpu: self.read_cpu(cpu) for cpu in self._descriptors}
        return {cpu: count for cpu, count in counts.items() if count is not None}
