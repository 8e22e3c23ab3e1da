# SPDX-License-Identifier: Apache-2.0
"""perf_event_open(2): one descriptor per event, counted or sampled, on one CPU or in one process."""

from __future__ import annotations

import ctypes
import math
import os
import platform
import re
import resource
import struct
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from powerprof.measure.cpuidle import format_cpu_list, parse_cpu_list, pin_to_cpu, restore_affinity
from powerprof.model.records import CpuFrequency, Frequencies, FrequencyLimits, PState
from powerprof.system import paths
from powerprof.system.closeable import Closeable
from powerprof.system.errors import CapabilityError, PowerprofError
from powerprof.system.files import reason_of, try_int, try_text, whole
from powerprof.system.next_steps import command_line
from powerprof.system.paths import is_this_host, sysfs

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
                        f"use --residency-source procfs; for what works: {command_line('doctor')}",
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


# P-states: the time at each requested frequency, the limits of the drivers, and the real frequency of running CPUs.
#
# Drivers that choose from a table keep `stats/time_in_state` (Documentation/cpu-freq/cpufreq-stats.rst). In their
# active modes intel_pstate and amd-pstate leave the choice to the hardware and do not keep it. Then only APERF and
# MPERF know: while a CPU runs, they count at its own and at a fixed frequency (Intel SDM volume 3, "IA32_MPERF and
# IA32_APERF"). perf's `msr` unit reads them.

_MSR = "bus/event_source/devices/msr"
_CLOCKS = ("aperf", "mperf", "tsc")
_FILES_SHARE = 8  # of this process's limit of open files: the rest is for the measurement

Clocks = tuple[int, int, int]  # aperf, mperf, tsc


class Policy(msgspec.Struct, frozen=True):
    """CPUs that share a frequency, and the ticks (10 ms) since boot at each frequency in kHz.

    No ticks without a counter.
    """

    cpus: tuple[int, ...]
    ticks: Mapping[int, int]


class FrequencyReading(msgspec.Struct, frozen=True):
    """The counters at one moment of CLOCK_MONOTONIC."""

    at_s: float
    policies: Mapping[str, Policy]
    clocks: Mapping[int, Clocks] = msgspec.field(default_factory=dict)


class PerfClocks:
    """APERF, MPERF and TSC of each CPU. Empty if perf lacks these events or refuses them."""

    def __init__(self, cpus: Sequence[int]) -> None:
        self._descriptors: dict[int, list[int]] = {}
        unit = sysfs() / _MSR
        kind, events = try_int(unit / "type"), [_read_event(unit, clock) for clock in _CLOCKS]
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0] // _FILES_SHARE
        if not is_this_host() or kind is None or None in events or len(_CLOCKS) * len(cpus) > limit:
            return
        try:
            for cpu in cpus:
                self._descriptors[cpu] = []
                for event in events:
                    self._descriptors[cpu].append(open_counter(kind, event or 0, cpu))
        except OSError:
            self.close()

    def read(self) -> dict[int, Clocks]:
        """Return the clocks by CPU, without CPUs that no longer exist."""
        clocks = {}
        for cpu, descriptors in self._descriptors.items():
            try:
                counts = [read_counter(descriptor) for descriptor in descriptors]
            except OSError:
                continue
            known = [count for count in counts if count is not None]
            if len(known) == len(_CLOCKS):
                clocks[cpu] = (known[0], known[1], known[2])
        return clocks

    def close(self) -> None:
        """Close the descriptors."""
        for descriptor in (each for descriptors in self._descriptors.values() for each in descriptors):
            os.close(descriptor)
        self._descriptors.clear()


def _read_event(unit: Path, name: str) -> int | None:
    match = re.fullmatch(r"event=0x([0-9a-f]{1,8})", try_text(unit / "events" / name) or "")
    return int(match[1], 16) if match else None


def _list_policies() -> list[Path]:
    folder = sysfs() / "devices/system/cpu/cpufreq"
    return sorted(folder.glob("policy[0-9]*"), key=lambda path: (len(path.name), path.name))


def _read_cpus(policy: Path) -> tuple[int, ...]:
    # "affected_cpus" lists those that are online, separated by blanks.
    text = (try_text(policy / "affected_cpus") or "").replace(" ", ",")
    try:
        return tuple(parse_cpu_list(text, policy))
    except PowerprofError:
        return ()


def read_frequencies(clocks: PerfClocks | None = None) -> FrequencyReading:
    """Return the counters of this moment."""
    policies = {}
    for policy in _list_policies():
        text = try_text(policy / "stats/time_in_state") or ""
        rows = [[whole(word) for word in line.split()] for line in text.splitlines()]
        ticks = {row[0]: row[1] for row in rows if len(row) == 2 and row[0] is not None and row[1] is not None}
        policies[policy.name] = Policy(_read_cpus(policy), ticks)
    return FrequencyReading(time.monotonic(), policies, clocks.read() if clocks else {})


def read_limits() -> list[FrequencyLimits]:
    """Return the limits of the drivers' choice, one entry for all CPUs with the same limits."""
    import msgspec

    cpus_of: dict[FrequencyLimits, list[int]] = {}
    for policy in _list_policies():
        limits = FrequencyLimits(
            cpus="",
            driver=try_text(policy / "scaling_driver"),
            governor=try_text(policy / "scaling_governor"),
            preference=try_text(policy / "energy_performance_preference"),
            minimum_mhz=_read_mhz(policy / "scaling_min_freq"),
            maximum_mhz=_read_mhz(policy / "scaling_max_freq"),
            hardware_minimum_mhz=_read_mhz(policy / "cpuinfo_min_freq"),
            hardware_maximum_mhz=_read_mhz(policy / "cpuinfo_max_freq"),
            base_mhz=_read_mhz(policy / "base_frequency"),
        )
        cpus_of.setdefault(limits, []).extend(_read_cpus(policy))
    return [msgspec.structs.replace(limits, cpus=format_cpu_list(cpus)) for limits, cpus in cpus_of.items()]


def _read_mhz(path: Path) -> float | None:
    khz = try_int(path)
    return None if khz is None else khz / 1e3


def read_pstate_status() -> str | None:
    """Return the mode of intel_pstate or amd-pstate (active, passive, guided, off). None without these drivers."""
    folder = sysfs() / "devices/system/cpu"
    return next((text for name in ("intel_pstate", "amd_pstate") if (text := try_text(folder / name / "status"))), None)


def read_turbo() -> bool | None:
    """Return whether CPUs may run above their base frequency. None if no file shows it."""
    folder = sysfs() / "devices/system/cpu"
    off, boost = try_int(folder / "intel_pstate/no_turbo"), try_int(folder / "cpufreq/boost")
    return off == 0 if off is not None else None if boost is None else boost == 1


def compute_frequencies(before: FrequencyReading, after: FrequencyReading) -> Frequencies | None:
    """Return the P-states between two readings. None on a host without cpufreq and without APERF."""
    seconds = after.at_s - before.at_s
    if seconds <= 0 or not (after.policies or after.clocks):
        return None
    ticks = {
        cpu: spent
        for name, policy in after.policies.items()
        if (old := before.policies.get(name)) is not None and (spent := _subtract_ticks(old.ticks, policy.ticks))
        for cpu in policy.cpus
    }
    ran = {
        cpu: (new[0] - was[0], new[1] - was[1], (new[2] - was[2]) / seconds)
        for cpu, new in after.clocks.items()
        if (was := before.clocks.get(cpu)) is not None and new[1] > was[1]
    }
    cpus = [
        CpuFrequency(
            cpu=cpu, states=_make_states(ticks.get(cpu, {})), busy_mhz=_busy_mhz([ran[cpu]] if cpu in ran else [])
        )
        for cpu in sorted({*ticks, *ran})
    ]
    return Frequencies(
        states=_average_states([cpu.states for cpu in cpus if cpu.states]),
        cpus=cpus,
        limits=read_limits(),
        busy_mhz=_busy_mhz(ran.values()),
        status=read_pstate_status(),
        turbo=read_turbo(),
    )


def _subtract_ticks(old: Mapping[int, int], new: Mapping[int, int]) -> dict[int, int]:
    """Return the ticks at each frequency.

    Empty if the counters were reset between (`stats/reset`, a CPU that came back).
    """
    spent = {khz: count - old.get(khz, 0) for khz, count in new.items()}
    return spent if sum(spent.values()) > 0 and min(spent.values()) >= 0 else {}


def _make_states(ticks: Mapping[int, int]) -> list[PState]:
    whole_time = sum(ticks.values())
    return [PState(mhz=khz / 1e3, residency_percent=100 * n / whole_time) for khz, n in sorted(ticks.items())]


def _busy_mhz(ran: Iterable[tuple[int, int, float]]) -> float | None:
    """Return Σ APERF ÷ Σ MPERF of the frequency at which MPERF counts, the TSC's."""
    clocks = list(ran)
    mperf = sum(clock[1] for clock in clocks)
    return sum(aperf * tsc_hz for aperf, _, tsc_hz in clocks) / mperf / 1e6 if mperf else None


def _average_states(lists: Sequence[Sequence[PState]]) -> list[PState]:
    """Return the mean of several lists. A frequency missing in a list was not requested in it."""
    sums: dict[float, float] = {}
    for states in lists:
        for state in states:
            sums[state.mhz] = sums.get(state.mhz, 0.0) + state.residency_percent
    return [PState(mhz=mhz, residency_percent=total / len(lists)) for mhz, total in sorted(sums.items())]


def join_frequencies(first: Frequencies, first_s: float, second: Frequencies, second_s: float) -> Frequencies:
    """Return two consecutive windows as one, with the limits of the second.

    Frequencies of running CPUs are weighted by time: a record does not contain how long the CPUs ran.
    """

    def states(a: Sequence[PState], b: Sequence[PState]) -> list[PState]:
        if not a or not b:
            return [*a, *b]
        shares = {state.mhz: state.residency_percent * first_s for state in a}
        for state in b:
            shares[state.mhz] = shares.get(state.mhz, 0.0) + state.residency_percent * second_s
        total = math.fsum((first_s, second_s))
        return [PState(mhz=mhz, residency_percent=share / total) for mhz, share in sorted(shares.items())]

    def mhz(a: float | None, b: float | None) -> float | None:
        return (
            (b if a is None else a) if a is None or b is None else (a * first_s + b * second_s) / (first_s + second_s)
        )

    old, new = ({cpu.cpu: cpu for cpu in each.cpus} for each in (first, second))
    both = sorted(set(old) & set(new))
    return Frequencies(
        states=states(first.states, second.states),
        cpus=[
            CpuFrequency(
                cpu=cpu,
                states=states(old[cpu].states, new[cpu].states),
                busy_mhz=mhz(old[cpu].busy_mhz, new[cpu].busy_mhz),
            )
            for cpu in both
        ],
        limits=second.limits,
        busy_mhz=mhz(first.busy_mhz, second.busy_mhz),
        status=second.status,
        turbo=second.turbo,
    )
