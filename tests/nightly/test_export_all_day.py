# SPDX-License-Identifier: Apache-2.0
"""`powerprof export` for half an hour with changing servers: its memory is bounded and its counts match the kernel.

POWERPROF_MINUTES sets the duration. The exporter settles in the first third. In the second, the idle exits between two
pages (`powerprof_last_interval_timestamp_seconds`) are compared with the kernel's count.
"""

from __future__ import annotations

import os
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from powerprof.database.private_server import PrivateServer
from powerprof.measure.cpuidle import CpuidleReader
from powerprof.system.files import read_fields
from tests.conftest import Cli
from tests.system.live.test_export import Store, exporter, total

pytestmark = pytest.mark.usefixtures("mariadbd", "root_bpf")

MINUTES = float(os.environ.get("POWERPROF_MINUTES", "30"))
SETTLING = BALANCED = MINUTES / 3
SCRAPE_S = 15.0
# The allowed change of the memory after settling, and its limit.
MEMORY_KIB, MOST_MEMORY_KIB = 2048, 78 << 10
MOST_SERIES = 120


class ChangingServer:
    """A private server with clients that runs for two of every three minutes."""

    def __init__(self) -> None:
        self._running, self._turn = ExitStack(), 0

    def __enter__(self) -> ChangingServer:
        return self

    def __exit__(self, *_: object) -> None:
        self._running.close()

    def next(self) -> None:
        """Start or stop the server before a scrape."""
        if self._turn % 12 == 0:
            server = self._running.enter_context(PrivateServer())
            for _ in range(8):
                self._running.enter_context(server.connect())
        elif self._turn % 12 == 8:
            self._running.close()
        self._turn += 1


class ScrapedExporter:
    """The scrapes of a running exporter.

    Attributes:
        memory_kib: The resident memory at each scrape.
        series: The number of series at each scrape.
        ever: All series of all scrapes.
    """

    def __init__(self, port: int, pid: int) -> None:
        self.store, self._pid = Store(port), pid
        self.memory_kib: list[int] = []
        self.series: list[int] = []
        self.ever: set[object] = set()

    def scrape_for(self, count: float, servers: ChangingServer) -> None:
        """Scrape every 15 s for `count` minutes."""
        end_s = time.monotonic() + 60 * count
        while time.monotonic() < end_s:
            servers.next()
            time.sleep(SCRAPE_S)
            self.store.scrape()
            self.memory_kib.append(resident_kib(self._pid))
            self.series.append(len(self.store.last))
            self.ever |= set(self.store.last)


def resident_kib(pid: int) -> int:
    return int(read_fields(Path(f"/proc/{pid}/status"))["VmRSS"].split()[0])


def test_half_an_hour(powerprof_cli: Cli, capsys: pytest.CaptureFixture[str]) -> None:
    with exporter(powerprof_cli, "--interval", f"{SCRAPE_S:g}") as (port, process), CpuidleReader() as reader:
        scrapes = ScrapedExporter(port, process.pid)
        store = scrapes.store
        with ChangingServer() as servers:
            scrapes.scrape_for(SETTLING, servers)
            settled = len(scrapes.memory_kib)
            began = store.edge(reader)
            store.increase.clear()
            scrapes.scrape_for(BALANCED, servers)
            ended = store.edge(reader)
            fewest, most = ended.since(began)
            scraped = store.increase["powerprof_wakeups_total"]
            scrapes.scrape_for(MINUTES - SETTLING - BALANCED, servers)
        memory, series = scrapes.memory_kib[settled:], scrapes.series[settled:]
        cpu = total(store.last, "powerprof_tool_cpu_seconds_total") / total(
            store.last, "powerprof_measured_seconds_total"
        )
        with capsys.disabled():
            print(
                f"\nresident {scrapes.memory_kib[0] / 1024:.1f} MB at first, {min(memory) / 1024:.1f} to "
                f"{max(memory) / 1024:.1f} MB after {SETTLING:g} minutes; {min(series)} to {max(series)} series, "
                f"{len(scrapes.ever)} ever; {scraped:.0f} of {fewest} to {most} idle exits in "
                f"{(ended.at_s - began.at_s) / 60:.1f} minutes; "
                f"{100 * cpu:.2f} % of a CPU, {total(store.last, 'powerprof_lost_events_total'):.0f} events lost"
            )
        assert 0.99 * fewest <= scraped <= 1.01 * most
        assert max(memory) - min(memory) <= 2 * MEMORY_KIB
        assert max(memory) <= MOST_MEMORY_KIB
        assert max(series) <= MOST_SERIES
        assert process.poll() is None
