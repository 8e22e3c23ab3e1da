# SPDX-License-Identifier: Apache-2.0
"""Block devices by /proc/diskstats (Documentation/admin-guide/iostats.rst), and which one holds a server's files."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from powerprof.model.records import DiskRates
from powerprof.system.files import try_text
from powerprof.system.paths import procfs, sysfs
from powerprof.system.reader_process import link_of, process_of, shared

_SECTOR_BYTES = 512  # /proc/diskstats counts sectors of 512 bytes
_VIRTUAL_DISKS = re.compile(r"^(loop|ram|zram|dm-|md|sr|fd)")
_FIELDS = 14  # up to the weighted time; discards and flushes came later


@dataclass(frozen=True, slots=True)
class DiskCounters:
    """The counters of one device since it appeared. Times are ms; `weighted_ms` is summed over requests."""

    number: str  # MAJOR:MINOR
    reads: int
    read_sectors: int
    read_ms: int
    writes: int
    written_sectors: int
    write_ms: int
    busy_ms: int
    weighted_ms: int


def parse_disks(text: str | None) -> dict[str, DiskCounters] | None:
    """Every device by name, partitions and virtual ones too; None where there is no text."""
    if text is None:
        return None
    disks = {}
    for line in text.splitlines():
        words = line.split()
        try:
            numbers = [int(word) for word in words[3:_FIELDS]]
        except ValueError:
            continue
        if len(numbers) == _FIELDS - 3:
            reads, _, read, read_ms, writes, _, written, write_ms, _, busy, weighted = numbers
            device = f"{words[0]}:{words[1]}"
            disks[words[2]] = DiskCounters(device, reads, read, read_ms, writes, written, write_ms, busy, weighted)
    return disks


def whole_disks(disks: Iterable[str]) -> set[str]:
    """Those that are neither a partition, which repeats its disk, nor made of others."""
    try:
        blocks = {entry.name for entry in (sysfs() / "block").iterdir()}
    except OSError:
        blocks = None
    return {name for name in disks if not _VIRTUAL_DISKS.match(name) and (blocks is None or name in blocks)}


def devices_of(pids: Iterable[int]) -> frozenset[str]:
    """MAJOR:MINOR of the devices under the working directories of these processes: database servers work in their data
    directory. None of it where that lies on no device (tmpfs, a network's file system) or cannot be read.
    """
    return frozenset(device for pid in pids if (device := _device_of(procfs() / str(pid))) is not None)


def _device_of(process: Path) -> str | None:
    place = link_of(process / "cwd")
    if place is None:
        return None
    longest, found = -1, None
    for line in (try_text(process / "mountinfo") or "").splitlines():
        own, _, other = line.partition(" - ")
        words, rest = own.split(), other.split()
        if len(words) < 5 or len(rest) < 2:
            continue
        point = re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), words[4])
        # Of two mounts at one place the later one covers the first.
        if (place == point or place.startswith(point.rstrip("/") + "/")) and len(point) >= longest:
            longest, found = len(point), (words[2], rest[1])
    if found is None:
        return None
    device, source = found
    if device.startswith("0:"):  # a file system of several devices, such as btrfs, names none by its number
        name = shared().real_path(process_of(process), source).name if source.startswith("/dev/") else ""
        return try_text(sysfs() / "class/block" / name / "dev") if name else None
    return device


def compute_disk_rates(
    before: Mapping[str, DiskCounters],
    after: Mapping[str, DiskCounters],
    seconds: float,
    wanted: Iterable[str],
    of_server: frozenset[str] = frozenset(),
) -> list[DiskRates]:
    """What the `wanted` devices did, and those with the numbers `of_server`; a device that appeared or was reset
    meanwhile is left out, and one that did nothing, unless the server's files lie on it."""
    each = []
    chosen = set(wanted) | {name for name, disk in after.items() if disk.number in of_server}
    for name in sorted(chosen & set(before) & set(after)):
        old, new = before[name], after[name]
        server = new.number in of_server
        reads, writes = new.reads - old.reads, new.writes - old.writes
        read_ms, write_ms = new.read_ms - old.read_ms, new.write_ms - old.write_ms
        if reads < 0 or writes < 0 or (not server and not reads and not writes and new.busy_ms == old.busy_ms):
            continue
        each.append(
            DiskRates(
                name=name,
                of_server=server,
                reads_hz=reads / seconds,
                writes_hz=writes / seconds,
                read_bytes_hz=(new.read_sectors - old.read_sectors) * _SECTOR_BYTES / seconds,
                write_bytes_hz=(new.written_sectors - old.written_sectors) * _SECTOR_BYTES / seconds,
                read_ms=read_ms / reads if reads else None,
                write_ms=write_ms / writes if writes else None,
                service_ms=(read_ms + write_ms) / (reads + writes) if reads + writes else None,
                queue_count=(new.weighted_ms - old.weighted_ms) / 1e3 / seconds,
                # Rounded to jiffies, it may pass the window's length.
                busy_percent=min(100.0, (new.busy_ms - old.busy_ms) / 10 / seconds),
            )
        )
    return each


def join_disk_rates(
    first: Sequence[DiskRates], first_s: float, second: Sequence[DiskRates], second_s: float
) -> list[DiskRates]:
    """Two windows that follow one another: rates weighted by time, times of requests by requests."""
    both = {disk.name: [(disk, first_s)] for disk in first}
    for disk in second:
        both.setdefault(disk.name, []).append((disk, second_s))
    return [_joined(parts, first_s + second_s) for _, parts in sorted(both.items())]


def _joined(parts: Sequence[tuple[DiskRates, float]], total_s: float) -> DiskRates:
    def rate(values: Iterable[float | None]) -> float:
        return sum((value or 0.0) * s for value, (_, s) in zip(values, parts, strict=True)) / total_s

    def each(values: Iterable[float | None], operations: Sequence[float]) -> float | None:
        known = [(value, count) for value, count in zip(values, operations, strict=True) if value is not None and count]
        return sum(value * n for value, n in known) / sum(n for _, n in known) if known else None

    disks = [disk for disk, _ in parts]
    reads, writes = [disk.reads_hz * s for disk, s in parts], [disk.writes_hz * s for disk, s in parts]
    return DiskRates(
        name=disks[0].name,
        of_server=any(disk.of_server for disk in disks),
        reads_hz=rate(disk.reads_hz for disk in disks),
        writes_hz=rate(disk.writes_hz for disk in disks),
        read_bytes_hz=rate(disk.read_bytes_hz for disk in disks),
        write_bytes_hz=rate(disk.write_bytes_hz for disk in disks),
        read_ms=each((disk.read_ms for disk in disks), reads),
        write_ms=each((disk.write_ms for disk in disks), writes),
        service_ms=each((disk.service_ms for disk in disks), [r + w for r, w in zip(reads, writes, strict=True)]),
        queue_count=rate(disk.queue_count for disk in disks),
        busy_percent=rate(disk.busy_percent for disk in disks),
    )
