# SPDX-License-Identifier: Apache-2.0
"""What the system beneath the server did between two moments: disks, network, faults, waiting for a CPU."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from pathlib import Path

import msgspec

from powerprof.files import try_text
from powerprof.paths import procfs, sysfs

_SECTOR_BYTES = 512  # /proc/diskstats counts sectors of 512 bytes (Documentation/admin-guide/iostats.rst)
_VIRTUAL_DISKS = re.compile(r"^(loop|ram|zram|dm-|md|sr|fd)")


class OsRates(msgspec.Struct, frozen=True, kw_only=True):
    """Rates over one window. `waiting_tasks` is the mean number of tasks that were runnable and had no CPU,
    `cpu_pressure_percent` the share of time in which there was one (Documentation/accounting/psi.rst).

    None where this kernel does not count it.
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


@dataclass(frozen=True)
class Reading:
    """The counters at one moment of CLOCK_MONOTONIC."""

    at_s: float
    disks: dict[str, tuple[int, int, int, int, int]] | None
    network: tuple[int, int, int] | None
    faults: tuple[int, int] | None
    run_delay_ns: int | None
    pressure_us: int | None = None


def read(root: Path | None = None) -> Reading:
    """This moment's counters; what cannot be read is None."""
    base = root or procfs()
    return Reading(
        time.monotonic(),
        parse_disks(try_text(base / "diskstats"), _whole_disks()),
        parse_network(try_text(base / "net/dev")),
        parse_faults(try_text(base / "vmstat")),
        parse_run_delay(try_text(base / "schedstat")),
        parse_pressure(try_text(base / "pressure/cpu")),
    )


def _whole_disks() -> set[str] | None:
    """Partitions repeat their disk: only what /sys/block names counts; None where it cannot be read."""
    try:
        return {entry.name for entry in (sysfs() / "block").iterdir() if not _VIRTUAL_DISKS.match(entry.name)}
    except OSError:
        return None


def parse_disks(text: str | None, wanted: set[str] | None) -> dict[str, tuple[int, int, int, int, int]] | None:
    """By disk: reads, sectors read, writes, sectors written, ms with a request outstanding."""
    if text is None:
        return None
    disks = {}
    for line in text.splitlines():
        words = line.split()
        if len(words) < 13 or (wanted is not None and words[2] not in wanted) or _VIRTUAL_DISKS.match(words[2]):
            continue
        try:
            disks[words[2]] = (int(words[3]), int(words[5]), int(words[7]), int(words[9]), int(words[12]))
        except ValueError:
            continue
    return disks


def parse_network(text: str | None) -> tuple[int, int, int] | None:
    """Bytes received, bytes sent, packets both ways, over all interfaces, loopback too: local clients use it."""
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
    """Page faults, and those that had to read."""
    if text is None:
        return None
    values = dict(line.split(None, 1) for line in text.splitlines() if len(line.split()) == 2)
    try:
        return int(values["pgfault"]), int(values["pgmajfault"])
    except (KeyError, ValueError):
        return None


def parse_run_delay(text: str | None) -> int | None:
    """Nanoseconds that tasks have waited for a CPU, over all CPUs (Documentation/scheduler/sched-stats.rst)."""
    if text is None:
        return None
    total, seen = 0, False
    for line in text.splitlines():
        words = line.split()
        if words and re.fullmatch(r"cpu\d+", words[0]) and len(words) >= 10 and words[8].isdigit():
            total, seen = total + int(words[8]), True
    return total if seen else None


def parse_pressure(text: str | None) -> int | None:
    """Microseconds in which a task waited for a CPU."""
    match = re.search(r"^some .*total=(\d+)", text or "", re.MULTILINE)
    return int(match[1]) if match else None


def between(before: Reading, after: Reading) -> OsRates:
    """The rates between two readings."""
    seconds = after.at_s - before.at_s
    if seconds <= 0:
        return OsRates()
    disks: list[float | None] = [None] * 5
    if before.disks is not None and after.disks is not None:
        both = set(before.disks) & set(after.disks)
        sums = [sum(after.disks[name][i] - before.disks[name][i] for name in both) for i in range(5)]
        disks = [value / seconds for value in sums]
        disks[4] = max((after.disks[n][4] - before.disks[n][4] for n in both), default=0) / seconds / 10
    net: list[float | None] = [None] * 3
    if before.network is not None and after.network is not None:
        net = [(new - old) / seconds for old, new in zip(before.network, after.network, strict=True)]
    faults: list[float | None] = [None] * 2
    if before.faults is not None and after.faults is not None:
        faults = [(new - old) / seconds for old, new in zip(before.faults, after.faults, strict=True)]
    waiting = None
    if before.run_delay_ns is not None and after.run_delay_ns is not None:
        waiting = (after.run_delay_ns - before.run_delay_ns) / 1e9 / seconds
    pressure = None
    if before.pressure_us is not None and after.pressure_us is not None:
        pressure = (after.pressure_us - before.pressure_us) / 1e4 / seconds
    read_sectors, written_sectors = disks[1], disks[3]
    return OsRates(
        disk_reads_hz=disks[0],
        disk_writes_hz=disks[2],
        disk_read_bytes_hz=None if read_sectors is None else read_sectors * _SECTOR_BYTES,
        disk_write_bytes_hz=None if written_sectors is None else written_sectors * _SECTOR_BYTES,
        disk_busy_percent=disks[4],
        network_receive_bytes_hz=net[0],
        network_send_bytes_hz=net[1],
        network_packets_hz=net[2],
        page_faults_hz=faults[0],
        major_faults_hz=faults[1],
        waiting_tasks=waiting,
        cpu_pressure_percent=pressure,
    )
