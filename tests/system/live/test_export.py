# SPDX-License-Identifier: Apache-2.0
"""`powerprof export` on this host: its series sum to the kernel's count, with the capabilities of the unit."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from powerprof.database.private_server import PrivateServer
from powerprof.live.systemd_unit import list_capabilities
from powerprof.measure.cpuidle import CpuidleReader
from powerprof.report.recent_profiles import PROFILES
from tests.conftest import Cli
from tests.programs.held import has_settled
from tests.system.live.engines import free_port
from tests.system.queries.mariadb_work import BURN, BURN_TEXT, asking
from tests.unit.report.test_pprof import decoded

# A page's timestamp is to the millisecond.
_ROUNDED_S = 0.001
_IDLE = "powerprof_idle_seconds_total"

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def scrape(port: int) -> Samples:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as reply:
        text = reply.read().decode()
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def total(samples: Samples, name: str) -> float:
    return sum(value for (own, _), value in samples.items() if own == name)


@contextmanager
def exporter(cli: Cli, *words: str, limited: bool = True) -> Iterator[tuple[int, subprocess.Popen[str]]]:
    """Run an exporter with the capabilities of its unit. Yield its port and process."""
    bounds = ",".join(["-all", *(f"+{name.removeprefix('CAP_').lower()}" for name in list_capabilities())])
    allowed = ["setpriv", f"--bounding-set={bounds}", "--no-new-privs"] if limited else []
    port = free_port()
    process = subprocess.Popen(
        [*allowed, sys.executable, "-m", "powerprof", "export", "--listen", f"127.0.0.1:{port}", *words],
        env=cli.environment(),
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        deadline = time.monotonic() + 90
        while time.monotonic() < deadline:
            with suppress(OSError):
                if total(scrape(port), "powerprof_intervals_total") >= 1:
                    break
            assert process.poll() is None, process.stderr.read() if process.stderr else ""
            time.sleep(0.2)
        yield port, process
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(60)
        finally:
            process.kill()


@dataclass(frozen=True)
class Edge:
    """The end of an interval, and the bounds of the host's idle exits at that moment."""

    at_s: float
    least: int
    most: int

    def since(self, before: Edge) -> tuple[int, int]:
        """Return the bounds of the idle exits since an earlier edge."""
        return self.least - before.most, self.most - before.least


class Store:
    """A store of scrapes: it ignores the first value of a series, and an ended series adds nothing."""

    def __init__(self, port: int) -> None:
        self._port = port
        self.last = scrape(port)
        self.increase: Counter[str] = Counter()

    def scrape(self) -> None:
        """Scrape once and add the increases."""
        before, self.last = self.last, scrape(self._port)
        for key, value in self.last.items():
            if key in before:
                self.increase[key[0]] += value - before[key]

    def next_interval(self) -> None:
        """Scrape until the next interval has ended."""
        began = total(self.last, "powerprof_intervals_total")
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            self.scrape()
            if total(self.last, "powerprof_intervals_total") > began:
                return
            time.sleep(0.05)
        raise AssertionError("no interval ended in a minute")

    def wait_until(self, condition: Callable[[Store], bool], problem: str) -> None:
        """Wait for a condition for 20 s of idle time. A busy CPU has no idle exits."""
        began_s, deadline = self.increase[_IDLE], time.monotonic() + 300
        while not condition(self):
            idled_s = self.increase[_IDLE] - began_s
            assert idled_s < 20 and time.monotonic() < deadline, f"{problem}, while CPUs idled {idled_s:.1f} s"
            self.next_interval()

    def edge(self, reader: CpuidleReader) -> Edge:
        """Wait for the end of an interval, and read the host's counters around it.

        A page has the figures of its timestamp. Naming new stacks takes up to a second, while the host keeps running.
        So the counters are read repeatedly until the page changes.
        """
        began, readings = total(self.last, "powerprof_intervals_total"), list[tuple[float, int, float]]()
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            before_s = time.time()
            exits = sum(sum(one.usage) for one in reader.snapshot().cpus.values())
            readings.append((before_s, exits, time.time()))
            if len(readings) % 25 == 0:
                self.scrape()
                if total(self.last, "powerprof_intervals_total") > began:
                    break
            time.sleep(0.02)
        at_s = total(self.last, "powerprof_last_interval_timestamp_seconds")
        least = [exits for _, exits, after_s in readings if after_s < at_s - _ROUNDED_S]
        most = [exits for before_s, exits, _ in readings if before_s > at_s + _ROUNDED_S]
        assert least and most, f"no interval ended within the readings: {at_s}"
        return Edge(at_s, least[-1], most[0])


@pytest.fixture
def sleeper(tmp_path: Path) -> Iterator[int]:
    """A thread that wakes a hundred times a second."""
    compile_sleeper(tmp_path / "hundred")
    process = subprocess.Popen([tmp_path / "hundred"])
    yield process.pid
    process.kill()
    process.wait()


def compile_sleeper(program: Path) -> None:
    source = program.with_suffix(".c")
    source.write_text("#include <unistd.h>\nint doze(void){return usleep(10000);}\nint main(void){for(;;)doze();}\n")
    subprocess.run(["gcc", "-O0", "-g", "-o", str(program), str(source)], check=True)


@pytest.mark.cpuidle
def test_all_series_sum_to_the_kernels_count(powerprof_cli: Cli, root_bpf: None, sleeper: int) -> None:
    # Other tests may be more expensive than the twenty rows of the default.
    words = ("--interval", "1", "--no-ask", "--top", "200")
    with exporter(powerprof_cli, *words) as (port, process), CpuidleReader() as reader:
        store = Store(port)
        first = store.edge(reader)
        store.increase.clear()
        for _ in range(4):
            store.next_interval()
        fewest, most = store.edge(reader).since(first)
        exits = store.increase["powerprof_idle_exits_total"]
        assert store.increase["powerprof_wakeups_total"] == exits
        # Exits in the milliseconds between the exporter's two readings may be in only one of them.
        assert 0.99 * fewest - 10 <= exits <= 1.01 * most + 10, (fewest, most)
        last = store.last
        assert total(last, "powerprof_lost_events_total") == 0
        idle_s, c0_s = store.increase[_IDLE], store.increase["powerprof_c0_seconds_total"]
        wall_s = store.increase["powerprof_measured_seconds_total"] * len(os.sched_getaffinity(0))
        assert idle_s + c0_s == pytest.approx(wall_s, rel=0.02)
        store.wait_until(
            lambda store: any(("function", "doze") in labels for _, labels in store.last),
            "no series of the function that wakes a hundred times a second",
        )
    assert process.returncode == 0


@pytest.mark.alone  # it needs an idle CPU
def test_a_restarted_target_is_found_by_its_name(powerprof_cli: Cli, root_bpf: None, tmp_path: Path) -> None:
    program = tmp_path / f"twice{os.getpid()}"
    compile_sleeper(program)

    def dozed(store: Store) -> float:
        rows = [value for (_, labels), value in store.last.items() if ("function", "doze") in labels]
        return max(rows, default=0.0)

    with ExitStack() as stack:
        first = stack.enter_context(subprocess.Popen([program]))
        stack.callback(first.kill)
        words = ("--interval", "1", "--no-ask", "--max-cost", "none", "--pid", program.name)
        port, process = stack.enter_context(exporter(powerprof_cli, *words))
        store = Store(port)
        store.wait_until(
            lambda store: dozed(store) >= 10, "few wake-ups of the function that wakes a hundred times a second"
        )
        first.kill()
        first.wait()
        for _ in range(2):
            store.next_interval()
        known = dozed(store)
        second = stack.enter_context(subprocess.Popen([program]))
        stack.callback(second.kill)
        store.wait_until(lambda store: dozed(store) >= known + 10, "the restarted program's function has no wake-ups")
        assert process.poll() is None


def test_the_server_has_dropped_its_capabilities(powerprof_cli: Cli, root_bpf: None) -> None:
    with exporter(powerprof_cli, "--interval", "1", "--no-ask", limited=False) as (port, process):
        assert total(scrape(port), "powerprof_intervals_total") >= 1
        assert has_settled(process.pid)


@pytest.mark.alone  # it needs an idle CPU
def test_go_tool_pprof_reads_the_profiles_of_the_exporter(
    powerprof_cli: Cli, root_bpf: None, sleeper: int, tmp_path: Path
) -> None:
    go = shutil.which("go")
    with exporter(powerprof_cli, "--interval", "2", "--no-ask", "--max-cost", "none") as (port, process):
        store = Store(port)
        store.next_interval()
        base = f"http://127.0.0.1:{port}/debug/pprof"
        for name in ("wakeups", "c0"):
            with urllib.request.urlopen(f"{base}/{name}?seconds=2", timeout=30) as reply:
                data = reply.read()
            types, samples = decoded(data)
            assert types == [PROFILES[name]] and sum(values[0] for _, values in samples) > 0
            assert any("doze" in frames for frames, _ in samples)
        if go is None:
            return
        done = subprocess.run(
            # By default pprof drops functions below 0.5 %, and `doze` is one on a busy host.
            [go, "tool", "pprof", "-top", "-nodefraction=0", "-nodecount=100000", f"{base}/wakeups"],
            capture_output=True,
            text=True,
            timeout=600,  # the first use compiles pprof itself
            env={**os.environ, "GOTOOLCHAIN": "local", "GOPROXY": "off", "PPROF_TMPDIR": str(tmp_path)},
            check=True,
        )
        assert "Type: idle_exits" in done.stdout and "Duration: " in done.stdout
        assert any(line.endswith("doze") for line in done.stdout.splitlines())
        assert process.poll() is None


def test_an_address_in_use_fails_before_loading(powerprof_cli: Cli) -> None:
    import socket

    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        done = powerprof_cli(["export", "--listen", f"127.0.0.1:{listening.getsockname()[1]}"])
    assert (done.code, done.err.splitlines()[0].startswith("error: cannot listen on 127.0.0.1")) == (1, True)


def test_the_statements_sum_to_the_server_also_after_a_restart(
    powerprof_cli: Cli, root_bpf: None, mariadbd: None, tmp_path: Path
) -> None:
    """The capabilities of the unit also load the tracer of the second server."""

    def by_statement(store: Store, name: str) -> dict[str, float]:
        return {dict(labels)["statement"]: value for (own, labels), value in store.last.items() if own == name}

    def wait_for_texts(store: Store, texts: set[str], problem: str) -> None:
        deadline = time.monotonic() + 90
        while {dict(labels).get("text") for _, labels in store.last} & texts != texts:
            assert time.monotonic() < deadline, problem
            store.next_interval()

    cpu = "powerprof_statement_cpu_seconds_total"
    link = tmp_path / "socket"
    work = (BURN.format(20_000), "SELECT 'secret', 42")
    with ExitStack() as stack:
        first = stack.enter_context(PrivateServer())
        link.symlink_to(first.socket)
        with asking(first, *work, pause_s=0.005):
            exported = stack.enter_context(
                exporter(powerprof_cli, "--interval", "1", "--no-ask", "--statements", str(link))
            )
            store = Store(exported[0])
            wait_for_texts(store, {BURN_TEXT, "SELECT ?, …"}, "no series of the client's statements")
            pid = first.pid
            assert pid is not None
            store.next_interval()
            store.increase.clear()
            before = by_statement(store, cpu)
            for _ in range(2):
                store.next_interval()
            grown = {id: used - before[id] for id, used in by_statement(store, cpu).items() if id in before}
            assert sum(grown.values()) == pytest.approx(store.increase[cpu])
            (burn,) = [dict(labels)["statement"] for _, labels in store.last if dict(labels).get("text") == BURN_TEXT]
            assert grown[burn] > 0.5 * sum(grown.values())
            assert total(store.last, "powerprof_statements_up") == 1
            assert "secret" not in str(store.last)
        first.close()
        deadline = time.monotonic() + 60
        while total(store.last, "powerprof_statements_up") == 1:
            assert time.monotonic() < deadline, "its end is not seen"
            store.next_interval()
        assert not by_statement(store, cpu)
        second = stack.enter_context(PrivateServer())
        link.unlink()
        link.symlink_to(second.socket)
        with asking(second, *work, pause_s=0.005):
            wait_for_texts(store, {BURN_TEXT}, "the new server is not found")
            assert total(store.last, "powerprof_statements_up") == 1
