# SPDX-License-Identifier: Apache-2.0
"""What a bounded window costs a server at half load: windows with --max-cost and windows without tracing alternate.

Windows of ten seconds, because the bound holds over ten seconds: neighbours on a shared host change more from one to
the next than tracing does, so many blocks of four (off, on, on, off) are needed.
"""

from __future__ import annotations

import time

from powerprof.database.private_server import PrivateServer
from powerprof.measure.cpuidle import CpuidleReader
from powerprof.measure.window import run_window
from powerprof.system.targets import resolve
from powerprof.tracing.bpf.cost_meter import CostMeter, EventCounter
from powerprof.tracing.budget import Budget, base_of_cost_s
from powerprof.tracing.idle import WindowTracer, trace_stacks
from powerprof.tracing.slices import UseClock
from tools.bench import attribution, turns
from tools.bench.figures import Verdict, spread

WINDOW_S = 10.0
_LOAD = ("--threads=1", "--rate=12000")
# The largest increase of CPU time per query, by bound.
TARGETS_PERCENT = {0.01: 1.0, 0.02: 1.5}


class _Windows:
    """Bounded windows on a loaded server."""

    def __init__(self, server: PrivateServer) -> None:
        self._target = resolve([str(server.pid)])
        self.costs_percent: list[float] = []
        self.traced_percent: list[float] = []

    def trace(self, share: float) -> None:
        """Trace one window at most at this cost."""
        used = UseClock(self._target)
        with trace_stacks(self._target) as (tracer, looks), EventCounter() as events:
            meter = CostMeter(tracer.program, events.read)
            with WindowTracer(tracer) as opened:
                opened.bound_cost(Budget(share), WINDOW_S, meter, used.read_s, events)
                passed = run_window(WINDOW_S, meter, used, *opened.parts)
                cost = meter.collect()
                window = opened.collect(passed)
                looks.collect()
        whole_s = meter.process_s + (cost.whole_s if cost is not None else 0.0)
        self.costs_percent.append(100.0 * whole_s / base_of_cost_s(used.used_s, WINDOW_S))
        slices = window.sliced.slices if window.sliced is not None else []
        traced_s = sum(part.traced_s for part in slices) if slices else WINDOW_S
        self.traced_percent.append(100.0 * traced_s / WINDOW_S)


def _bounded(share: float, blocks: int, server: PrivateServer, reader: CpuidleReader) -> Verdict:
    windows = _Windows(server)
    bench = turns.Bench(server, turns.Unswitched(), reader)
    pairs = []
    with server.connect() as connection:
        for number in range(2 * blocks):
            found = {}
            for is_on in (number % 2 == 1, number % 2 == 0):
                before = bench.read(connection)
                if is_on:
                    windows.trace(share)
                else:
                    time.sleep(WINDOW_S)
                found[is_on] = bench.turn_between(before, bench.read(connection))
            pairs.append((found[False], found[True]))
    dearer = [turns.dearer_percent(off, on) for off, on in turns.blocks(pairs)]
    middle, low, high = turns.interval(dearer)
    rate = sum(off.queries_hz for off, _ in pairs) / len(pairs)
    print(f"bound {100 * share:g} %: {rate:,.0f} queries/s, {len(pairs)} pairs of {WINDOW_S:g} s")
    print(f"  CPU time more a query   {middle:+.2f} [{low:+.2f}, {high:+.2f}] %")
    print(f"  cost as powerprof counts it, % of the server's CPU time   {spread(windows.costs_percent)}")
    print(f"  traced, % of the window   {spread(windows.traced_percent)}")
    target = TARGETS_PERCENT[share]
    return Verdict(
        f"--max-cost {100 * share:g}% adds at most {high:.1f} % CPU time a query (target ≤ {target:g} %)",
        high <= target,
        "the interval is wider than twice the target: something else runs" if high - low > 2 * target else "",
    )


def run(quick: bool) -> list[Verdict]:
    """One thread that asks 12,000 times a second, with each bound."""
    with PrivateServer() as server, attribution.loading(server, _LOAD), CpuidleReader() as reader:
        return [_bounded(share, 1 if quick else 30, server, reader) for share in TARGETS_PERCENT]
