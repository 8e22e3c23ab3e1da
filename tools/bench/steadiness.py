# SPDX-License-Identifier: Apache-2.0
"""How steady is C0 over windows of a machine that idles, with and without BPF?

The counters of a CPU move only when it leaves idle: plain differences scatter by ±3 points where 0.5 is true.
"""

from __future__ import annotations

import statistics

from powerprof.measure.cpuidle import CpuidleReader
from powerprof.measure.sampling import WindowMeter
from powerprof.system.errors import CapabilityError
from powerprof.tracing.idle import WindowTracer, trace_exits
from tools.bench.figures import Verdict

TARGET_POINTS = 0.3
IDLE_C0_PERCENT = 3.0


def plain(seconds: float, count: int) -> list[float]:
    """What plain differences of the counters would say: for comparison."""
    import time

    found = []
    with CpuidleReader() as reader:
        for _ in range(count):
            before = reader.snapshot().cpus
            start = time.monotonic_ns()
            time.sleep(seconds)
            after = reader.snapshot().cpus
            wall_us = (time.monotonic_ns() - start) / 1e3 * len(after)
            idle_us = sum(
                new - old
                for cpu in after
                for new, old, state in zip(after[cpu].time_us, before[cpu].time_us, after[cpu].states, strict=True)
                if not state.polling
            )
            found.append(100.0 * (1.0 - idle_us / wall_us))
    return found


def resolved(seconds: float, count: int) -> list[float]:
    """C0 as powerprof measures it."""
    with WindowMeter() as meter:
        return [meter.measure(seconds).c0_percent or 0.0 for _ in range(count)]


def traced(seconds: float, count: int) -> list[float]:
    """C0 over the same kind of window, from the traced idle periods."""
    found = []
    with trace_exits() as tracer, WindowTracer(tracer) as opened:
        for _ in range(count):
            window = opened.measure(seconds)
            idle_ns = wall_ns = 0
            for cpu, edge in window.edges.items():
                idle_ns += int(window.trace.totals[cpu]["idle_ns"].sum())
                wall_ns += edge.end_ns - edge.start_ns
            found.append(100.0 * (1.0 - idle_ns / wall_ns))
    return found


def run(quick: bool) -> Verdict:
    """The table: ten windows of six seconds each way."""
    count, seconds = (4, 1.0) if quick else (10, 6.0)
    ways = {"without BPF": resolved, "with BPF": traced, "plain differences": plain}
    values: dict[str, list[float]] = {}
    for name, way in ways.items():
        try:
            values[name] = way(seconds, count)
        except CapabilityError as error:
            print(f"  {name}: {error.message}")
    print(f"C0 over {count} windows of {seconds:g} s, %{'mean':>10}{'stddev':>9}{'lowest':>9}{'highest':>9}")
    for name, found in values.items():
        figures = (statistics.mean(found), statistics.stdev(found), min(found), max(found))
        print(f"  {name:<28}{''.join(f'{figure:9.2f}' for figure in figures)}")
    judged = [found for name, found in values.items() if name != "plain differences"]
    worst = max(statistics.stdev(found) for found in judged)
    met = worst <= TARGET_POINTS and min(map(min, judged)) >= 0
    busy = max(statistics.mean(found) for found in judged)
    return Verdict(
        f"C0 scatters by {worst:.2f} points at most (target ≤ {TARGET_POINTS:g}, never negative)",
        met,
        f"the machine is not idle: {busy:.1f} % C0" if busy > IDLE_C0_PERCENT else "",
    )
