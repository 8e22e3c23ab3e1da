# SPDX-License-Identifier: Apache-2.0
"""System activity between two moments: disks, network, faults, interrupts, and waiting for a CPU."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from powerprof.measure.disks import DiskCounters, compute_disk_rates, join_disk_rates, parse_disks, whole_disks
from powerprof.measure.perf_events import TYPE_SOFTWARE, open_counter, read_counter
from powerprof.measure.procfs import Stat, compute_cpu_times, read_stat
from powerprof.measure.pstates import (
    FrequencyReading,
    PerfClocks,
    compute_frequencies,
    join_frequencies,
    read_frequencies,
)
from powerprof.model.system_activity import CpuLoad, DeviceInterrupts, DiskRates, OsRates
from powerprof.system import open_files
from powerprof.system.errors import PowerprofError
from powerprof.system.files import try_text
from powerprof.system.paths import is_this_host, procfs, sysfs
from powerprof.system.tasks import process_folder

_MIGRATIONS = 4  # PERF_COUNT_SW_CPU_MIGRATIONS, include/uapi/linux/perf_event.h
# The suffixes of one device's vectors: virtio1-req.0, eth0-TxRx-3, nvme0q12.
_VECTOR = re.compile(
    r"(?P<device>.*?\w)(?:[-_](?:tx|rx|txrx|req|input|output|event|config|comp|queue|[a-z]+_vq)\b.*|(?<=\d)q\d+)$",
    re.IGNORECASE,
)
_MOST_DEVICES = 20


class OsReading(msgspec.Struct, frozen=True):
    """The counters at one moment of CLOCK_MONOTONIC. `run_delay_ns` is the time that tasks waited for each CPU."""

    at_s: float
    disks: dict[str, DiskCounters] | None = None
    network: tuple[int, int, int] | None = None
    faults: tuple[int, int] | None = None
    run_delay_ns: dict[int, int] | None = None
    pressure_us: int | None = None
    stat: Stat | None = None
    migrations: int | None = None
    frequencies: FrequencyReading | None = None
    io_pressure_us: int | None = None


class Migrations:
    """Counts task migrations between CPUs of the whole host. Empty if the kernel refuses it."""

    def __init__(self, cpus: Sequence[int]) -> None:
        self._descriptors: list[int] = []
        limit = open_files.count_spare() // 8
        try:
            for cpu in cpus if is_this_host() and len(cpus) <= limit else ():
                self._descriptors.append(open_counter(TYPE_SOFTWARE, _MIGRATIONS, cpu))
        except OSError:
            self.close()

    def total(self) -> int | None:
        """Return the migrations since the counters were opened. A CPU that no longer exists is not counted."""
        try:
            counts = [read_counter(descriptor) for descriptor in self._descriptors]
        except OSError:
            return None
        return sum(count for count in counts if count is not None) if counts else None

    def close(self) -> None:
        """Close the descriptors."""
        for descriptor in self._descriptors:
            os.close(descriptor)
        self._descriptors.clear()


def networks_of(pids: Iterable[int]) -> tuple[Path, ...]:
    """Return the interface counters of each network namespace of these processes other than ours."""
    networks: dict[str, Path] = {}
    for process in map(process_folder, pids):
        with suppress(OSError):
            networks.setdefault(os.readlink(process / "ns/net"), process / "net/dev")
    with suppress(OSError):
        networks.pop(os.readlink(procfs() / "self/ns/net"), None)
    return tuple(networks.values())


def read_counters(
    root: Path | None = None,
    migrations: Migrations | None = None,
    clocks: PerfClocks | None = None,
    networks: Sequence[Path] = (),
) -> OsReading:
    """Return the counters of this moment, with further `networks` (see `networks_of`). Unreadable ones are None."""
    base = root or procfs()
    try:
        stat = read_stat(base)
    except PowerprofError:
        stat = None
    return OsReading(
        time.monotonic(),
        parse_disks(try_text(base / "diskstats")),
        _sum_networks([base / "net/dev", *networks]),
        parse_faults(try_text(base / "vmstat")),
        parse_run_delay(try_text(base / "schedstat")),
        parse_pressure(try_text(base / "pressure/cpu")),
        stat,
        migrations.total() if migrations else None,
        read_frequencies(clocks),
        parse_pressure(try_text(base / "pressure/io")),
    )


def _sum_networks(files: Sequence[Path]) -> tuple[int, int, int] | None:
    """Return the sum of the counters of several networks. None if one is unknown."""
    counters = [counts for file in files if (counts := parse_network(try_text(file))) is not None]
    if len(counters) < len(files):
        return None
    received, sent, packets = (sum(column) for column in zip(*counters, strict=True))
    return received, sent, packets


def parse_network(text: str | None) -> tuple[int, int, int] | None:
    """Return bytes received, bytes sent and packets both ways, over all interfaces. Local clients use loopback."""
    if text is None:
        return None
    received = sent = packets = 0
    for line in text.splitlines():
        _, colon, rest = line.partition(":")
        words = rest.split()
        if not colon or len(words) < 10 or not words[0].isdigit():
            continue
        received, sent = received + int(words[0]), sent + int(words[8])
        packets += int(words[1]) + int(words[9])
    return received, sent, packets


def parse_faults(text: str | None) -> tuple[int, int] | None:
    """Return the page faults, and those that had to read."""
    if text is None:
        return None
    values = dict(line.split(None, 1) for line in text.splitlines() if len(line.split()) == 2)
    try:
        return int(values["pgfault"]), int(values["pgmajfault"])
    except (KeyError, ValueError):
        return None


def parse_run_delay(text: str | None) -> dict[int, int] | None:
    """Return the nanoseconds that tasks waited for each CPU (Documentation/scheduler/sched-stats.rst)."""
    waits = {}
    for line in (text or "").splitlines():
        words = line.split()
        if words and re.fullmatch(r"cpu\d+", words[0]) and len(words) >= 10 and words[8].isdigit():
            waits[int(words[0][3:])] = int(words[8])
    return waits or None


def parse_pressure(text: str | None) -> int | None:
    """Return the microseconds in which at least one task waited for the resource."""
    match = re.search(r"^some .*total=(\d+)", text or "", re.MULTILINE)
    return int(match[1]) if match else None


def compute_os_rates(before: OsReading, after: OsReading, of_server: frozenset[str] = frozenset()) -> OsRates:
    """Return the rates between two readings. `of_server` are the numbers of the devices with the server's files."""
    seconds = after.at_s - before.at_s
    if seconds <= 0:
        return OsRates()
    whole: set[str] = set()
    disks: list[DiskRates] = []
    is_known = before.disks is not None and after.disks is not None
    if before.disks is not None and after.disks is not None:
        whole = whole_disks(set(before.disks) & set(after.disks))
        disks = compute_disk_rates(before.disks, after.disks, seconds, whole, of_server)
    of_whole = [disk for disk in disks if disk.name in whole]
    summed = ("reads_hz", "writes_hz", "read_bytes_hz", "write_bytes_hz") if is_known else ()
    net: list[float | None] = [None] * 3
    if before.network is not None and after.network is not None:
        net = [(new - old) / seconds for old, new in zip(before.network, after.network, strict=True)]
    faults: list[float | None] = [None] * 2
    if before.faults is not None and after.faults is not None:
        faults = [(new - old) / seconds for old, new in zip(before.faults, after.faults, strict=True)]
    waits = _compute_waiting_tasks(before.run_delay_ns, after.run_delay_ns, seconds)
    return OsRates(
        **{f"disk_{name}": sum((getattr(disk, name) for disk in of_whole), 0.0) for name in summed},
        disk_busy_percent=max((disk.busy_percent for disk in of_whole), default=0.0) if is_known else None,
        network_receive_bytes_hz=net[0],
        network_send_bytes_hz=net[1],
        network_packets_hz=net[2],
        page_faults_hz=faults[0],
        major_faults_hz=faults[1],
        waiting_tasks=sum(waits.values()) if waits is not None else None,
        cpu_pressure_percent=_compute_rate(before.pressure_us, after.pressure_us, 1e4 * seconds),
        io_pressure_percent=_compute_rate(before.io_pressure_us, after.io_pressure_us, 1e4 * seconds),
        migrations_hz=_compute_rate(before.migrations, after.migrations, seconds),
        disks=disks,
        interrupts=_compute_device_interrupts(before.stat, after.stat, seconds),
        cpus=_compute_cpu_loads(before.stat, after.stat, waits or {}),
        frequencies=compute_frequencies(before.frequencies, after.frequencies)
        if before.frequencies and after.frequencies
        else None,
    )


def _compute_rate(before: int | None, after: int | None, seconds: float) -> float | None:
    return None if before is None or after is None else (after - before) / seconds


def _compute_waiting_tasks(
    before: dict[int, int] | None, after: dict[int, int] | None, seconds: float
) -> dict[int, float] | None:
    if before is None or after is None:
        return None
    return {cpu: (after[cpu] - before[cpu]) / 1e9 / seconds for cpu in sorted(set(before) & set(after))}


def _compute_cpu_loads(before: Stat | None, after: Stat | None, waits: Mapping[int, float]) -> list[CpuLoad]:
    times = compute_cpu_times(before, after).spent if before and after else {}
    return [
        CpuLoad(cpu=cpu, busy_percent=100 * (1 - spent["idle"] / sum(spent.values())), waiting_tasks=waits.get(cpu))
        for cpu, spent in times.items()
    ]


def _compute_device_interrupts(before: Stat | None, after: Stat | None, seconds: float) -> list[DeviceInterrupts]:
    """Return interrupts by device, most frequent first. Those without a number (timers, other CPUs) have no device."""
    counts: dict[str, int] = {}
    for number, count in after.interrupts.items() if before and after else ():
        delta = count - before.interrupts.get(number, 0)  # type: ignore[union-attr]
        actions = try_text(sysfs() / f"kernel/irq/{number}/actions") if delta > 0 else None
        if actions:
            device = "+".join(dict.fromkeys(map(device_of, actions.split(","))))
            counts[device] = counts.get(device, 0) + delta
    most = sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:_MOST_DEVICES]
    return [DeviceInterrupts(device=device, rate_hz=count / seconds) for device, count in most]


def device_of(action: str) -> str:
    """Return the device in the kernel's name of an interrupt handler, without vector and queue."""
    match = _VECTOR.match(action)
    return match["device"] if match else action


def join_os_rates(first: OsRates, first_s: float, second: OsRates, second_s: float) -> OsRates:
    """Return two consecutive windows as one."""
    total = first_s + second_s

    def mean(a: float | None, b: float | None) -> float | None:
        return None if a is None or b is None else (a * first_s + b * second_s) / total

    lists = ("disks", "interrupts", "cpus", "frequencies")
    plain = [name for name in OsRates.__struct_fields__ if name not in lists]
    counts = {each.device: each.rate_hz * first_s for each in first.interrupts}
    for each in second.interrupts:
        counts[each.device] = counts.get(each.device, 0.0) + each.rate_hz * second_s
    loads = {load.cpu: load for load in first.cpus}
    both = [(loads[load.cpu], load) for load in second.cpus if load.cpu in loads]
    return OsRates(
        **{name: mean(getattr(first, name), getattr(second, name)) for name in plain},
        disks=join_disk_rates(first.disks, first_s, second.disks, second_s),
        interrupts=[
            DeviceInterrupts(device=device, rate_hz=count / total)
            for device, count in sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:_MOST_DEVICES]
        ],
        cpus=[
            CpuLoad(
                cpu=a.cpu,
                busy_percent=(a.busy_percent * first_s + b.busy_percent * second_s) / total,
                waiting_tasks=mean(a.waiting_tasks, b.waiting_tasks),
            )
            for a, b in both
        ],
        frequencies=join_frequencies(first.frequencies, first_s, second.frequencies, second_s)
        if first.frequencies and second.frequencies
        else None,
    )
