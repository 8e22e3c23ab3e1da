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

from powerprof.database import runtree
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
    root, disk = runtree.find_group_root(), runtree.find_disk(image)
    group = root / f"powerprof-test-{os.getpid()}"
    made = subprocess.run(
        ["losetup", "--find", "--show", "--direct-io=on", image], capture_output=True, text=True, check=True
    )
    device, home = Path(made.stdout.strip()), _group_of_this_process(root)
    group.mkdir()
    try:
        for file, text in runtree.group_settings(root, disk, _READS_HZ).items():
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
        if controllers == ("blkio" if runtree.is_version_1(root) else "") and (group / "cgroup.procs").exists():
            return group
    return root


@pytest.mark.loopdevice
def test_service_time_is_that_of_the_requesting_process(slow_disk: Path) -> None:
    descriptor = os.open(slow_disk, os.O_RDONLY | os.O_DIRECT)
    number = slow_disk.stat().st_rdev
    of_server = frozenset({f"{os.major(number)}:{os.minor(number)}"})
    page, waited_s = mmap.mmap(-1, _BLOCK), 0.0
    before = oslayer.read_counters()
    for index in range(_READS):
        start_s = time.perf_counter()
        os.preadv(descriptor, [page], _BLOCK * (index * 37 % 1024))
        waited_s += time.perf_counter() - start_s
    rates = oslayer.compute_os_rates(before, oslayer.read_counters(), of_server)
    os.close(descriptor)
    disk = next(disk for disk in rates.disks if disk.of_server)
    assert disk.name == slow_disk.name
    truth_ms = 1e3 * waited_s / _READS
    assert truth_ms > 0.7 * 1e3 / _READS_HZ  # the delay is there
    assert disk.service_ms == pytest.approx(truth_ms, rel=0.1)
    assert disk.read_ms == disk.service_ms and disk.write_ms is None
    # One request after the other: the disk is never idle, and one is outstanding.
    assert disk.busy_percent > 90
    assert disk.queue_count == pytest.approx(1.0, abs=0.1)
    assert disk.reads_hz == pytest.approx(1e3 / truth_ms, rel=0.1)
    # One task waits for I/O all the time; the kernel weighs that by the CPUs that others keep busy.
    assert rates.io_pressure_percent is None or rates.io_pressure_percent > 80 / (os.cpu_count() or 1)
