# SPDX-License-Identifier: Apache-2.0
"""What `powerprof attribute` costs: throughput of a loaded server, exits on an idle machine, beside nothing and perf.

Loaded: sysbench's point selects with 16 threads on a private server, never stopped; the server's own count of
questions over windows in which nothing, attribution and `perf record --call-graph dwarf` take turns in a random order,
compared within a round. Run as `python -m tools.bench.attribution PID SECONDS` this module is attribution itself: it
says `ready` when its programs are loaded.
"""

from __future__ import annotations

import random
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from powerprof.database import sql
from powerprof.database.private_server import PrivateServer
from powerprof.measure.sampling import WindowMeter
from powerprof.system import program_search, programs
from powerprof.system.targets import resolve
from powerprof.tracing.idle import WindowTracer, trace_stacks
from tools.bench import observer
from tools.bench.figures import Verdict, half_range, spread
from tools.bench.observer import Tool

TARGET_LOSS_PERCENT = 2.0
TARGET_IDLE_HZ = 2.0
NEEDED_QUERIES_HZ = 40_000
_THREADS = 16
_SCHEMA = "powerprof_bench"


def attribute(pid: str, seconds: float) -> None:
    """Trace one process as the command does, window by window."""
    with trace_stacks(resolve([pid])) as (tracer, _), WindowTracer(tracer) as window:
        print("ready", flush=True)
        window.measure(seconds)


def _tools(pid: int) -> list[Tool]:
    ours = Tool("attribution", (sys.executable, "-m", "tools.bench.attribution", str(pid), "{s}"), ready=True)
    perf = Tool(
        "perf dwarf",
        (
            *observer.TRACEFS,
            "perf",
            "record",
            "-q",
            "-e",
            "sched:sched_switch",
            "--call-graph",
            "dwarf",
            "-a",
            "-o",
            "{file}",
            "sleep",
            "{s}",
        ),
        "perf",
    )
    return [Tool("nothing", ()), ours, *([perf] if program_search.which("perf") else [])]


@contextmanager
def prepared(server: PrivateServer) -> Iterator[list[str]]:
    """What a server is asked with: sysbench's command, and its tables in the server."""
    sysbench = program_search.need("sysbench", "sysbench")
    with server.connect() as connection:
        sql.execute(connection, f"CREATE DATABASE {_SCHEMA}")
    with tempfile.TemporaryDirectory() as folder:
        # A password on the command line would be everybody's to read.
        account = Path(folder) / "account"
        account.write_text(
            f"db-driver=mysql\nmysql-user={server.login.user}\nmysql-password={server.login.password}\n"
            f"mysql-socket={server.socket}\nmysql-db={_SCHEMA}\n"
        )
        words = [sysbench, f"--config-file={account}", "--tables=1", "--table-size=10000"]
        programs.run([*words, "oltp_point_select", "prepare"], timeout_s=120)
        yield words


@contextmanager
def asking(words: Sequence[str], more: Sequence[str]) -> Iterator[None]:
    """Point selects while the context is open; it is under way."""
    process = programs.start([*words, *more, "--time=0", "--events=0", "oltp_point_select", "run"])
    try:
        time.sleep(3.0)
        yield
    finally:
        programs.stop(process)


@contextmanager
def loading(server: PrivateServer, more: Sequence[str] = (f"--threads={_THREADS}",)) -> Iterator[None]:
    """Point selects by sysbench while the context is open."""
    with prepared(server) as words, asking(words, more):
        yield


def _questions(server: PrivateServer) -> int:
    with server.connect() as connection:
        return int(sql.fetch_rows(connection, "SHOW GLOBAL STATUS LIKE 'Questions'")[0][1])


def _queries_hz(server: PrivateServer, tool: Tool, seconds: float) -> float | None:
    with observer.running(tool, seconds) as runs:
        start, before = time.monotonic(), _questions(server)
        time.sleep(seconds)
        after = _questions(server)
        return (after - before) / (time.monotonic() - start) if runs else None


def loaded(count: int, seconds: float) -> Verdict:
    """Throughput lost, by round."""
    order = random.Random(3)
    found: dict[str, list[float]] = {}
    with PrivateServer() as server, loading(server):
        tools = _tools(server.pid)
        for number in range(count):
            # perf is there for comparison: a third of the rounds is enough to see a third of the throughput.
            shuffled = [tool for tool in tools if tool.name != "perf dwarf" or number % 3 == 0]
            order.shuffle(shuffled)
            rates_hz = {tool.name: _queries_hz(server, tool, seconds) for tool in shuffled}
            for name, rate in rates_hz.items():
                if rate is not None and rates_hz["nothing"]:
                    found.setdefault(name, []).append(100.0 * (1 - rate / rates_hz["nothing"]))
                    found.setdefault(f"{name} queries/s", []).append(rate)
    print(f"attribution under load, {count} rounds of {seconds:g} s, medians (range)")
    print(f"  {'':<18}{'queries/s':>30}{'lost in a round, %':>26}")
    for tool in tools:
        if tool.name in found:
            lost = "" if tool.name == "nothing" else spread(found[tool.name])
            print(f"  {tool.name:<18}{spread(found[f'{tool.name} queries/s']):>30}{lost:>26}")
    ours, rate = statistics.median(found["attribution"]), statistics.median(found["nothing queries/s"])
    return Verdict(
        f"attribution costs {ours:.1f} % of {rate:,.0f} point selects/s (target ≤ {TARGET_LOSS_PERCENT:g} %)",
        ours <= TARGET_LOSS_PERCENT,
        _doubt_loaded(found["attribution"], rate),
    )


def _doubt_loaded(lost: Sequence[float], rate: float) -> str:
    if rate < NEEDED_QUERIES_HZ:
        return f"the load is too low: {rate:,.0f} queries/s, {NEEDED_QUERIES_HZ:,} are asked for"
    if half_range(sorted(lost)[len(lost) // 4 : -(len(lost) // 4) or None]) > 2 * TARGET_LOSS_PERCENT:
        return "rounds differ by more than the target: something else runs"
    return ""


def idle(count: int, seconds: float) -> Verdict:
    """Exits that attribution of an idle server adds."""
    order = random.Random(4)
    added, nothing, c0 = [], [], []
    with PrivateServer() as server:
        time.sleep(2.0)
        tools = _tools(server.pid)[:2]
        for _ in range(count):
            order.shuffle(tools)
            rates_hz = {}
            for tool in tools:
                with observer.running(tool, seconds) as runs, WindowMeter() as meter:
                    window = meter.measure(seconds)
                    if runs and window.wakeups_hz is not None and window.c0_percent is not None:
                        rates_hz[tool.name] = (window.wakeups_hz, window.c0_percent)
            if len(rates_hz) == 2:
                added.append(rates_hz["attribution"][0] - rates_hz["nothing"][0])
                nothing.append(rates_hz["nothing"][0])
                c0.append(rates_hz["nothing"][1])
    if not added:
        return Verdict("attribution cannot run here (powerprof doctor)", met=False, doubt="no BPF")
    ours = statistics.median(added)
    print(f"attribution of an idle server, {count} rounds of {seconds:g} s, medians (range)")
    print(f"  {spread(nothing)} idle exits/s with nothing, {spread(added)} more with attribution")
    return Verdict(
        f"attribution adds {ours:+.1f} idle exits/s (target ≤ {TARGET_IDLE_HZ:g}/s)",
        ours <= TARGET_IDLE_HZ,
        observer.doubt(c0, nothing, added),
    )


def run_loaded(quick: bool) -> Verdict:
    """The loaded half."""
    return loaded(*((2, 2.0) if quick else (12, 8.0)))


def run_idle(quick: bool) -> Verdict:
    """The idle half."""
    return idle(*((2, 2.0) if quick else (7, 10.0)))


if __name__ == "__main__":
    attribute(sys.argv[1], float(sys.argv[2]))
