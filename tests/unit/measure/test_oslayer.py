# SPDX-License-Identifier: Apache-2.0
"""The system's own figures between two readings."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from powerprof.measure import oslayer
from powerprof.measure.oslayer import (
    DiskCounters,
    OsReading,
    compute_os_rates,
    devices_of,
    parse_disks,
    parse_network,
    parse_run_delay,
    read_counters,
    whole_disks,
)
from powerprof.measure.procfs import parse_stat
from powerprof.model.records import CpuLoad, DiskRates, OsRates


def disk(*counters: int, number: str = "8:0") -> DiskCounters:
    return DiskCounters(number, *counters)


@pytest.fixture
def sda(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A host with one disk, sda, whose only interrupt is 36."""
    (tmp_path / "sys/block/sda").mkdir(parents=True)
    (tmp_path / "sys/kernel/irq/36").mkdir(parents=True)
    (tmp_path / "sys/kernel/irq/36/actions").write_text("nvme0q7\n")
    (tmp_path / "proc").mkdir()
    monkeypatch.setenv("POWERPROF_SYSFS", str(tmp_path / "sys"))
    monkeypatch.setenv("POWERPROF_PROCFS", str(tmp_path / "proc"))
    return tmp_path


def test_rates_between_two_readings(sda: Path) -> None:
    first = {"sda": disk(100, 800, 1000, 50, 400, 300, 1000, 5000)}
    last = {"sda": disk(300, 1600, 5000, 60, 800, 500, 2000, 9000)}
    before = OsReading(10.0, first, (1000, 2000, 30), (500, 5), {0: 10**9}, 1_000_000, migrations=7)
    after = OsReading(12.0, last, (5000, 4000, 50), (900, 7), {0: 4 * 10**9}, 1_500_000, migrations=27)
    rates = compute_os_rates(before, after)
    assert (rates.disk_reads_hz, rates.disk_writes_hz) == (100.0, 5.0)
    assert (rates.disk_read_bytes_hz, rates.disk_write_bytes_hz) == (400 * 512.0, 200 * 512.0)
    assert rates.disk_busy_percent == pytest.approx(50.0)  # 1000 ms of 2000 ms
    assert (rates.network_receive_bytes_hz, rates.network_send_bytes_hz, rates.network_packets_hz) == (
        2000.0,
        1000.0,
        10.0,
    )
    assert (rates.page_faults_hz, rates.major_faults_hz) == (200.0, 1.0)
    assert rates.waiting_tasks == pytest.approx(1.5)
    assert rates.cpu_pressure_percent == pytest.approx(25.0)
    assert rates.migrations_hz == 10.0
    io = [OsReading(moment, io_pressure_us=us) for moment, us in ((10.0, 0), (12.0, 1_800_000))]
    assert compute_os_rates(io[0], io[1]).io_pressure_percent == pytest.approx(90.0)
    (own,) = rates.disks
    assert (own.name, own.of_server, own.queue_count) == ("sda", False, 2.0)  # 4000 ms of requests in 2000 ms
    assert (own.read_ms, own.write_ms, own.service_ms) == (20.0, 20.0, 20.0)


def test_missing_counters_are_unknown(tmp_path: Path) -> None:
    nothing = read_counters(tmp_path)
    assert compute_os_rates(nothing, OsReading(nothing.at_s + 1)) == OsRates()


def test_partitions_and_virtual_disks_are_not_added_to_their_disks(sda: Path) -> None:
    line = "   8       {n} {name} 10 0 80 3 5 0 40 4 0 7 7 0 0 0 0\n"
    text = "".join(line.format(n=n, name=name) for n, name in enumerate(("sda", "sda1", "loop0", "dm-0")))
    found = parse_disks(text)
    assert found is not None and found["sda"] == disk(10, 80, 3, 5, 40, 4, 7, 7)
    assert whole_disks(found) == {"sda"}


def test_the_server_s_partition_is_shown_and_in_no_sum(sda: Path) -> None:
    before = {name: disk(0, 0, 0, 0, 0, 0, 0, 0, number=number) for name, number in (("sda", "8:0"), ("sda2", "8:2"))}
    after = {name: disk(0, 0, 0, 10, 80, 2816, 1000, 2816, number=one.number) for name, one in before.items()}
    rates = compute_os_rates(OsReading(0.0, before), OsReading(1.0, after), frozenset({"8:2"}))
    assert [(each.name, each.of_server, each.service_ms) for each in rates.disks] == [
        ("sda", False, 281.6),
        ("sda2", True, 281.6),
    ]
    assert rates.disk_writes_hz == 10.0


def test_the_device_of_a_data_directory_is_that_of_the_innermost_mount(sda: Path) -> None:
    process = sda / "proc/42"
    process.mkdir()
    (process / "cwd").symlink_to("/var/lib/my sql/data")
    mount = "{n} 1 {device} / {point} rw - {kind} {source} rw\n"
    text = mount.format(n=1, device="8:1", point="/", kind="ext4", source="/dev/sda1")
    text += mount.format(n=2, device="8:2", point="/var/lib", kind="ext4", source="/dev/sda2")
    text += mount.format(n=3, device="253:4", point="/var/lib/my\\040sql", kind="xfs", source="/dev/mapper/vg-data")
    text += mount.format(n=4, device="8:9", point="/var/lib/my", kind="ext4", source="/dev/sda9")
    (process / "mountinfo").write_text(text)
    assert devices_of([42, 43]) == {"253:4"}


def test_a_btrfs_is_found_by_its_source_and_tmpfs_lies_on_no_device(sda: Path) -> None:
    (sda / "sys/class/block/sda3").mkdir(parents=True)
    (sda / "sys/class/block/sda3/dev").write_text("8:3\n")
    for pid, source in ((1, "/dev/sda3"), (2, "tmpfs")):
        process = sda / f"proc/{pid}"
        process.mkdir()
        (process / "cwd").symlink_to("/data")
        (process / "mountinfo").write_text(f"1 1 0:31 / /data rw - any {source} rw\n")
    assert devices_of([1]) == {"8:3"}
    assert devices_of([2]) == frozenset()


def test_all_interfaces_count() -> None:
    text = "Inter-|   Receive\n face |bytes\n  lo: 10 1 0 0 0 0 0 0 10 1 0 0 0 0 0 0\n"
    text += "eth0: 5 2 0 0 0 0 0 0 7 3 0 0 0 0 0 0\n"
    assert parse_network(text) == (15, 17, 7)


def test_each_cpu_has_its_load_and_each_device_its_interrupts(sda: Path) -> None:
    def stat(busy: int, idle: int, came: int) -> str:
        zeros = "0 " * 36
        return f"cpu0 {busy} 0 0 {idle} 0 0 0\ncpu1 0 0 0 {busy + idle} 0 0 0\nintr 900 {zeros}{came}\nctxt 5\n"

    first, last = (parse_stat(stat(*figures), "stat") for figures in ((100, 100, 40), (175, 125, 100)))
    waited = [parse_run_delay(f"cpu0 0 0 0 0 0 0 1 {delay} 1\n") for delay in (0, 2 * 10**9)]
    rates = compute_os_rates(
        OsReading(0.0, run_delay_ns=waited[0], stat=first), OsReading(2.0, run_delay_ns=waited[1], stat=last)
    )
    assert rates.cpus == [CpuLoad(cpu=0, busy_percent=75.0, waiting_tasks=1.0), CpuLoad(cpu=1, busy_percent=0.0)]
    assert [(each.device, each.rate_hz) for each in rates.interrupts] == [("nvme0", 30.0)]


@pytest.mark.parametrize(
    ("action", "device"),
    [
        ("virtio1-req.0", "virtio1"),
        ("virtio3-rx", "virtio3"),
        ("eth0-TxRx-12", "eth0"),
        ("nvme0q33", "nvme0"),
        ("ACPI:Ged", "ACPI:Ged"),
        ("ttyS0", "ttyS0"),
        ("virtio0-reporting_vq", "virtio0"),
    ],
)
def test_the_queues_of_a_device_are_one(action: str, device: str) -> None:
    assert oslayer.device_of(action) == device


def test_two_windows_put_together_weigh_times_by_requests() -> None:
    def window(reads_hz: float, ms: float | None) -> OsRates:
        rates = DiskRates(
            name="sda",
            reads_hz=reads_hz,
            writes_hz=0.0,
            read_bytes_hz=0.0,
            write_bytes_hz=0.0,
            read_ms=ms,
            service_ms=ms,
            queue_count=1.0,
            busy_percent=50.0,
        )
        return OsRates(migrations_hz=reads_hz, disks=[rates])

    both = oslayer.join_os_rates(window(30.0, 10.0), 1.0, window(10.0, 50.0), 1.0)
    assert (both.migrations_hz, both.disks[0].reads_hz, both.disks[0].service_ms) == (20.0, 20.0, 20.0)
    # A window without a request has no time of one, and one in which the disk was not listed none of its requests.
    alone = oslayer.join_disk_rates(window(30.0, 10.0).disks, 1.0, [], 2.0)
    assert (alone[0].reads_hz, alone[0].service_ms) == (10.0, 10.0)
    assert oslayer.join_os_rates(window(30.0, 10.0), 1.0, window(0.0, None), 1.0).disks[0].service_ms == 10.0


@pytest.mark.skipif(os.geteuid() != 0, reason="counting on every CPU needs root")
def test_a_migrated_task_is_counted() -> None:
    if len(allowed := sorted(os.sched_getaffinity(0))) < 2:
        pytest.skip("one CPU")
    moves = oslayer.Migrations(allowed)
    before = moves.total()
    for number in range(100):
        os.sched_setaffinity(0, {allowed[number % 2]})
    os.sched_setaffinity(0, allowed)
    after = moves.total()
    moves.close()
    assert before is not None and after is not None and 99 <= after - before < 400
