# SPDX-License-Identifier: Apache-2.0
"""Long windows cost what their causes cost: ten minutes of an idle exit each 50 µs, or of threads that come and go, and
an hour of an idle server."""

from __future__ import annotations

import json
import resource
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from powerprof.database.private_server import PrivateServer
from powerprof.system.files import read_fields
from tests.conftest import Cli
from tests.programs.balance import check_balance
from tests.system.attribution.conftest import programs_dir, wakes, wakes_program

__all__ = ["programs_dir", "wakes", "wakes_program"]

pytestmark = pytest.mark.usefixtures("root_bpf")

MINUTES, EXITS_HZ, REPORT_S = 10.0, 20_000, 2.0
HOUR_S, SAVED_BYTES = 3600.0, 5_000_000
# Looked at after a quarter of the time. The sample of single periods (50,000 of 272 bytes) is full by then where there
# are many, and still grows where the host is quiet.
SETTLED, FLAT_KIB, SAMPLE_KIB = 0.25, 4096, 16384
_LOOK_EVERY_S = 5.0


class Long:
    """One `attribute` in a process of its own, with its resident KiB while the window is open."""

    def __init__(self, cli: Cli, pid: int, seconds: float, runs: Path) -> None:
        words = [
            "--runs-dir",
            str(runs),
            "attribute",
            "--pid",
            str(pid),
            "--duration",
            f"{seconds:g}",
            "--meter",
            "none",
        ]
        process = cli.start([*words, "--json", "-"])
        self.memory_kib: list[int] = []
        end_s = time.monotonic() + seconds
        while time.monotonic() < end_s and process.poll() is None:
            time.sleep(_LOOK_EVERY_S)
            self.memory_kib.append(int(read_fields(Path(f"/proc/{process.pid}/status"))["VmRSS"].split()[0]))
        out, err = process.communicate(timeout=120)
        assert process.returncode == 0, err
        self.record: dict[str, Any] = json.loads(out)
        self.run = runs / "attribute-0001"
        self.saved_bytes = sum(one.stat().st_size for one in self.run.rglob("*") if one.is_file())
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        again = cli(["attribute", "--from", str(self.run)])
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        assert again.code == 0, again.err
        self.report_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        balance = self.record["conservation"]
        self.exits_hz = balance["idle_exits_count"] / self.record["window_s"]
        print(
            f"{balance['idle_exits_count']:,} idle exits ({self.exits_hz:,.0f}/s), {balance['lost_count']} lost, "
            f"{balance['coverage_percent']} % named; saved {self.saved_bytes / 1e6:.2f} MB; resident "
            f"{self.settled_kib[0] / 1024:.1f} to {max(self.settled_kib) / 1024:.1f} MB after a quarter; report "
            f"{self.report_s:.2f} s of CPU time"
        )

    @property
    def settled_kib(self) -> list[int]:
        return self.memory_kib[int(len(self.memory_kib) * SETTLED) :]

    def check(self, grows_kib: int) -> None:
        """Whatever came: nothing is lost, memory stays, and the report does not take longer for it."""
        balance = self.record["conservation"]
        assert balance["lost_count"] == 0
        assert self.record["stacks"]["lost_count"] == 0
        check_balance(balance, share=0.001)
        assert balance["coverage_percent"] >= 99.0
        assert max(self.settled_kib) - self.settled_kib[0] <= grows_kib
        assert self.report_s <= REPORT_S


def test_ten_minutes_at_twenty_thousand_idle_exits_a_second(
    powerprof_cli: Cli, wakes: Callable[..., Any], tmp_path: Path
) -> None:
    seconds = 60 * MINUTES
    with wakes("fast=15000", "pairs=15000", duration=seconds + 60) as running:
        found = Long(powerprof_cli, running.pid, seconds, tmp_path / "runs")
    found.check(FLAT_KIB)
    assert found.exits_hz >= EXITS_HZ


def test_ten_minutes_of_threads_that_live_for_an_instant(
    powerprof_cli: Cli, wakes: Callable[..., Any], tmp_path: Path
) -> None:
    """Half a million threads: each is a cause of its own, and the tables have room for some thousand."""
    seconds = 60 * MINUTES
    with wakes("born=800", duration=seconds + 60) as running:
        found = Long(powerprof_cli, running.pid, seconds, tmp_path / "runs")
    found.check(SAMPLE_KIB)
    assert found.saved_bytes <= SAVED_BYTES


def test_an_hour_of_an_idle_server_is_a_small_run(mariadbd: None, powerprof_cli: Cli, tmp_path: Path) -> None:
    with PrivateServer() as server:
        found = Long(powerprof_cli, server.pid, HOUR_S, tmp_path / "runs")
    found.check(SAMPLE_KIB)
    assert found.saved_bytes <= SAVED_BYTES
