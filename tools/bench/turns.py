# SPDX-License-Identifier: Apache-2.0
"""What tracing costs a server under one constant load: tracer on and off in turns of some hundredths of a second.

Neighbours change the throughput of a shared host by tens of percent from one window of seconds to the next, so windows
compare neighbours. Here the programs stay loaded, and only their tracepoints are attached and detached (some
milliseconds), in ABBA order: what is compared lies a tenth of a second apart. Medians over blocks of four turns, in
which a drift cancels out, with bootstrap intervals; as many blocks as make the interval narrow, within 20 minutes.
"""

from __future__ import annotations

import math
import os
import resource
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import astuple, dataclass
from typing import Protocol

import numpy as np

from powerprof.database import sql
from powerprof.database.base import Sql
from powerprof.database.private_server import PrivateServer
from powerprof.measure.clock import kernel_ns
from powerprof.measure.cpuidle import CpuidleReader
from powerprof.system.targets import resolve
from powerprof.tracing.idle import IdleTracer, trace_stacks
from powerprof.tracing.monitor import TraceMonitor
from tools.bench import attribution
from tools.bench.figures import Verdict

# As short as attaching (a millisecond) and asking the server (two) allow: in the same fifty seconds the interval is
# 40 % narrower than with turns of 0.2 s.
TURN_S, _SETTLE_S = 0.06, 0.03
_TIMED_PAIRS = 40
# Blocks of two pairs go on until the interval is so much narrower than the target.
_NARROW, _MOST_BATCHES = 0.5, 10
LOSS_PERCENT, CPU_PERCENT = 1.5, 3.0
_BUSY_HZ, _USUAL_HZ = 40_000, 15_000
# A half-loaded server: how many queries wake how many CPUs goes by the machine, so several loads are tried. Where one
# thread asks, nearly every message ends an idle period.
_HALF_LOADS = (
    *((f"--threads={threads}", f"--rate={rate}") for rate in (8000, 5000, 12000) for threads in (8, 1)),
    ("--threads=1", "--rate=0"),
)
# What tracing adds to a query goes by how often the query ends an idle period: 15,000 times a second for 8,000 queries
# where the target comes from.
_EXITS_A_QUERY = 1.5
_RESAMPLES = 4000


@dataclass(frozen=True)
class Turn:
    """One turn: queries and idle exits a second, CPU time a query (all CPUs out of idle), time in BPF programs."""

    queries_hz: float
    cpu_us: float
    exits_hz: float
    bpf_percent: float


@dataclass(frozen=True)
class Reading:
    """Counters at one moment."""

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


class Unswitched:
    """No tracer: the caller traces."""

    def attach(self) -> None:
        """Nothing."""

    def detach(self) -> None:
        """Nothing."""

    def count_run_time(self) -> None:
        """Nothing."""

    def run_time_s(self) -> float | None:
        """Nothing."""
        return None


class _Stacks:
    """The tracer of idle exits and stacks."""

    def __init__(self, tracer: IdleTracer) -> None:
        self._tracer, self._is_on = tracer, True

    def attach(self) -> None:
        if self._is_on:
            return
        self._is_on = True
        # The programs' own meter of load looks back over a tenth of a second, and learns the load once a window: it
        # goes on where it stopped, instead of learning again in each turn.
        for cpu, state in enumerate(self._tracer.cpus.states().copy()):
            state["meter_start_ns"], state["meter_captures"], state["idled_ns"] = kernel_ns(), 0, 0
            self._tracer.program.put("cpus", cpu, state.tobytes())
        self._tracer.program.attach()

    def detach(self) -> None:
        self._is_on = False
        self._tracer.program.detach()
        # Or the ring buffers would fill, and full ones cost less.
        self._tracer.read()

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

    def read(self, connection: Sql) -> Reading:
        """The counters of the server and of the CPUs."""
        questions = int(sql.fetch_rows(connection, "SHOW GLOBAL STATUS LIKE 'Questions'")[0][1])
        idle_us = exits = 0
        for cpu in self._reader.cpus:
            reading = self._reader.read_cpu(cpu)
            if reading is not None:
                exits += sum(reading.usage)
                pairs = zip(reading.states, reading.time_us, strict=True)
                idle_us += sum(spent for state, spent in pairs if not state.polling)
        return Reading(time.monotonic(), questions, idle_us, exits, self._tracer.run_time_s() or 0.0)

    def _turn(self, connection: Sql, on: bool) -> Turn:
        if on:
            self._tracer.attach()
        else:
            self._tracer.detach()
        time.sleep(_SETTLE_S)
        before = self.read(connection)
        time.sleep(TURN_S)
        return self.turn_between(before, self.read(connection))

    def turn_between(self, before: Reading, after: Reading) -> Turn:
        """What happened between two readings."""
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


def lost_percent(off: Turn, on: Turn) -> float:
    """Of throughput."""
    return 100.0 * (1.0 - on.queries_hz / off.queries_hz)


def dearer_percent(off: Turn, on: Turn) -> float:
    """CPU time more a query."""
    return 100.0 * (on.cpu_us / off.cpu_us - 1.0)


def blocks(pairs: Sequence[tuple[Turn, Turn]]) -> list[tuple[Turn, Turn]]:
    """Two pairs each, whose order is off, on, on, off: what changes steadily meanwhile is in both means alike."""

    def mean(one: Turn, other: Turn) -> Turn:
        return Turn(*(statistics.mean(both) for both in zip(astuple(one), astuple(other), strict=True)))

    return [
        (mean(first[0], second[0]), mean(first[1], second[1]))
        for first, second in zip(pairs[::2], pairs[1::2], strict=False)
    ]


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
def _traced(server: PrivateServer) -> Iterator[tuple[Bench, float]]:
    began = time.monotonic()
    with (
        trace_stacks(resolve([str(server.pid)])) as (tracer, _),
        # A window is open: what counts nothing costs less.
        TraceMonitor(tracer),
        CpuidleReader() as reader,
    ):
        ready_s = time.monotonic() - began
        yield Bench(server, _Stacks(tracer), reader), ready_s


@contextmanager
def _bench(load: Sequence[str]) -> Iterator[tuple[Bench, float]]:
    with PrivateServer() as server, attribution.loading(server, load), _traced(server) as found:
        yield found


def _exits_hz(reader: CpuidleReader) -> float:
    def exits() -> int:
        readings = [reader.read_cpu(cpu) for cpu in reader.cpus]
        return sum(sum(one.usage) for one in readings if one is not None)

    began_s, before = time.monotonic(), exits()
    time.sleep(1.0)
    return (exits() - before) / (time.monotonic() - began_s)


@contextmanager
def _half_loaded(loads: Sequence[str]) -> Iterator[tuple[Bench, float]]:
    """Under that of some loads (words, with a comma between) whose idle exits come nearest to the usual case."""
    with PrivateServer() as server, attribution.prepared(server) as words, CpuidleReader() as reader:
        found = {}
        for load in loads:
            with attribution.asking(words, load.split(",")):
                found[load] = _exits_hz(reader)
            print(f"  tried {load.replace(',', ' ')}: {found[load]:,.0f} idle exits/s", flush=True)
            if found[load] >= _USUAL_HZ:
                break
        best = min(found, key=lambda one: abs(found[one] - _USUAL_HZ))
        with attribution.asking(words, best.split(",")), _traced(server) as bench:
            yield bench


Opening = Callable[[Sequence[str]], AbstractContextManager[tuple[Bench, float]]]


def loaded(
    name: str,
    load: Sequence[str],
    count: int,
    opened: Opening = _bench,
    *,
    judged: Callable[[Turn, Turn], float] = lost_percent,
    width: float = math.inf,
) -> list[tuple[Turn, Turn]]:
    """Blocks of turns under a load, and a table of what they say.

    `count` pairs at a time, until the interval of what is `judged` is not wider than `width`.
    """
    with opened(load) as (bench, ready_s):
        pairs: list[tuple[Turn, Turn]] = []
        for _ in range(_MOST_BATCHES):
            pairs += blocks(bench.pairs(count))
            _, low, high = interval([judged(off, on) for off, on in pairs])
            if high - low <= width:
                break
        # With turns of their own: the kernel's clock costs two looks at a clock in each run of a program.
        bench.count_run_time()
        timed = bench.pairs(_TIMED_PAIRS)
    rate = statistics.median(off.queries_hz for off, _ in pairs)
    exits = statistics.median(off.exits_hz for off, _ in pairs)
    lost = [lost_percent(off, on) for off, on in pairs]
    dearer = [dearer_percent(off, on) for off, on in pairs]
    # In percent of all CPUs: a second of two CPUs is 2e9 ns.
    per_query = [on.bpf_percent / 100 * 1e9 * (os.cpu_count() or 1) / on.queries_hz for _, on in timed]
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"{name}: {rate:,.0f} queries/s, {exits:,.0f} idle exits/s, {2 * len(pairs)} pairs of {TURN_S:g} s")
    print(f"  throughput lost         {_said(lost, '%')}")
    print(f"  CPU time more a query   {_said(dearer, '%')}")
    print(f"  time in BPF programs    {_said([on.bpf_percent for _, on in timed], '% of all CPUs')}")
    print(f"                          {_said(per_query, 'ns a query, the clock that tells it included')}")
    print(f"  first tracer ready in {ready_s:.1f} s; {memory:.0f} MB at most in this process")
    return pairs


def run_full(quick: bool) -> Verdict:
    """Sixteen threads that ask as fast as they can."""
    load = ["--threads=16", "--rate=0"]
    pairs = loaded("saturated", load, 40) if quick else loaded("saturated", load, 1000, width=_NARROW * LOSS_PERCENT)
    _, low, high = interval([lost_percent(off, on) for off, on in pairs])
    rate = statistics.median(off.queries_hz for off, _ in pairs)
    doubt = f"the load is too low: {rate:,.0f} queries/s, {_BUSY_HZ:,} are asked for" if rate < _BUSY_HZ else ""
    if high - low > 2 * LOSS_PERCENT:
        doubt = f"the interval is wider than the target ({high - low:.1f} points): something else runs"
    text = f"tracing costs at most {high:.1f} % of a saturated server's throughput (target ≤ {LOSS_PERCENT:g} %)"
    return Verdict(text, high <= LOSS_PERCENT, doubt)


def run_half(quick: bool) -> Verdict:
    """Some threads that ask some thousand times a second: much of the time is idle, in short periods."""
    loads = [",".join(one) for one in _HALF_LOADS]
    pairs = loaded(
        "half-loaded",
        loads[:1] if quick else loads,
        40 if quick else 1000,
        _half_loaded,
        judged=dearer_percent,
        width=math.inf if quick else _NARROW * CPU_PERCENT,
    )
    _, low, high = interval([dearer_percent(off, on) for off, on in pairs])
    exits = statistics.median(off.exits_hz / off.queries_hz for off, _ in pairs)
    doubt = f"a query ends {exits:.1f} idle periods, {_EXITS_A_QUERY:g} are asked for" if exits < _EXITS_A_QUERY else ""
    if high - low > 2 * CPU_PERCENT:
        doubt = f"the interval is wider than the target ({high - low:.1f} points): something else runs"
    text = f"tracing adds at most {high:.1f} % CPU time a query to a half-loaded server (target ≤ {CPU_PERCENT:g} %)"
    return Verdict(text, high <= CPU_PERCENT, doubt)
