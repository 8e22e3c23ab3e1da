# SPDX-License-Identifier: Apache-2.0
"""What the system did in a window: disks, network, faults, interrupts, CPUs. Unknown is None, never 0."""

from __future__ import annotations

from typing import Literal

import msgspec


class AchievedResidency(msgspec.Struct, frozen=True, kw_only=True):
    """What the hardware says it did, where a source knows: `cpuidle` counts requests only.

    The mean over all units of that scope.
    """

    scope: Literal["cpu", "core", "package"]
    name: str
    residency_percent: float


class DiskRates(msgspec.Struct, frozen=True, kw_only=True):
    """One block device. `service_ms` is the mean time of a request from its start to its end, the queue included
    (iostat's await; Solaris' svc_t), `read_ms` and `write_ms` that of reads and of writes alone; None without one.

    `queue_count` is the mean number of requests outstanding, `busy_percent` the share of time with at least one.
    `of_server`: the server's files lie on it.
    """

    name: str
    of_server: bool = False
    reads_hz: float
    writes_hz: float
    read_bytes_hz: float
    write_bytes_hz: float
    read_ms: float | None = None
    write_ms: float | None = None
    service_ms: float | None = None
    queue_count: float | None = None
    busy_percent: float


class DeviceInterrupts(msgspec.Struct, frozen=True, kw_only=True):
    """Interrupts of one device, all its vectors and queues, on all CPUs."""

    device: str
    rate_hz: float


class PState(msgspec.Struct, frozen=True, kw_only=True):
    """One frequency that cpufreq can request, and the share of time in which it was requested, idle or not."""

    mhz: float
    residency_percent: float


class CpuFrequency(msgspec.Struct, frozen=True, kw_only=True):
    """One CPU: its P-states, and the mean frequency at which it really ran while it ran (APERF ÷ MPERF)."""

    cpu: int
    states: list[PState] = []
    busy_mhz: float | None = None


class FrequencyLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Between what a driver may choose for these CPUs (the kernel's list: 0-3,8), and what the hardware could.

    `preference` is energy_performance_preference, where the hardware chooses by itself.
    """

    cpus: str
    driver: str | None = None
    governor: str | None = None
    preference: str | None = None
    minimum_mhz: float | None = None
    maximum_mhz: float | None = None
    hardware_minimum_mhz: float | None = None
    hardware_maximum_mhz: float | None = None
    base_mhz: float | None = None


class Frequencies(msgspec.Struct, frozen=True, kw_only=True):
    """`states` are the mean over all CPUs, together 100 %; empty where no driver counts (intel_pstate, amd-pstate: the
    hardware chooses), whose mode is `status`. `busy_mhz` is the mean over the time in which CPUs ran."""

    states: list[PState] = []
    cpus: list[CpuFrequency] = []
    limits: list[FrequencyLimits] = []
    busy_mhz: float | None = None
    status: str | None = None
    turbo: bool | None = None


class CpuLoad(msgspec.Struct, frozen=True, kw_only=True):
    """One CPU: the share of accounted time in which it was not idle, and how many tasks waited for it on average."""

    cpu: int
    busy_percent: float
    waiting_tasks: float | None = None


class OsRates(msgspec.Struct, frozen=True, kw_only=True):
    """Rates over one window. `disk_…` are of all whole disks, `disks` each of them and what holds the server's files.

    `waiting_tasks` is the mean number of tasks that were runnable and had no CPU, `cpu_pressure_percent` the share of
    time in which there was one (Documentation/accounting/psi.rst), `io_pressure_percent` the same of I/O, also of what
    a control group delays; `migrations_hz` how often a task moved to another CPU. None where a kernel counts it not.
    """

    disk_reads_hz: float | None = None
    disk_writes_hz: float | None = None
    disk_read_bytes_hz: float | None = None
    disk_write_bytes_hz: float | None = None
    disk_busy_percent: float | None = None
    network_receive_bytes_hz: float | None = None
    network_send_bytes_hz: float | None = None
    network_packets_hz: float | None = None
    page_faults_hz: float | None = None
    major_faults_hz: float | None = None
    waiting_tasks: float | None = None
    cpu_pressure_percent: float | None = None
    io_pressure_percent: float | None = None
    migrations_hz: float | None = None
    disks: list[DiskRates] = []
    interrupts: list[DeviceInterrupts] = []
    cpus: list[CpuLoad] = []
    frequencies: Frequencies | None = None
