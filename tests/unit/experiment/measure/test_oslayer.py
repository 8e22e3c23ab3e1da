# SPDX-License-Identifier: Apache-2.0
"""The system's own figures between two readings."""

from __future__ import annotations

from pathlib import Path

import pytest

from powerprof.experiment.measure.oslayer import OsRates, Reading, between, parse_disks, parse_network, read


def test_rates_between_two_readings() -> None:
    before = Reading(10.0, {"sda": (100, 800, 50, 400, 1000)}, (1000, 2000, 30), (500, 5), 10**9, 1_000_000)
    after = Reading(12.0, {"sda": (300, 1600, 60, 800, 2000)}, (5000, 4000, 50), (900, 7), 4 * 10**9, 1_500_000)
    rates = between(before, after)
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


def test_what_the_kernel_does_not_count_is_unknown(tmp_path: Path) -> None:
    nothing = read(tmp_path)
    assert between(nothing, Reading(nothing.at_s + 1, None, None, None, None)) == OsRates()


def test_partitions_and_virtual_disks_are_not_added_to_their_disks() -> None:
    line = "   8       {n} {name} 10 0 80 0 5 0 40 0 0 7 0 0 0 0 0\n"
    text = "".join(line.format(n=n, name=name) for n, name in enumerate(("sda", "sda1", "loop0", "dm-0")))
    assert parse_disks(text, {"sda"}) == {"sda": (10, 80, 5, 40, 7)}


def test_all_interfaces_count() -> None:
    text = "Inter-|   Receive\n face |bytes\n  lo: 10 1 0 0 0 0 0 0 10 1 0 0 0 0 0 0\n"
    text += "eth0: 5 2 0 0 0 0 0 0 7 3 0 0 0 0 0 0\n"
    assert parse_network(text) == (15, 17, 7)
