# SPDX-License-Identifier: Apache-2.0
"""What it costs to be watched all day: `powerprof export`, prometheus-node-exporter and nothing, in turns.

Both are scraped at the same interval. Cost is the CPU time of their processes and, of powerprof, that of its BPF
programs besides, which the kernel sums. The second load is of short-lived programs, each new to who names functions.
"""

from __future__ import annotations

import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from powerprof.measure.sampling import WindowMeter
from powerprof.system import program_search
from tests.system.live.engines import free_port
from tools.bench.figures import Verdict, spread

SCRAPE_S = 15.0
TARGET_PERCENT = 0.3
# A turn stands for a day: what was there when it began is named in the first minute, and then known.
_SETTLE_S = 60.0
_LOOPS = 8
_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True)
class Figures:
    """One turn: percent of one CPU, of its processes and of its BPF programs; resident memory; the host meanwhile."""

    cpu_percent: float
    bpf_percent: float
    memory_mb: float
    exits_hz: float
    c0_percent: float


def _commands(port: int) -> dict[str, list[str]]:
    address = f"127.0.0.1:{port}"
    ours = [sys.executable, "-m", "powerprof", "export", "--listen", address, "--interval", f"{SCRAPE_S:g}"]
    return {
        "nothing": [],
        "node_exporter": ["prometheus-node-exporter", f"--web.listen-address={address}"],
        "powerprof export": ours,
    }


def _family(pid: int) -> list[int]:
    children = Path(f"/proc/{pid}/task/{pid}/children")
    return [pid, *(int(child) for child in children.read_text().split())]


def _spent(pid: int) -> tuple[float, int]:
    """CPU seconds and resident bytes of a process and its children."""
    seconds, resident = 0.0, 0
    for one in _family(pid):
        fields = Path(f"/proc/{one}/stat").read_text().rpartition(")")[2].split()
        seconds += (int(fields[11]) + int(fields[12])) / _TICKS
        resident += int(fields[21]) * _PAGE
    return seconds, resident


def _scrape(port: int) -> dict[str, float]:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as reply:
        lines = reply.read().decode().splitlines()
    pairs = (line.rpartition(" ") for line in lines if not line.startswith("#"))
    return {name: float(value) for name, _, value in pairs}


def turn(name: str, scrapes: int) -> Figures:
    """One tool for so many scrapes, once it has settled."""
    port = free_port()
    argv = _commands(port)[name]
    with ExitStack() as stack:
        pid = stack.enter_context(_running(argv, port)) if argv else 0
        time.sleep(_SETTLE_S)
        bpf_s = _scrape(port).get("powerprof_tool_bpf_seconds_total", 0.0) if pid else 0.0
        cpu_s, memory = _spent(pid) if pid else (0.0, 0)
        meter = stack.enter_context(WindowMeter())
        scraper = _Scraper(port if pid else None)
        window = scraper.measure(meter, scrapes * SCRAPE_S)
        if pid:
            spent_s, memory = _spent(pid)
            cpu_s = spent_s - cpu_s
            bpf_s = _scrape(port).get("powerprof_tool_bpf_seconds_total", 0.0) - bpf_s
    seconds = scrapes * SCRAPE_S
    return Figures(100 * cpu_s / seconds, 100 * bpf_s / seconds, memory / 1e6, *window)


class _Scraper:
    """Scrapes beside a window."""

    def __init__(self, port: int | None) -> None:
        self._port = port

    def measure(self, meter: WindowMeter, seconds: float) -> tuple[float, float]:
        import threading

        over = threading.Event()

        def scrape() -> None:
            while self._port is not None and not over.wait(SCRAPE_S):
                _scrape(self._port)

        thread = threading.Thread(target=scrape)
        thread.start()
        try:
            window = meter.measure(seconds)
        finally:
            over.set()
            thread.join()
        return window.wakeups_hz or 0.0, window.c0_percent or 0.0


@contextmanager
def _running(argv: list[str], port: int) -> Iterator[int]:
    process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 90
        while time.monotonic() < deadline and process.poll() is None:
            with suppress(OSError):
                _scrape(port)
                break
            time.sleep(0.5)
        yield process.pid
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(30)
        finally:
            process.kill()


@contextmanager
def short_lived() -> Iterator[None]:
    """Programs that run for a twentieth of a second each, eight at a time."""
    with tempfile.TemporaryDirectory() as folder:
        loop = Path(folder) / "loop.sh"
        loop.write_text("while :; do sleep 0.05; done\n")
        loops = [subprocess.Popen(["sh", str(loop)]) for _ in range(_LOOPS)]
        try:
            yield
        finally:
            for one in loops:
                one.kill()
                one.wait()


def _run(title: str, quick: bool) -> Verdict:
    count, scrapes = (1, 1) if quick else (3, 4)
    order, found = random.Random(3), {name: list[Figures]() for name in _commands(0)}
    if not program_search.which("prometheus-node-exporter"):
        del found["node_exporter"]
    for _ in range(count):
        for name in order.sample(sorted(found), len(found)):
            found[name].append(turn(name, scrapes))
    print(f"{title}, scraped every {SCRAPE_S:g} s, {count} turns of {scrapes} scrapes, medians (range)")
    print(f"  {'':<18}{'CPU %':>22}{'BPF %':>20}{'RSS MB':>9}{'idle exits/s':>26}{'C0 %':>7}")
    for name, turns in found.items():
        cpu, bpf = ([getattr(one, field) for one in turns] for field in ("cpu_percent", "bpf_percent"))
        memory, c0 = (statistics.median(getattr(one, field) for one in turns) for field in ("memory_mb", "c0_percent"))
        exits = spread([one.exits_hz for one in turns])
        print(f"  {name:<18}{_hundredths(cpu):>22}{_hundredths(bpf):>20}{memory:9.0f}{exits:>26}{c0:7.1f}")
    ours = [one.cpu_percent + one.bpf_percent for one in found["powerprof export"]]
    return Verdict(
        f"powerprof export costs {statistics.median(ours):.2f} % of a CPU (target ≤ {TARGET_PERCENT:g} %), {title}",
        statistics.median(ours) <= TARGET_PERCENT,
    )


def _hundredths(values: list[float]) -> str:
    return f"{statistics.median(values):.2f} ({min(values):.2f} … {max(values):.2f})"


def run(quick: bool) -> Verdict:
    """The host as it is."""
    return _run("the host as it is", quick)


def run_busy(quick: bool) -> Verdict:
    """A host of short-lived programs."""
    with short_lived():
        return _run("short-lived programs", quick)
