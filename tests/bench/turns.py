# SPDX-License-Identifier: Apache-2.0
"""What tracing costs a server under one constant load: tracer on and off in turns of a fifth of a second.

Neighbours change the throughput of a shared host by tens of percent from one window of seconds to the next, so windows
compare neighbours. Here the programs stay loaded, and only their tracepoints are attached and detached (10 to 20 ms,
3 ms), in ABBA order: what is compared lies a fifth of a second apart. Medians over the pairs with bootstrap intervals.
"""

from __future__ import annotations

import resource
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from powerprof.database import sql
from powerprof.database.server import PrivateServer
from powerprof.processes.targets import resolve
from powerprof.sources.cpuidle import CpuidleReader
from powerprof.tracing.monitor import Monitor
from powerprof.tracing.stacks import StackTracer
from tests.bench import attribution
from tests.bench.figures import Verdict

TURN_S = 0.2
# Attaching is still felt for an instant.
_TIMED_PAIRS = 10
_SETTLE_S = 0.03
LOSS_PERCENT, CPU_PERCENT = 1.5, 4.0
_BUSY_HZ, _HALF_HZ = 40_000, 3_000
_RESAMPLES = 4000


@dataclass(frozen=True)
class Turn:
    """One turn: queries and idle exits a second, CPU time a query (all CPUs out of idle), time in BPF programs."""

    queries_hz: float
    cpu_us: float
    exits_hz: float
    bpf_percent: float


@dataclass(frozen=True)
class _Reading:
    at_s: float
    questions: int
    idle_us: int
    exits: int
    bpf_s: float


class Switched(Protocol):
    """A tracer that stays loaded and can be switched on and off."""

    def attach(self) -> None:
        """On."""

    def detach(self) -> None:
        """Off."""

    def count_run_time(self) -> None:
        """Count the time in its programs from now on."""

    def run_time_s(self) -> float | None:
        """Time in its programs."""


class _Stacks:
    """The tracer of idle exits and stacks."""

    def __init__(self, tracer: StackTracer) -> None:
        self._tracer = tracer

    def attach(self) -> None:
        self._tracer.program.attach()

    def detach(self) -> None:
        self._tracer.program.detach()
        # Or the ring buffers would fill, and full ones cost less.
        self._tracer.drain()

    def count_run_time(self) -> None:
        self._tracer.program.count_run_time()

    def run_time_s(self) -> float | None:
        return self._tracer.program.run_time_s()


class Bench:
    """A loaded server and a tracer of it that can be switched on and off."""

    def __init__(self, server: PrivateServer, tracer: Switched, reader: CpuidleReader) -> None:
        self._server = server
        self._tracer = tracer
        self._reader = reader

    def count_run_time(self) -> None:
        """Of the tracer, from now on."""
        self._tracer.count_run_time()

    def _read(self, connection: sql.Connection) -> _Reading:
        questions = int(sql.rows(connection, "SHOW GLOBAL STATUS LIKE 'Questions'")[0][1])
        idle_us = exits = 0
        for cpu in self._reader.cpus:
            reading = self._reader.read_cpu(cpu)
            if reading is not None:
                exits += sum(reading.usage)
                pairs = zip(reading.states, reading.time_us, strict=True)
                idle_us += sum(spent for state, spent in pairs if not state.polling)
        return _Reading(time.monotonic(), questions, idle_us, exits, self._tracer.run_time_s() or 0.0)

    def _turn(self, connection: sql.Connection, on: bool) -> Turn:
        if on:
            self._tracer.attach()
        else:
            self._tracer.detach()
        time.sleep(_SETTLE_S)
        before = self._read(connection)
        time.sleep(TURN_S)
        after = self._read(connection)
        span, cpus = after.at_s - before.at_s, len(self._reader.cpus)
        queries = max(1, after.questions - before.questions)
        busy_us = span * cpus * 1e6 - (after.idle_us - before.idle_us)
        return Turn(
            queries / span,
            busy_us / queries,
            (after.exits - before.exits) / span,
            100.0 * (after.bpf_s - before.bpf_s) / (span * cpus),
        )

    def pairs(self, count: int) -> list[tuple[Turn, Turn]]:
        """(off, on) of each pair, taken in the order off on, on off, …"""
        found = []
        with self._server.connect() as connection:
            for number in range(count):
                first = self._turn(connection, number % 2 == 1)
                second = self._turn(connection, number % 2 == 0)
                found.append((first, second) if number % 2 == 0 else (second, first))
        self._tracer.attach()
        return found


def interval(values: Sequence[float], seed: int = 7) -> tuple[float, float, float]:
    """Median and its 95 % bootstrap interval."""
    data = np.asarray(values)
    picks = np.random.default_rng(seed).integers(0, len(data), (_RESAMPLES, len(data)))
    low, high = np.percentile(np.median(data[picks], axis=1), [2.5, 97.5])
    return float(np.median(data)), float(low), float(high)


def _said(values: Sequence[float], unit: str) -> str:
    middle, low, high = interval(values)
    return f"{middle:+.2f} [{low:+.2f}, {high:+.2f}] {unit}"


@contextmanager
def _bench(load: Sequence[str] | None) -> Iterator[tuple[Bench, float]]:
    with PrivateServer() as server, attribution.loading(server, load) if load is not None else attribution.silent():
        began = time.monotonic()
        with (
            StackTracer(resolve([str(server.pid)])) as tracer,
            # A window is open: what counts nothing costs less.
            Monitor(tracer),
            CpuidleReader() as reader,
        ):
            ready_s = time.monotonic() - began
            yield Bench(server, _Stacks(tracer), reader), ready_s


Opening = Callable[[Sequence[str]], AbstractContextManager[tuple[Bench, float]]]


def loaded(name: str, load: Sequence[str], count: int, opened: Opening = _bench) -> list[tuple[Turn, Turn]]:
    """Pairs of turns under a load, and a table of what they say."""
    with opened(load) as (bench, ready_s):
        pairs = bench.pairs(count)
        # With turns of their own: the kernel's clock costs two looks at a clock in each run of a program.
        bench.count_run_time()
        timed = bench.pairs(_TIMED_PAIRS)
    rate = statistics.median(off.queries_hz for off, _ in pairs)
    exits = statistics.median(off.exits_hz for off, _ in pairs)
    lost = [100.0 * (1.0 - on.queries_hz / off.queries_hz) for off, on in pairs]
    dearer = [100.0 * (on.cpu_us / off.cpu_us - 1.0) for off, on in pairs]
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"{name}: {rate:,.0f} queries/s, {exits:,.0f} idle exits/s, {count} pairs of {TURN_S:g} s")
    print(f"  throughput lost         {_said(lost, '%')}")
    print(f"  CPU time more a query   {_said(dearer, '%')}")
    print(f"  time in BPF programs    {_said([on.bpf_percent for _, on in timed], '% of all CPUs')}")
    print(f"  first tracer ready in {ready_s:.1f} s; {memory:.0f} MB at most in this process")
    return pairs


def run_full(quick: bool) -> Verdict:
    """Sixteen threads that ask as fast as they can."""
    pairs = loaded("saturated", ["--threads=16", "--rate=0"], 10 if quick else 250)
    lost = [100.0 * (1.0 - on.queries_hz / off.queries_hz) for off, on in pairs]
    _, low, high = interval(lost)
    rate = statistics.median(off.queries_hz for off, _ in pairs)
    doubt = f"the load is too low: {rate:,.0f} queries/s, {_BUSY_HZ:,} are asked for" if rate < _BUSY_HZ else ""
    if high - low > 2 * LOSS_PERCENT:
        doubt = f"the interval is wider than the target ({high - low:.1f} points): something else runs"
    text = f"tracing costs at most {high:.1f} % of a saturated server's throughput (target ≤ {LOSS_PERCENT:g} %)"
    return Verdict(text, high <= LOSS_PERCENT, doubt)


def run_half(quick: bool) -> Verdict:
    """Eight threads that ask 8,000 times a second: most of the time is idle, in short periods."""
    pairs = loaded("half-loaded", ["--threads=8", "--rate=8000"], 10 if quick else 250)
    _, low, high = interval([100.0 * (on.cpu_us / off.cpu_us - 1.0) for off, on in pairs])
    exits = statistics.median(off.exits_hz for off, _ in pairs)
    doubt = f"the machine is not half-loaded but busy: {exits:,.0f} idle exits/s" if exits < _HALF_HZ else ""
    if high - low > 2 * CPU_PERCENT:
        doubt = f"the interval is wider than the target ({high - low:.1f} points): something else runs"
    text = f"tracing adds at most {high:.1f} % CPU time a query to a half-loaded server (target ≤ {CPU_PERCENT:g} %)"
    return Verdict(text, high <= CPU_PERCENT, doubt)
