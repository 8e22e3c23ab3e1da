# SPDX-License-Identifier: Apache-2.0
"""Finding out how much both conditions can do, so that they are asked for the same."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from powerprof.errors import PowerprofError, UsageError
from powerprof.experiment.bench import plans
from powerprof.experiment.bench.servers import Bench
from powerprof.experiment.loads import LoadFailed, LoadOrder, start_load
from powerprof.experiment.options import ExperimentOptions
from powerprof.experiment.records import Design
from powerprof.workloads.reading import Case

# At 40 % of what the slower one can do, queues are short (M/M/1: the mean wait is two thirds of the service
# time) and
# the CPUs still idle in between, which is where power is saved.
_UTILISATION = 0.4
# Above this share of the capacity a Poisson stream keeps a queue that grows for longer than a window.
_SATURATED = 0.85
# Fewer queries in a window than this say more about chance than about the condition.
_FEWEST = 20


@dataclass(frozen=True)
class Offer:
    """What both conditions are asked for: a rate, or a number of queries; `notes` say why."""

    design: Design
    rate_hz: float | None
    queries: int | None
    capacities_hz: tuple[float | None, ...]
    notes: tuple[str, ...]

    @property
    def easy_rate_hz(self) -> float | None:
        """The rate, or for equal work one that all conditions keep up with; None where neither is known."""
        known = [capacity for capacity in self.capacities_hz if capacity]
        return self.rate_hz or (_UTILISATION * min(known) if known else None)


def calibrate(bench: Bench, cases: Sequence[Case], options: ExperimentOptions, say: Callable[[str], None]) -> Offer:
    """Run each condition as fast as it goes for a moment and choose. Raises PowerprofError, UsageError."""
    kind = cases[0].load.kind
    if cases[0].load.is_silent or kind == "tpcc":
        return Offer("rate", None, None, (), ())
    if kind == "command":
        return _of_command(cases, options)
    design = "work" if kind == "slap" else options.design
    capacities = []
    for case in cases:
        say(f"calibrating {case.name}")
        capacities.append(capacity(bench, case, options.calibrate_s))
    return choose(design, capacities, cases, options)


def capacity(bench: Bench, case: Case, duration_s: float) -> float:
    """Queries/s of a condition with all its clients busy, by the server's count. Raises LoadFailed."""
    bench.enter(case)
    order = LoadOrder(duration_s=duration_s, seed=1)
    if case.load.kind == "slap":
        order = LoadOrder(queries=max(case.load.queries or 0, 20 * case.load.clients))
    with bench.connect(case) as control:
        before = plans.counters(control)
        running = start_load(case, bench.context(case), order)
        # A client that takes seconds to come up (Java) is waited for until it is connected.
        start_s = time.monotonic()
        try:
            result = running.finish(max(120.0, 20 * duration_s))
        except BaseException:
            running.kill()
            raise
        elapsed_s = time.monotonic() - start_s
        moved = plans.between(before, plans.counters(control))
        done = plans.queries_in(moved, transactions=case.load.transaction)
    bench.leave(case)
    done = max(done, result.queries or 0)
    if done == 0:
        raise LoadFailed(f"{case.qualified} finished no query in {elapsed_s:.1f} s")
    return done / elapsed_s


def choose(
    design: Design | None, capacities: Sequence[float], cases: Sequence[Case], options: ExperimentOptions
) -> Offer:
    """Pure: the offer that follows from the capacities."""
    slowest = min(capacities)
    limit = min(case.load.maximum_rate_hz for case in cases)
    wanted = options.rate_hz or cases[0].load.rate_hz
    rate = wanted or min(limit, _UTILISATION * slowest)
    notes = []
    if design != "work":
        saturated = rate > _SATURATED * slowest
        sparse = rate < 1 or rate * options.window_s < _FEWEST
        if not saturated and not (sparse and wanted is None):
            return Offer("rate", _rounded(rate), None, tuple(capacities), ())
        slow = cases[capacities.index(slowest)].name
        notes.append(
            f"{slow} is saturated: it does {slowest:.3g} queries/s, {rate:.3g} were to be offered; "
            "equal work is measured instead"
            if saturated
            else f"{slow} does only {slowest:.3g} queries/s: equal work is measured instead of an equal rate"
        )
        if design == "rate":
            raise PowerprofError(notes[0].replace("; equal work is measured instead", ""), "use --design work")
    fixed = options.queries or cases[0].load.queries
    # The slower one is to take about a window.
    clients = max(case.load.clients for case in cases)
    queries = fixed or max(clients, int(slowest * options.window_s * 0.9))
    return Offer("work", None, queries, tuple(capacities), tuple(notes))


def _rounded(rate: float) -> float:
    """Two digits, a whole number: sysbench takes no other."""
    if rate < 10:
        return float(max(1, round(rate)))
    step = 10 ** (len(str(int(rate))) - 2)
    return float(int(rate // step * step))


def _of_command(cases: Sequence[Case], options: ExperimentOptions) -> Offer:
    """A program of the user's knows best; its arguments get the rate or the number of queries where they ask."""
    words = " ".join(cases[0].load.argv)
    rate = options.rate_hz or cases[0].load.rate_hz
    queries = options.queries or cases[0].load.queries
    if "{rate_hz}" in words and rate is None:
        raise UsageError(f"{cases[0].qualified} needs a rate", "set --rate, or rate_hz in its [load]")
    if "{queries}" in words and queries is None:
        raise UsageError(f"{cases[0].qualified} needs a number of queries", "set queries in its [load]")
    if "{duration_s}" in words:
        return Offer("rate", rate, None, (), ())
    return Offer("work", rate, queries, (), ())
