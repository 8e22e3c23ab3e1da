# SPDX-License-Identifier: Apache-2.0
"""How soon the first window of `attribute` is open, from the command on, and of a tracer alone, in how much memory.

Run as `python -m tools.bench.opening PID` this module opens one, says the seconds since its interpreter began and,
after a second of tracing, the megabytes that it holds.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import datetime
from pathlib import Path

from powerprof.system import program_search
from powerprof.system.targets import resolve
from powerprof.tracing.idle import trace_stacks
from powerprof.tracing.monitor import TraceMonitor
from tools.bench.figures import Verdict
from tools.bench.observer import TRACEFS

TARGET_S, TARGET_MB = 0.3, 80.0
_RUNS = 7
_ATTRIBUTE = (sys.executable, "-m", "powerprof", "attribute", "--duration", "0.5", "--no-save", "--json", "-")
# It looks its tracepoints up in tracefs, which need not be mounted here.
_BPFTRACE = (*TRACEFS, "bpftrace", "-e", "tracepoint:power:cpu_idle { @[args->state] = count(); } BEGIN { exit(); }")


def _started_s() -> float:
    """When this process began, on CLOCK_BOOTTIME: field 22 of proc(5)'s stat."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    return int(fields[19]) / os.sysconf("SC_CLK_TCK")


def open_one(pid: str) -> None:
    """As `attribute --pid` does."""
    with trace_stacks(resolve([pid])) as (tracer, _), TraceMonitor(tracer) as monitor:
        ready_s = time.clock_gettime(time.CLOCK_BOOTTIME) - _started_s()
        time.sleep(1.0)
        monitor.read()
        status = Path("/proc/self/status").read_text()
        resident = re.search(r"VmRSS:\s+(\d+)", status)
        print(f"{ready_s:.3f} {int(resident[1]) / 1024 if resident else 0.0:.1f}")


def _opened(cache: Path) -> tuple[float, float]:
    """Seconds and megabytes of one tracer, in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-m", "tools.bench.opening", str(os.getpid())],
        env={**os.environ, "XDG_CACHE_HOME": str(cache), "OPENBLAS_NUM_THREADS": "1"},  # as `powerprof` itself
        check=True,
        capture_output=True,
        text=True,
    )
    seconds, megabytes = done.stdout.split()
    return float(seconds), float(megabytes)


def _command_s(cache: Path) -> float:
    """Seconds from the start of `powerprof attribute` to the beginning of its window."""
    began_s = time.time()
    done = subprocess.run(
        [*_ATTRIBUTE, "--pid", str(os.getpid())],
        env={**os.environ, "XDG_CACHE_HOME": str(cache)},
        check=True,
        capture_output=True,
    )
    started_at = json.loads(done.stdout)["started_at"]
    return datetime.fromisoformat(started_at).timestamp() - began_s


def run(quick: bool) -> Verdict:
    """The first use has no cache; no program is compiled for it either."""
    # Not below /tmp, which others may write to: root keeps no programs there.
    folder = Path(tempfile.mkdtemp(prefix="powerprof-bench-", dir="/var/cache"))
    try:
        first = _opened(folder)
        others = [_opened(folder) for _ in range(3 if quick else _RUNS)]
        commands = [_command_s(folder) for _ in range(3 if quick else _RUNS)]
    finally:
        shutil.rmtree(folder)
    seconds, megabytes = statistics.median(s for s, _ in others), max(mb for _, mb in [first, *others])
    command_s = statistics.median(commands)
    print(f"first window, s{'open':>25}{'MB':>8}")
    print(f"  {'powerprof attribute':<26}{command_s:12.2f}")
    print(f"  {'a tracer, first use':<26}{first[0]:12.2f}{first[1]:8.0f}")
    print(f"  {'afterwards, median':<26}{seconds:12.2f}{megabytes:8.0f}")
    if program_search.which("bpftrace"):
        began = time.monotonic()
        done = subprocess.run(_BPFTRACE, check=False, capture_output=True, text=True)
        why = "" if done.returncode == 0 else f"  failed: {(done.stderr.strip().splitlines() or ['?'])[-1]}"
        print(f"  {'bpftrace, one tracepoint':<26}{time.monotonic() - began:12.2f}{why}")
    lowest = min(commands)
    return Verdict(
        f"attribute's window opens in {command_s:.2f} s (a tracer's in {seconds:.2f} s and {megabytes:.0f} MB; "
        f"targets {TARGET_S:g} s, {TARGET_MB:g} MB)",
        command_s <= TARGET_S and megabytes <= TARGET_MB,
        "the machine is busy: the quickest is within the target" if lowest <= TARGET_S < command_s else "",
    )


if __name__ == "__main__":
    open_one(sys.argv[1])
