# SPDX-License-Identifier: Apache-2.0
"""Block devices by /proc/diskstats (Documentation/admin-guide/iostats.rst), and the device with a server's files."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import msgspec

from powerprof.model.system_activity import DiskRates
from powerprof.system.files import try_text
from powerprof.system.paths import sysfs
from powerprof.system.reader_process import link_of, process_of, shared
from powerprof.system.tasks import process_folder

_SECTOR_BYTES = 512  # /proc/diskstats counts sectors of 512 bytes
_VIRTUAL_DISKS = re.compile(r"^(loop|ram|zram|dm-|md|sr|fd)")
_FIELDS = 14  # up to the weighted time; discards and flushes came later


class DiskCounters(msgspec.Struct, frozen=True):
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
    """Return every device by name, including partitions and virtual devices. None without a text."""
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
    """Return the names that are whole disks: neither partitions, which repeat their disk, nor made of others."""
    try:
        blocks = {entry.name for entry in (sysfs() / "block").iterdir()}
    except OSError:
        blocks = None
    return {name for name in disks if not _VIRTUAL_DISKS.match(name) and (blocks is None or name in blocks)}


def devices_of(pids: Iterable[int]) -> frozenset[str]:
    """Return MAJOR:MINOR of the devices under the working directories of these processes.

    Database servers work in their data directory. A directory on no device (tmpfs, a network's file system) is left
    out, and so is an unreadable one.
    """
    return frozenset(device for pid in pids if (device := _find_device(process_folder(pid))) is not None)


def _find_device(process: Path) -> str | None:
    directory = link_of(process / "cwd")
    if directory is None:
        return None
    longest, mount = -1, None
    for line in (try_text(process / "mountinfo") or "").splitlines():
        left, _, right = line.partition(" - ")
        words, rest = left.split(), right.split()
        if len(words) < 5 or len(rest) < 2:
            continue
        point = re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), words[4])
        # Of two mounts at one place the later one covers the first.
        if (directory == point or directory.startswith(point.rstrip("/") + "/")) and len(point) >= longest:
            longest, mount = len(point), (words[2], rest[1])
    if mount is None:
        return None
    device, source = mount
    if device.startswith("0:"):  # a file system of several devices, such as btrfs, has no device number
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
    """Return the rates of the `wanted` devices and of devices with the numbers `of_server`.

    A device that appeared or was reset between the readings is left out. So is an idle one, unless it has the server's
    files.
    """
    rates = []
    chosen = set(wanted) | {name for name, disk in after.items() if disk.number in of_server}
    for name in sorted(chosen & set(before) & set(after)):
        old, new = before[name], after[name]
        is_server = new.number in of_server
        reads, writes = new.reads - old.reads, new.writes - old.writes
        read_ms, write_ms = new.read_ms - old.read_ms, new.write_ms - old.write_ms
        if reads < 0 or writes < 0 or (not is_server and not reads and not writes and new.busy_ms == old.busy_ms):
            continue
        rates.append(
            DiskRates(
                name=name,
                of_server=is_server,
                reads_hz=reads / seconds,
                writes_hz=writes / seconds,
                read_bytes_hz=(new.read_sectors - old.read_sectors) * _SECTOR_BYTES / seconds,
                write_bytes_hz=(new.written_sectors - old.written_sectors) * _SECTOR_BYTES / seconds,
                read_ms=read_ms / reads if reads else None,
                write_ms=write_ms / writes if writes else None,
                service_ms=(read_ms + write_ms) / (reads + writes) if reads + writes else None,
                queue_count=(new.weighted_ms - old.weighted_ms) / 1e3 / seconds,
                # Rounding to jiffies may exceed the window's length.
                busy_percent=min(100.0, (new.busy_ms - old.busy_ms) / 10 / seconds),
            )
        )
    return rates


def join_disk_rates(
    first: Sequence[DiskRates], first_s: float, second: Sequence[DiskRates], second_s: float
) -> list[DiskRates]:
    """Return two consecutive windows as one: rates weighted by time, times of requests by requests."""
    both = {disk.name: [(disk, first_s)] for disk in first}
    for disk in second:
        both.setdefault(disk.name, []).append((disk, second_s))
    return [_join_disk(parts, first_s + second_s) for _, parts in sorted(both.items())]


_WEIGHTED = ("reads_hz", "writes_hz", "read_bytes_hz", "write_bytes_hz", "queue_count", "busy_percent")


def _join_disk(parts: Sequence[tuple[DiskRates, float]], total_s: float) -> DiskRates:
    def rate(values: Iterable[float | None]) -> float:
        return sum((value or 0.0) * s for value, (_, s) in zip(values, parts, strict=True)) / total_s

    def per_operation(values: Iterable[float | None], operations: Sequence[float]) -> float | None:
        known = [(value, count) for value, count in zip(values, operations, strict=True) if value is not None and count]
        return sum(value * n for value, n in known) / sum(n for _, n in known) if known else None

    disks = [disk for disk, _ in parts]
    reads, writes = [disk.reads_hz * s for disk, s in parts], [disk.writes_hz * s for disk, s in parts]
    return DiskRates(
        name=disks[0].name,
        of_server=any(disk.of_server for disk in disks),
        **{name: rate(getattr(disk, name) for disk in disks) for name in _WEIGHTED},
        read_ms=per_operation((disk.read_ms for disk in disks), reads),
        write_ms=per_operation((disk.write_ms for disk in disks), writes),
        service_ms=per_operation(
            (disk.service_ms for disk in disks), [r + w for r, w in zip(reads, writes, strict=True)]
        ),
    )
