# SPDX-License-Identifier: Apache-2.0
"""What `powerprof queries` costs a server that answers as fast as it can: probes on and off in turns (`turns`)."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from powerprof.database.server import PrivateServer
from powerprof.sources.cpuidle import CpuidleReader
from powerprof.tracing.queries import QueryTracer
from tests.bench import attribution, turns
from tests.bench.figures import Verdict

LOSS_PERCENT = 3.0
_BUSY_HZ = 40_000


class Probes:
    """The tracer's probe and tracepoints, all of them or none."""

    def __init__(self, tracer: QueryTracer) -> None:
        self._tracer = tracer

    def attach(self) -> None:
        self._tracer.program.attach()
        self._tracer.attach()
        self._tracer.begin(timed=False)

    def detach(self) -> None:
        self._tracer.detach()
        self._tracer.program.detach()

    def count_run_time(self) -> None:
        self._tracer.program.count_run_time()

    def run_time_s(self) -> float | None:
        return self._tracer.program.run_time_s()


@contextmanager
def _bench(load: Sequence[str]) -> Iterator[tuple[turns.Bench, float]]:
    with PrivateServer() as server, attribution.loading(server, load):
        assert server.pid is not None
        began = time.monotonic()
        with QueryTracer(server.pid) as tracer, CpuidleReader() as reader:
            yield turns.Bench(server, Probes(tracer), reader), time.monotonic() - began


def run(quick: bool) -> Verdict:
    """Sixteen threads that ask as fast as they can."""
    pairs = turns.loaded("statements", ["--threads=16", "--rate=0"], 10 if quick else 200, _bench)
    lost = [100.0 * (1.0 - on.queries_hz / off.queries_hz) for off, on in pairs]
    middle, low, high = turns.interval(lost)
    rate = statistics.median(off.queries_hz for off, _ in pairs)
    doubt = f"the load is too low: {rate:,.0f} queries/s, {_BUSY_HZ:,} are asked for" if rate < _BUSY_HZ else ""
    if high - low > 2 * LOSS_PERCENT:
        doubt = f"the interval is wider than the target ({high - low:.1f} points): something else runs"
    each = 2e6 * middle / 100 / rate
    text = (
        f"telling statements apart costs {middle:.1f} % [{low:.1f}, {high:.1f}] of a saturated server's throughput, "
        f"{each:.1f} µs of two CPUs a statement (target ≤ {LOSS_PERCENT:g} %)"
    )
    return Verdict(text, middle <= LOSS_PERCENT, doubt)
