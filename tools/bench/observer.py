# SPDX-License-Identifier: Apache-2.0
"""The observer effect: how many idle exits a second does a tool add to an idle machine?

Counted from outside, from cpuidle's own counters by resolved edges, in rounds in which nothing and each tool take turns
in a random order. Differences are taken within a round, so that slow drift is in none of them.
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
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from powerprof.measure.sampling import WindowMeter
from powerprof.system import program_search
from tools.bench.figures import Verdict, half_range, spread

TARGET_HZ = 2.0
IDLE_C0_PERCENT = 3.0
_SETTLE_S = 2.0
# A mount namespace of its own: nothing is mounted for anybody else, and it is gone with the tool.
TRACEFS = (
    "unshare",
    "--mount",
    "--propagation",
    "private",
    "sh",
    "-c",
    'mount -t tracefs none /sys/kernel/tracing 2>/dev/null; exec "$0" "$@"',
)


@dataclass(frozen=True)
class Tool:
    """A command that measures for `{s}` seconds; `{file}` is where it may write. `ready`: it says so on stdout."""

    name: str
    argv: tuple[str, ...]
    needs: str | None = None
    ready: bool = False


TOOLS = (
    Tool("nothing", ()),
    Tool("powerprof", (sys.executable, "-m", "tools.bench.driver", "{s}"), ready=True),
    Tool("powertop --csv", ("unshare", "-m", "powertop", "--csv={file}", "--time={s}"), "powertop"),
    Tool(
        "perf record",
        (*TRACEFS, "perf", "record", "-q", "-a", "-e", "sched:sched_switch", "-o", "{file}", "sleep", "{s}"),
        "perf",
    ),
    Tool(
        "bpftrace",
        (*TRACEFS, "bpftrace", "-q", "-e", "tracepoint:sched:sched_switch {{ @[comm] = count(); }}"),
        "bpftrace",
    ),
)


@contextmanager
def running(tool: Tool, seconds: float) -> Iterator[bool]:
    """The tool while it measures; False where it does not run here."""
    if not tool.argv:
        time.sleep(_SETTLE_S)
        yield True
        return
    with tempfile.TemporaryDirectory() as folder:
        argv = [part.format(s=int(seconds + _SETTLE_S + 3), file=Path(folder) / "out") for part in tool.argv]
        process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            cwd=Path(__file__).resolve().parents[2],
        )
        try:
            if tool.ready:
                assert process.stdout is not None
                process.stdout.readline()
            time.sleep(_SETTLE_S)
            yield process.poll() is None
        finally:
            for number in (signal.SIGINT, signal.SIGKILL):
                if process.poll() is None:
                    os.killpg(process.pid, number)
                try:
                    process.communicate(timeout=10)
                    break
                except subprocess.TimeoutExpired:
                    continue


def measure(tool: Tool, seconds: float) -> tuple[float, float] | None:
    """Idle exits a second and C0 in percent while the tool runs; None where it does not run here."""
    with running(tool, seconds) as runs, WindowMeter() as meter:
        window = meter.measure(seconds)
        if not runs or window.wakeups_hz is None or window.c0_percent is None:
            return None
        return window.wakeups_hz, window.c0_percent


def rounds(tools: list[Tool], count: int, seconds: float) -> dict[str, list[tuple[float, float]]]:
    """Every tool once a round, in an order of its own."""
    found: dict[str, list[tuple[float, float]]] = {tool.name: [] for tool in tools}
    order = random.Random(2)
    for number in range(count):
        shuffled = list(tools)
        order.shuffle(shuffled)
        for tool in shuffled:
            if sys.stderr.isatty():
                print(f"\r  round {number + 1} of {count}: {tool.name:<20}", end="", file=sys.stderr, flush=True)
            figures = measure(tool, seconds)
            if figures is not None:
                found[tool.name].append(figures)
    if sys.stderr.isatty():
        print(f"\r{'':40}\r", end="", file=sys.stderr, flush=True)
    return {name: values for name, values in found.items() if len(values) == count}


def run(quick: bool) -> Verdict:
    """The table and what it says of powerprof."""
    count, seconds = (2, 2.0) if quick else (7, 10.0)
    tools = [tool for tool in TOOLS if tool.needs is None or program_search.which(tool.needs)]
    found = rounds(tools, count, seconds)
    print(f"observer effect, {count} rounds of {seconds:g} s, medians (range)")
    print(f"  {'':<18}{'idle exits/s':>24}{'added in a round':>24}{'C0 %':>8}")
    nothing = [exits for exits, _ in found["nothing"]]
    added = {
        name: [exits - base for (exits, _), base in zip(values, nothing, strict=True)] for name, values in found.items()
    }
    for name, values in found.items():
        more = "" if name == "nothing" else spread(added[name])
        c0 = statistics.median(c0 for _, c0 in values)
        print(f"  {name:<18}{spread([exits for exits, _ in values]):>24}{more:>24}{c0:8.2f}")
    for tool in TOOLS:
        if tool.name not in found:
            print(f"  {tool.name:<18}{'does not run here':>24}")
    if "powerprof" not in found:
        return Verdict("powerprof cannot trace here (powerprof doctor)", met=False, doubt="no BPF")
    ours = statistics.median(added["powerprof"])
    return Verdict(
        f"powerprof adds {ours:+.1f} idle exits/s (target ≤ {TARGET_HZ:g}/s)",
        ours <= TARGET_HZ,
        doubt([c0 for _, c0 in found["nothing"]], nothing, added["powerprof"]),
    )


def doubt(c0_percent: list[float], exits_hz: list[float], added_hz: list[float]) -> str:
    """Why this machine cannot tell; empty where it can."""
    busy = statistics.median(c0_percent)
    if busy > IDLE_C0_PERCENT:
        return f"the machine is not idle: {busy:.1f} % C0 with nothing"
    if half_range(exits_hz) > 2 * TARGET_HZ:
        return f"with nothing the rounds differ by ±{half_range(exits_hz):.1f} exits/s"
    if half_range(added_hz) > 2 * TARGET_HZ:
        return f"what powerprof adds differs by ±{half_range(added_hz):.1f} exits/s between rounds"
    return ""
