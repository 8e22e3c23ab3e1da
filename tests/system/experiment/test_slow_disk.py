# SPDX-License-Identifier: Apache-2.0
"""Service times of a disk that is slowed by a control group, against the clock of who asks it."""

from __future__ import annotations

import mmap
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from powerprof.database import disk_limits
from powerprof.measure import oslayer

_READS, _READS_HZ = 40, 40
_BLOCK = 4096


@pytest.fixture
def slow_disk(tmp_path: Path) -> Iterator[Path]:
    """A loop device whose file lies on a disk that this process may read 40 times a second.

    The kernel delays the loop's own reads of the file; the requests to the loop device take that long.
    """
    image = tmp_path / "image"
    image.write_bytes(os.urandom(_BLOCK) * 1024)
    root, disk = disk_limits.find_group_root(), disk_limits.find_disk(image)
    group = root / f"powerprof-test-{os.getpid()}"
    made = subprocess.run(
        ["losetup", "--find", "--show", "--direct-io=on", image], capture_output=True, text=True, check=True
    )
    device, home = Path(made.stdout.strip()), _group_of_this_process(root)
    group.mkdir()
    try:
        for file, text in disk_limits.group_settings(root, disk, _READS_HZ).items():
            (group / file).write_text(text)
        (group / "cgroup.procs").write_text(str(os.getpid()))
        yield device
    finally:
        (home / "cgroup.procs").write_text(str(os.getpid()))
        subprocess.run(["losetup", "--detach", device], check=True)
        group.rmdir()


def _group_of_this_process(root: Path) -> Path:
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        group = root / path.lstrip("/")
        if controllers == ("blkio" if disk_limits.is_version_1(root) else "") and (group / "cgroup.procs").exists():
            return group
    return root


def _kernel_counts(device: Path) -> list[int]:
    """Return the reads, their milliseconds and the busy milliseconds (Documentation/block/stat.rst)."""
    numbers = Path("/sys/block", device.name, "stat").read_text().split()
    return [int(numbers[place]) for place in (0, 3, 9)]


@pytest.mark.loopdevice
def test_service_time_is_that_of_the_requesting_process(slow_disk: Path) -> None:
    descriptor = os.open(slow_disk, os.O_RDONLY | os.O_DIRECT)
    number = slow_disk.stat().st_rdev
    of_server = frozenset({f"{os.major(number)}:{os.minor(number)}"})
    page, waits_s = mmap.mmap(-1, _BLOCK), []
    before, began, began_s = oslayer.read_counters(), _kernel_counts(slow_disk), time.perf_counter()
    for index in range(_READS):
        start_s = time.perf_counter()
        os.preadv(descriptor, [page], _BLOCK * (index * 37 % 1024))
        waits_s.append(time.perf_counter() - start_s)
    elapsed_s, ended = time.perf_counter() - began_s, _kernel_counts(slow_disk)
    rates = oslayer.compute_os_rates(before, oslayer.read_counters(), of_server)
    os.close(descriptor)
    disk = next(disk for disk in rates.disks if disk.of_server)
    assert disk.name == slow_disk.name and disk.service_ms is not None and disk.queue_count is not None
    reads, kernel_ms, busy_ms = (new - old for old, new in zip(began, ended, strict=True))
    assert disk.service_ms == pytest.approx(kernel_ms / reads, rel=0.02)
    assert disk.read_ms == disk.service_ms and disk.write_ms is None
    # The delay is in each request. A process that gets no CPU after its request waits longer than the request.
    assert 0.6 * 1e3 / _READS_HZ < disk.service_ms < 1.02 * 1e3 * sum(waits_s) / _READS
    # One request after the other: one is outstanding while the disk is busy.
    assert disk.busy_percent == pytest.approx(busy_ms / elapsed_s / 10, abs=3)
    assert 100 * disk.queue_count == pytest.approx(disk.busy_percent, abs=5)
    assert disk.reads_hz == pytest.approx(reads / elapsed_s, rel=0.05)
    # One task waits for I/O all the time; the kernel weighs that by the CPUs that others keep busy.
    assert rates.io_pressure_percent is None or rates.io_pressure_percent > 80 / (os.cpu_count() or 1)
