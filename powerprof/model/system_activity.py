# SPDX-License-Identifier: Apache-2.0
"""System activity in a window: disks, network, faults, interrupts, CPUs."""

from __future__ import annotations

import msgspec


class DiskRates(msgspec.Struct, frozen=True, kw_only=True):
    """One block device.

    Attributes:
        of_server: holds the server's files.
        read_ms, write_ms: mean time of one.
        service_ms: mean time of a request with its queue (iostat's await).
        queue_count: mean number of outstanding requests.
        busy_percent: time with an outstanding request.
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
    """Interrupts of one device on all CPUs."""

    device: str
    rate_hz: float


class PState(msgspec.Struct, frozen=True, kw_only=True):
    """A requested frequency and its share of time, idle or not."""

    mhz: float
    residency_percent: float


class CpuFrequency(msgspec.Struct, frozen=True, kw_only=True):
    """One CPU: its P-states, and its mean frequency while it ran."""

    cpu: int
    states: list[PState] = []
    busy_mhz: float | None = None


class FrequencyLimits(msgspec.Struct, frozen=True, kw_only=True):
    """The driver's and the hardware's range. `preference`: energy_performance_preference."""

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
    """P-states and frequencies of a window.

    Attributes:
        states: means over all CPUs. Empty if the driver does not count.
        busy_mhz: mean while CPUs ran.
        status: mode of intel_pstate or amd-pstate.
    """

    states: list[PState] = []
    cpus: list[CpuFrequency] = []
    limits: list[FrequencyLimits] = []
    busy_mhz: float | None = None
    status: str | None = None
    turbo: bool | None = None


class CpuLoad(msgspec.Struct, frozen=True, kw_only=True):
    """One CPU, and the mean number of tasks that waited for it."""

    cpu: int
    busy_percent: float
    waiting_tasks: float | None = None


class OsRates(msgspec.Struct, frozen=True, kw_only=True):
    """Rates of the host over one window.

    Attributes:
        disk_reads_hz: like all `disk_…` over all whole disks.
        waiting_tasks: mean number of runnable tasks without a CPU.
        cpu_pressure_percent, io_pressure_percent: time in which a task was delayed (PSI).
        migrations_hz: moves of tasks to another CPU.
        disks: whole disks, and devices of the server's files.
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
