# SPDX-License-Identifier: Apache-2.0
"""The system's own figures between two readings."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from powerprof.measure import disks, oslayer
from powerprof.measure.disks import DiskCounters, devices_of, parse_disks, whole_disks
from powerprof.measure.oslayer import OsReading, compute_os_rates, parse_network, parse_run_delay, read_counters
from powerprof.measure.procfs import parse_stat
from powerprof.model.system_activity import CpuLoad, DeviceInterrupts, DiskRates, OsRates
from tests.unit.measure.odd_records import figures, odd


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
    alone = disks.join_disk_rates(window(30.0, 10.0).disks, 1.0, [], 2.0)
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


# Odd figures: no two counters grow alike, and no two windows are of one length.
DISK_BEFORE = disk(1000, 90_000, 4000, 700, 31_000, 2600, 5100, 8800, number="8:16")
DISK_AFTER = disk(1090, 90_810, 4450, 730, 31_330, 2660, 6300, 11_800, number="8:16")


def test_every_figure_of_a_disk_is_of_its_own_counter(sda: Path) -> None:
    (rates,) = disks.compute_disk_rates({"sdb": DISK_BEFORE}, {"sdb": DISK_AFTER}, 4.0, {"sdb"})
    assert rates == DiskRates(
        name="sdb",
        of_server=False,
        reads_hz=90 / 4,
        writes_hz=30 / 4,
        read_bytes_hz=810 * 512 / 4,
        write_bytes_hz=330 * 512 / 4,
        read_ms=450 / 90,
        write_ms=60 / 30,
        service_ms=(450 + 60) / (90 + 30),
        queue_count=3000 / 4000,
        busy_percent=100 * 1200 / 4000,
    )
    # 1200 ms of 1.1 s: jiffies round, and a disk is never busier than always.
    assert disks.compute_disk_rates({"sdb": DISK_BEFORE}, {"sdb": DISK_AFTER}, 1.1, {"sdb"})[0].busy_percent == 100.0


def test_a_disk_without_reads_has_no_read_time(sda: Path) -> None:
    after = disk(1000, 90_000, 4000, 730, 31_330, 2660, 6300, 11_800, number="8:16")
    (rates,) = disks.compute_disk_rates({"sdb": DISK_BEFORE}, {"sdb": after}, 4.0, {"sdb"})
    assert (rates.reads_hz, rates.read_ms, rates.write_ms, rates.service_ms) == (0.0, None, 2.0, 2.0)
    assert disks.compute_disk_rates({"sdb": DISK_AFTER}, {"sdb": DISK_BEFORE}, 4.0, {"sdb"}) == []
    assert disks.compute_disk_rates({"sdb": DISK_BEFORE}, {"sdb": DISK_BEFORE}, 4.0, {"sdb"}) == []


def test_the_busiest_whole_disk_and_the_sum_of_all(sda: Path) -> None:
    (sda / "sys/block/sdb").mkdir()
    calm = disk(30, 200, 40, 20, 100, 30, 60, 90), disk(34, 264, 48, 22, 164, 42, 460, 190)
    part = disk(1, 1, 1, 1, 1, 1, 1, 1, number="8:17"), disk(9, 65, 9, 9, 65, 9, 3999, 9, number="8:17")
    before, after = ({"sda": calm[n], "sdb": (DISK_BEFORE, DISK_AFTER)[n], "sdb1": part[n]} for n in (0, 1))
    rates = compute_os_rates(OsReading(7.0, before), OsReading(11.0, after), frozenset({"8:17"}))
    assert [each.name for each in rates.disks] == ["sda", "sdb", "sdb1"]
    assert (rates.disk_reads_hz, rates.disk_writes_hz) == ((4 + 90) / 4, (2 + 30) / 4)
    assert (rates.disk_read_bytes_hz, rates.disk_write_bytes_hz) == ((64 + 810) * 128, (64 + 330) * 128)
    # 400 and 1200 of 4000 ms; the partition was busy for all of it.
    assert rates.disk_busy_percent == pytest.approx(30.0)


def test_the_texts_of_proc_are_read_by_column() -> None:
    line = "8 16 sdb 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25\n"
    assert parse_disks(line) == {"sdb": disk(11, 13, 14, 15, 17, 18, 20, 21, number="8:16")}
    text = "lo: 10 1 0 0 0 0 0 0 20 3 0 0 0 0 0 0\neth0: 500 20 7 7 7 7 7 7 7000 300 7 7 7 7 7 7\n"
    assert parse_network(text) == (510, 7020, 324)
    assert oslayer.parse_faults("pgfree 7\npgfault 901\npgmajfault 13\n") == (901, 13)
    assert oslayer.parse_faults("pgfault 901\n") is None
    assert parse_run_delay("version 15\ncpu0 1 2 3 4 5 6 7 88 9\ncpu3 1 2 3 4 5 6 7 99 9\n") == {0: 88, 3: 99}
    pressure = "some avg10=1.00 avg60=2.00 avg300=3.00 total=4321\nfull avg10=9.00 avg60=9.00 avg300=9.00 total=99\n"
    assert oslayer.parse_pressure(pressure) == 4321


def test_every_rate_of_the_system_is_of_its_own_counter() -> None:
    before = OsReading(10.0, None, (1000, 20, 3), (50, 6), {0: 10**9, 1: 5}, 70_000, None, 11, None, 9_000)
    after = OsReading(
        14.0, None, (9000, 420, 63), (90, 14), {0: 2 * 10**9, 1: 8 * 10**9 + 5}, 150_000, None, 31, None, 49_000
    )
    assert figures(compute_os_rates(before, after)) == pytest.approx(
        {
            "network_receive_bytes_hz": 2000.0,
            "network_send_bytes_hz": 100.0,
            "network_packets_hz": 15.0,
            "page_faults_hz": 10.0,
            "major_faults_hz": 2.0,
            "waiting_tasks": 0.25 + 2.0,
            "cpu_pressure_percent": 100 * 80_000 / 4e6,
            "io_pressure_percent": 100 * 40_000 / 4e6,
            "migrations_hz": 5.0,
        }
    )
    for name in ("network", "faults", "run_delay_ns", "pressure_us", "migrations", "io_pressure_us"):
        lost = figures(compute_os_rates(replace(before, **{name: None}), after))
        assert len(lost) == 9 - {"network": 3, "faults": 2}.get(name, 1), name
    assert compute_os_rates(after, before) == OsRates()


def odd_rates(start: float, *cpus: int) -> OsRates:
    return odd(
        OsRates,
        start,
        disks=[odd(DiskRates, start + 40, name="sda"), odd(DiskRates, start + 60, name="sdb")],
        interrupts=[
            odd(DeviceInterrupts, start + 80, device="eth0"),
            odd(DeviceInterrupts, start + 90, device=f"d{start}"),
        ],
        cpus=[odd(CpuLoad, start + 100 + cpu, cpu=cpu) for cpu in cpus],
    )


@given(st.floats(0.5, 20.0), st.floats(0.5, 20.0))
def test_two_windows_of_the_system_are_joined_by_time(first_s: float, second_s: float) -> None:
    first, second = odd_rates(3.0, 0, 1, 2), odd_rates(500.0, 1, 2, 3)
    joined, total = oslayer.join_os_rates(first, first_s, second, second_s), first_s + second_s

    def mean(a: float, b: float) -> float:
        return (a * first_s + b * second_s) / total

    for name, figure in figures(joined).items():
        assert figure == pytest.approx(mean(getattr(first, name), getattr(second, name))), name
    assert [load.cpu for load in joined.cpus] == [1, 2]
    for load, a, b in zip(joined.cpus, first.cpus[1:], second.cpus, strict=False):
        assert load.busy_percent == pytest.approx(mean(a.busy_percent, b.busy_percent))
        assert load.waiting_tasks == pytest.approx(mean(a.waiting_tasks or 0, b.waiting_tasks or 0))
    rates = {each.device: each.rate_hz for each in joined.interrupts}
    assert rates["eth0"] == pytest.approx(mean(first.interrupts[0].rate_hz, second.interrupts[0].rate_hz))
    assert rates["d3.0"] == pytest.approx(mean(first.interrupts[1].rate_hz, 0.0))
    assert rates["d500.0"] == pytest.approx(mean(0.0, second.interrupts[1].rate_hz))
    for disk_rates, c, d in zip(joined.disks, first.disks, second.disks, strict=True):
        for name in ("reads_hz", "writes_hz", "read_bytes_hz", "write_bytes_hz", "queue_count", "busy_percent"):
            assert getattr(disk_rates, name) == pytest.approx(mean(getattr(c, name), getattr(d, name))), name
        reads, writes = (c.reads_hz * first_s, d.reads_hz * second_s), (c.writes_hz * first_s, d.writes_hz * second_s)
        both = (reads[0] + writes[0], reads[1] + writes[1])
        for name, counts in (("read_ms", reads), ("write_ms", writes), ("service_ms", both)):
            expected = (getattr(c, name) * counts[0] + getattr(d, name) * counts[1]) / sum(counts)
            assert getattr(disk_rates, name) == pytest.approx(expected), name


@pytest.mark.parametrize("name", sorted(figures(odd(OsRates))))
def test_a_rate_that_one_window_lacks_is_unknown_in_both(name: str) -> None:
    whole, lost = odd_rates(3.0, 0), replace(odd_rates(500.0, 0), **{name: None})
    assert getattr(oslayer.join_os_rates(whole, 1.0, lost, 2.0), name) is None
    assert getattr(oslayer.join_os_rates(lost, 1.0, whole, 2.0), name) is None


def test_each_counter_is_read_from_its_own_file(sda: Path) -> None:
    proc = sda / "proc"
    for name, text in {
        "diskstats": "8 16 sdb 11 12 13 14 15 16 17 18 19 20 21\n",
        "net/dev": "lo: 10 1 0 0 0 0 0 0 20 3 0 0 0 0 0 0\n",
        "vmstat": "pgfault 901\npgmajfault 13\n",
        "schedstat": "cpu0 1 2 3 4 5 6 7 88 9\n",
        "pressure/cpu": "some avg10=0.00 avg60=0.00 avg300=0.00 total=4321\n",
        "pressure/io": "some avg10=0.00 avg60=0.00 avg300=0.00 total=765\n",
        "stat": "cpu0 1 2 3 4 5 6 7 8 9 10\nintr 5005 7\nctxt 6006\n",
    }.items():
        (proc / name).parent.mkdir(exist_ok=True)
        (proc / name).write_text(text)
    reading = read_counters(proc)
    assert reading.disks is not None and reading.stat is not None
    assert (reading.disks["sdb"].busy_ms, reading.disks["sdb"].weighted_ms) == (20, 21)
    assert (reading.network, reading.faults, reading.run_delay_ns) == ((10, 20, 4), (901, 13), {0: 88})
    assert (reading.pressure_us, reading.io_pressure_us, reading.migrations) == (4321, 765, None)
    assert (reading.stat.interrupts_count, reading.stat.context_switches_count) == (5005, 6006)
    assert reading.stat.read_ns > 0 and reading.stat.cpus[0]["steal"] == 0.08
    other = sda / "other"
    other.write_text("eth0: 500 20 7 7 7 7 7 7 7000 300 7 7 7 7 7 7\n")
    assert read_counters(proc, networks=[other]).network == (510, 7020, 324)
    assert read_counters(proc, networks=[sda / "missing"]).network is None
