# SPDX-License-Identifier: Apache-2.0
"""Idle exits of CPUs that do not exist, as fast as this machine can run the very programs that trace real ones."""

from __future__ import annotations

import subprocess
import time
from contextlib import AbstractContextManager
from pathlib import Path

from powerprof.system.program_search import need
from powerprof.tracing.bpf.definitions import count_possible_cpus
from powerprof.tracing.idle import IdleTracer, trace_exits

SYNTHETIC = 64
NAMES = ("cpu_idle", "sched_wake_idle_without_ipi")


def tracer() -> AbstractContextManager[IdleTracer]:
    """With room for the CPUs that do not exist."""
    return trace_exits({"NR_CPUS": count_possible_cpus() + SYNTHETIC})


def build(folder: Path) -> Path:
    """tests/programs/exits.c, compiled."""
    target = folder / "exits"
    source = Path(__file__).with_name("exits.c")
    subprocess.run([need("gcc", "gcc"), "-O2", "-Wall", "-Wextra", "-Werror", "-o", target, source], check=True)
    return target


def opened(running: IdleTracer) -> None:
    """Begin a window of the CPUs that do not exist, and of none that does."""
    running.begin()
    at_ns = time.monotonic_ns()
    for cpu in range(SYNTHETIC):
        running.cpus.open(count_possible_cpus() + cpu, at_ns)


def idle_once(program: Path, running: IdleTracer, cpu: int) -> None:
    """A CPU that does not exist goes idle, and nobody runs on it."""
    descriptors = [running.program.descriptor(f"raw_tracepoint__{name}") for name in NAMES]
    command = [program, *map(str, descriptors), str(cpu), "1", "1"]
    subprocess.run(command, pass_fds=descriptors, stdout=subprocess.DEVNULL, check=True, timeout=60)


def inject(program: Path, running: IdleTracer, count: int, workers: int) -> float:
    """So many exits by each of some processes at once; returns the CPU time of the slowest, in seconds."""
    descriptors = [running.program.descriptor(f"raw_tracepoint__{name}") for name in NAMES]
    each = SYNTHETIC // workers
    started = [
        subprocess.Popen(
            [program, *map(str, descriptors), str(count_possible_cpus() + each * number), str(each), str(count)],
            pass_fds=descriptors,
            stdout=subprocess.PIPE,
        )
        for number in range(workers)
    ]
    spent = [float(one.communicate(timeout=300)[0]) for one in started]
    assert all(one.returncode == 0 for one in started)
    return max(spent)
