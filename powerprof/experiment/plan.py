# SPDX-License-Identifier: Apache-2.0
"""Plan an experiment: check the options, calibrate the offered load, and order the blocks."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from typing import Literal

import msgspec

from powerprof.experiment import bench_data
from powerprof.experiment.bench import Bench
from powerprof.experiment.load import LoadFailed, LoadOrder
from powerprof.experiment.load_clients import start_load
from powerprof.experiment.options import ExperimentOptions
from powerprof.experiment.records import Design
from powerprof.measure.residency_sources import open_source
from powerprof.system.errors import PowerprofError, UsageError
from powerprof.system.next_steps import command_line
from powerprof.workloads.reading import Case

# At 40 % of the slower condition's capacity, queues are short (M/M/1: the mean wait is two thirds of the service time)
# and CPUs still idle between queries, when power is saved.
_UTILISATION = 0.4
# Above this share of the capacity, the queue of a Poisson stream grows for longer than a window.
_SATURATED = 0.85
# With fewer queries per window, chance dominates the result.
_FEWEST = 20


class Offer(msgspec.Struct, frozen=True):
    """The load offered to both conditions: a rate, or a number of queries; `notes` give the reasons."""

    design: Design
    rate_hz: float | None
    queries: int | None
    capacities_hz: tuple[float | None, ...]
    notes: tuple[str, ...]

    @property
    def easy_rate_hz(self) -> float | None:
        """The rate; for equal work a rate that all conditions can serve; None if unknown."""
        known = [capacity for capacity in self.capacities_hz if capacity]
        return self.rate_hz or (_UTILISATION * min(known) if known else None)


def calibrate(bench: Bench, cases: Sequence[Case], options: ExperimentOptions, say: Callable[[str], None]) -> Offer:
    """Run each condition at full speed for a moment and choose the load. Raise PowerprofError, UsageError."""
    kind = cases[0].load.kind
    if cases[0].load.is_silent or kind == "tpcc":
        return Offer("rate", None, None, (), ())
    if kind == "command":
        return _offer_of_command(cases, options)
    design = "work" if kind == "slap" else options.design
    capacities = []
    for case in cases:
        say(f"calibrating {case.name}")
        capacities.append(measure_capacity(bench, case, options.calibrate_s))
    return choose_offer(design, capacities, cases, options)


def measure_capacity(bench: Bench, case: Case, duration_s: float) -> float:
    """Return a condition's queries/s with all clients busy, by the server's count. Raise LoadFailed."""
    bench.enter(case)
    order = LoadOrder(duration_s=duration_s, seed=1)
    if case.load.kind == "slap":
        order = LoadOrder(queries=max(case.load.queries or 0, 20 * case.load.clients))
    with bench.connect(case) as control:
        before = bench_data.read_counters(control)
        running = start_load(case, bench.context(case), order)
        # Start the clock when the client is connected: Java takes seconds to start.
        start_s = time.monotonic()
        try:
            result = running.finish(max(120.0, 20 * duration_s))
        except BaseException:
            running.kill()
            raise
        elapsed_s = time.monotonic() - start_s
        moved = bench_data.subtract_counters(before, bench_data.read_counters(control))
        done = bench_data.count_queries(moved, transactions=case.load.transaction)
    bench.leave(case)
    done = max(done, result.queries or 0)
    if done == 0:
        raise LoadFailed(f"{case.qualified} finished no query in {elapsed_s:.1f} s")
    return done / elapsed_s


def choose_offer(
    design: Design | None, capacities: Sequence[float], cases: Sequence[Case], options: ExperimentOptions
) -> Offer:
    """Return the load that follows from the capacities. Raise PowerprofError if a requested rate is too high."""
    slowest = min(capacities)
    limit = min(case.load.maximum_rate_hz for case in cases)
    wanted = options.rate_hz or cases[0].load.rate_hz
    rate = wanted or min(limit, _UTILISATION * slowest)
    notes = []
    if design != "work":
        saturated = rate > _SATURATED * slowest
        sparse = rate < 1 or rate * options.window_s < _FEWEST
        if not saturated and not (sparse and wanted is None):
            return Offer("rate", _round_rate(rate), None, tuple(capacities), ())
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
    # The slower condition should take about one window.
    clients = max(case.load.clients for case in cases)
    queries = fixed or max(clients, int(slowest * options.window_s * 0.9))
    return Offer("work", None, queries, tuple(capacities), tuple(notes))


def offer_share(capacity_hz: float, percent: float) -> Offer:
    """Return a load of this share of the capacity."""
    return Offer("rate", _round_rate(percent / 100 * capacity_hz), None, (capacity_hz,), ())


def _round_rate(rate: float) -> float:
    """Round down to two digits and a whole number: sysbench takes whole rates only."""
    if rate < 10:
        return float(max(1, round(rate)))
    step = 10 ** (len(str(int(rate))) - 2)
    return float(int(rate // step * step))


def _offer_of_command(cases: Sequence[Case], options: ExperimentOptions) -> Offer:
    """Return the load of a program of the user, which gets the rate or the number of queries as arguments."""
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


Arm = Literal["a", "b"]


def round_order(points: int, rounds: int, seed: int) -> list[list[int]]:
    """Return the order of the points in each round.

    Two rounds make a block: an order shuffled by `seed`, then its reverse. Every point has the same mean position, so a
    linear drift cancels. An odd last round has a new order.
    """
    orders: list[list[int]] = []
    for number in range(rounds):
        if number % 2:
            orders.append(orders[-1][::-1])
            continue
        order = list(range(points))
        random.Random(1000 * seed + number).shuffle(order)  # noqa: S311 - an order, not a secret
        orders.append(order)
    return orders


def block_order(pairs: int, seed: int) -> list[tuple[Arm, Arm]]:
    """Return the order within each of `pairs` pairs.

    Two pairs make a block, ABBA or BAAB, within which a linear drift cancels. Both kinds of blocks are equally frequent
    (± one), shuffled by `seed`. An odd last pair takes either order.
    """
    if pairs < 1:
        raise ValueError("a comparison needs a pair")
    generator = random.Random(seed)  # noqa: S311 - an order of blocks, not a secret
    blocks = pairs // 2
    kinds: list[Arm] = ["a" if index % 2 == 0 else "b" for index in range(blocks)]
    if blocks % 2 and generator.random() < 0.5:
        kinds = ["b" if kind == "a" else "a" for kind in kinds]
    generator.shuffle(kinds)
    order: list[tuple[Arm, Arm]] = []
    for kind in kinds:
        order += [("a", "b"), ("b", "a")] if kind == "a" else [("b", "a"), ("a", "b")]
    if pairs % 2:
        order.append(("a", "b") if generator.random() < 0.5 else ("b", "a"))
    return order


def check_options(cases: Sequence[Case], options: ExperimentOptions) -> None:
    """Raise UsageError for options without effect on these loads, or an unusable residency source."""
    open_source(options.residency_source).close()
    for case in cases:
        for option, reason in _list_ignored_options(case, options):
            raise UsageError(f"{option} has no effect on {case.qualified}: {reason}", "leave it out")


def check_comparable(cases: Sequence[Case]) -> None:
    """Raise UsageError for conditions with different kinds of load."""
    first = cases[0]
    for other in cases[1:]:
        if other.load.kind != first.load.kind and not (other.load.is_silent and first.load.is_silent):
            raise UsageError(
                f"{first.qualified} and {other.qualified} have loads of different kinds, "
                f"{first.load.kind} and {other.load.kind}",
                f"name conditions of one workload: {command_line('workloads')}",
            )


def _list_ignored_options(case: Case, options: ExperimentOptions) -> list[tuple[str, str]]:
    """Return the options without effect on a load, each with the reason."""
    kind = case.load.kind
    design = [] if options.design is None or options.queries is not None else [f"--design {options.design}"]
    rate = [] if options.rate_hz is None else ["--rate"]
    queries = [] if options.queries is None else ["--queries"]
    if case.load.is_silent:
        return [(option, f"its clients send no statements (load {kind})") for option in (*design, *rate, *queries)]
    if kind == "tpcc":
        return [(option, "its clients run at full speed (load tpcc)") for option in (*design, *rate, *queries)]
    if kind == "slap":
        wrong = design if options.design == "rate" else []
        return [(option, "mysqlslap runs a number of queries at full speed") for option in (*wrong, *rate)]
    if kind == "command":
        words = " ".join(case.load.argv)
        unasked = [*design, *(rate if "{rate_hz}" not in words else []), *(queries if "{queries}" not in words else [])]
        return [(option, "its command does not use it") for option in unasked]
    return []
