# SPDX-License-Identifier: Apache-2.0
"""How soon a tracer's first window is open, and in how much memory: at the first use, and later.

Run as `python -m tests.bench.opening PID` this module opens one, says the seconds since its interpreter began and,
after a second of tracing, the megabytes that it holds.
"""

from __future__ import annotations

import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from powerprof import programs
from powerprof.processes.targets import resolve
from powerprof.tracing.idle.build import trace_stacks
from powerprof.tracing.idle.monitor import TraceMonitor
from tests.bench.figures import Verdict
from tests.bench.observer import TRACEFS

TARGET_S, TARGET_MB = 0.3, 80.0
_RUNS = 7
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
        [sys.executable, "-m", "tests.bench.opening", str(os.getpid())],
        env={**os.environ, "XDG_CACHE_HOME": str(cache), "OPENBLAS_NUM_THREADS": "1"},  # as `powerprof` itself
        check=True,
        capture_output=True,
        text=True,
    )
    seconds, megabytes = done.stdout.split()
    return float(seconds), float(megabytes)


def run(quick: bool) -> Verdict:
    """The first use has no cache; no program is compiled for it either."""
    # Not below /tmp, which others may write to: root keeps no programs there.
    folder = Path(tempfile.mkdtemp(prefix="powerprof-bench-", dir="/var/cache"))
    try:
        first = _opened(folder)
        others = [_opened(folder) for _ in range(3 if quick else _RUNS)]
    finally:
        shutil.rmtree(folder)
    seconds, megabytes = statistics.median(s for s, _ in others), max(mb for _, mb in [first, *others])
    print(f"first window of a tracer, s{'open':>14}{'MB':>8}")
    print(f"  {'first use':<26}{first[0]:12.2f}{first[1]:8.0f}")
    print(f"  {'afterwards, median':<26}{seconds:12.2f}{megabytes:8.0f}")
    if programs.which("bpftrace"):
        began = time.monotonic()
        done = subprocess.run(_BPFTRACE, check=False, capture_output=True, text=True)
        why = "" if done.returncode == 0 else f"  failed: {(done.stderr.strip().splitlines() or ['?'])[-1]}"
        print(f"  {'bpftrace, one tracepoint':<26}{time.monotonic() - began:12.2f}{why}")
    lowest = min(s for s, _ in others)
    return Verdict(
        f"a tracer's window opens in {seconds:.2f} s and {megabytes:.0f} MB (targets {TARGET_S:g} s, {TARGET_MB:g} MB)",
        seconds <= TARGET_S and megabytes <= TARGET_MB,
        "the machine is busy: the quickest is within the target" if lowest <= TARGET_S < seconds else "",
    )


if __name__ == "__main__":
    open_one(sys.argv[1])
