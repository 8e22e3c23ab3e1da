# SPDX-License-Identifier: Apache-2.0
"""What `powerprof queries` costs a server that answers as fast as it can: by probes and by samples, in `turns`."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from powerprof.database import sql
from powerprof.database.base import Sql
from powerprof.database.private_server import PrivateServer
from powerprof.energy.request import NO_METER
from powerprof.energy.windows import WindowEnergy
from powerprof.measure.cpuidle import CpuidleReader
from powerprof.queries.probes import Probes as Traced
from powerprof.queries.target import find_server
from powerprof.tracing.statement_samples import SAMPLE_HZ, MomentSampler
from powerprof.tracing.statements import QueryTracer
from tools.bench import attribution, turns
from tools.bench.figures import Verdict, spread

LOSS_PERCENT, SAMPLES_PERCENT = 3.0, 1.0
# Throughput that `queries` at its default bound may cost a saturated server.
BOUND, BOUNDED_PERCENT, WINDOW_S = 0.02, 2.0, 10.0
_BUSY_HZ = 40_000
_TIMES = 10


class Probes:
    """The tracer's probe and tracepoints, all of them or none."""

    def __init__(self, tracer: QueryTracer) -> None:
        self._tracer, self._is_on = tracer, False

    def attach(self) -> None:
        if self._is_on:
            return  # two turns in a row are on: a second probe would be paid for as well
        self._is_on = True
        self._tracer.program.attach()
        self._tracer.attach()
        self._tracer.begin(timed=False)

    def detach(self) -> None:
        self._is_on = False
        self._tracer.detach()
        self._tracer.program.detach()

    def count_run_time(self) -> None:
        self._tracer.program.count_run_time()

    def run_time_s(self) -> float | None:
        return self._tracer.program.run_time_s()


class Samples:
    """The sampler of texts, `times` as often as usual: what a sample costs is then told so much more exactly."""

    def __init__(self, sampler: MomentSampler, times: int) -> None:
        self._sampler, self._times, self._is_on = sampler, times, False

    def attach(self) -> None:
        if not self._is_on:
            self._sampler.begin(SAMPLE_HZ * self._times, timed=False)
        self._is_on = True

    def detach(self) -> None:
        self._sampler.end()
        self._is_on = False

    def count_run_time(self) -> None:
        self._sampler.program.count_run_time()

    def run_time_s(self) -> float | None:
        return self._sampler.program.run_time_s()


@contextmanager
def _bench(load: Sequence[str]) -> Iterator[tuple[turns.Bench, float]]:
    with PrivateServer() as server, attribution.loading(server, load):
        assert server.pid is not None
        began = time.monotonic()
        with QueryTracer(server.pid) as tracer, CpuidleReader() as reader:
            yield turns.Bench(server, Probes(tracer), reader), time.monotonic() - began


@contextmanager
def _sampled(load: Sequence[str]) -> Iterator[tuple[turns.Bench, float]]:
    with PrivateServer() as server, attribution.loading(server, load):
        assert server.pid is not None
        began = time.monotonic()
        with MomentSampler(server.pid) as sampler, CpuidleReader() as reader:
            yield turns.Bench(server, Samples(sampler, _TIMES), reader), time.monotonic() - began


def run(quick: bool) -> Verdict:
    """Sixteen threads that ask as fast as they can, probed."""
    return _judged("statements", _bench, LOSS_PERCENT, quick)


def run_samples(quick: bool) -> Verdict:
    """The same, sampled: more often than usual, and what that costs in proportion."""
    return _judged("statements by samples", _sampled, SAMPLES_PERCENT, quick, _TIMES)


def run_bounded(quick: bool) -> Verdict:
    """The same load in windows with the default bound, and without tracing, in ABBA order."""
    load = ["--threads=16", "--rate=0"]
    lost, costs, traced = [], [], []
    with PrivateServer() as server, attribution.loading(server, load), server.connect() as connection:
        found = find_server(str(server.pid), None, None, None)
        for number in range(2 if quick else 60):
            rates = {}
            for is_on in (number % 2 == 1, number % 2 == 0):
                before, began_s = _questions(connection), time.monotonic()
                if is_on:
                    with Traced(found) as probes, WindowEnergy(NO_METER) as energy:
                        before, began_s = _questions(connection), time.monotonic()
                        measured = probes.trace_window(WINDOW_S, energy, BOUND).measured
                    costs.append(measured.cost_percent or 0.0)
                    traced.append(100.0 if measured.slicing is None else measured.slicing.traced_percent)
                else:
                    time.sleep(WINDOW_S)
                rates[is_on] = (_questions(connection) - before) / (time.monotonic() - began_s)
            lost.append(100.0 * (1.0 - rates[True] / rates[False]))
    middle, low, high = turns.interval(lost)
    print(f"  cost as powerprof counts it, % of the server's CPU time   {spread(costs)}")
    print(f"  traced, % of the window   {spread(traced)}")
    return Verdict(
        f"queries --max-cost {100 * BOUND:g}% costs {middle:.2f} % [{low:.2f}, {high:.2f}] of a saturated server's "
        f"throughput (target ≤ {BOUNDED_PERCENT:g} %)",
        middle <= BOUNDED_PERCENT,
        "the interval is wider than twice the target: something else runs" if high - low > 2 * BOUNDED_PERCENT else "",
    )


def _questions(connection: Sql) -> int:
    return int(sql.fetch_rows(connection, "SHOW GLOBAL STATUS LIKE 'Questions'", columns=2)[0][1])


def _judged(name: str, opened: turns.Opening, target_percent: float, quick: bool, times: int = 1) -> Verdict:
    """`times`: the cost was made so many times as large, to be seen."""
    pairs = turns.loaded(name, ["--threads=16", "--rate=0"], 10 if quick else 200, opened)
    lost = [100.0 * (1.0 - on.queries_hz / off.queries_hz) / times for off, on in pairs]
    middle, low, high = turns.interval(lost)
    rate = statistics.median(off.queries_hz for off, _ in pairs)
    doubt = f"the load is too low: {rate:,.0f} queries/s, {_BUSY_HZ:,} are asked for" if rate < _BUSY_HZ else ""
    if high - low > 2 * target_percent:
        doubt = f"the interval is wider than the target ({high - low:.1f} points): something else runs"
    each = 2e6 * middle / 100 / rate
    more = f", a {times}th of what {times} times as many samples cost" if times > 1 else ""
    text = (
        f"telling {name} apart costs {middle:.2f} % [{low:.2f}, {high:.2f}] of a saturated server's throughput{more}, "
        f"{each:.2f} µs of two CPUs a statement (target ≤ {target_percent:g} %)"
    )
    return Verdict(text, (high if times > 1 else middle) <= target_percent, doubt)
