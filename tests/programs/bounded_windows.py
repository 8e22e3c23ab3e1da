# SPDX-License-Identifier: Apache-2.0
"""Simulated windows whose cost is bounded: loads, the clocks of the controller, and the spans that it must keep."""

from __future__ import annotations

import random
from bisect import bisect_left
from collections.abc import Callable

import msgspec
import numpy as np

from powerprof.tracing.budget import SPAN_S, Budget, Reading, SliceController

Load = Callable[[float], float]
_STEP_S = 0.005
# As measured: the cost of an exit, of attaching or detaching with the edges, and of a look; the CPU time of a query.
EXIT_S, SWITCH_S, LOOK_S, QUERY_S = 2.5e-6, 0.006, 1e-4, 45e-6
# The kernel wakes the reader after so many exits.
_WOKEN_AFTER = 1800


class Window(msgspec.Struct):
    """A simulated window. `moments`: time, cost, CPU time of the target, and whether the programs were attached."""

    controller: SliceController
    moments: list[tuple[float, float, float, bool]]


def simulate(load: Load, used: Load, budget: Budget, length_s: float, seed: int) -> Window:
    """Run a window with this rate of exits, and this use of CPUs by the target, at each moment."""
    controller = SliceController(budget, seed, length_s)
    at_s = events = used_s = spent_s = programs_s = unread = 0.0
    moments = []

    def pass_by(span_s: float) -> float:
        nonlocal at_s, events, used_s
        at_s, used_s = at_s + span_s, used_s + used(at_s) * span_s
        grown = load(at_s) * span_s
        events += grown
        return grown

    while at_s < length_s:
        grown = pass_by(_STEP_S)
        if controller.is_tracing:
            spent_s, programs_s, unread = spent_s + grown * EXIT_S, programs_s + grown * EXIT_S, unread + grown
        if at_s >= controller.next_look_s or unread >= _WOKEN_AFTER:
            unread, spent_s = 0.0, spent_s + LOOK_S
            if controller.look(Reading(at_s, spent_s, programs_s, used_s, events)) != controller.is_tracing:
                spent_s += SWITCH_S
                pass_by(_STEP_S)
                controller.switched(Reading(at_s, spent_s, programs_s, used_s, events))
        moments.append((at_s, spent_s, used_s, controller.is_tracing))
    return Window(controller, moments)


def find_worst_span(window: Window, budget: Budget) -> float:
    """Return the largest cost of any ten seconds, in budgets of these ten seconds."""
    times, worst = [moment[0] for moment in window.moments], 0.0
    for at_s, spent_s, used_s, _ in window.moments:
        if at_s >= SPAN_S:
            _, first_spent_s, first_used_s, _ = window.moments[bisect_left(times, at_s - SPAN_S)]
            worst = max(worst, (spent_s - first_spent_s) / budget.allowed_s(used_s - first_used_s, SPAN_S))
    return worst


def make_jumping_load(rng: random.Random, length_s: float) -> tuple[Load, Load]:
    """Return the exits of a load that jumps from nearly 0 to up to 20,000 a second and back, and its use of CPUs."""
    jumps_s, at_s, is_first_high = [], 0.0, rng.random() < 0.5
    while at_s < length_s:
        at_s += rng.choice([0.3, 1, 3, 8, 20]) * rng.uniform(0.5, 1.5)
        jumps_s.append(at_s)
    high_hz = rng.uniform(5_000, 20_000)

    def load(at_s: float) -> float:
        return high_hz if (bisect_left(jumps_s, at_s) + is_first_high) % 2 else 150.0

    return load, lambda at_s: 0.01 + load(at_s) * QUERY_S


def make_programs(seed: int, length_s: float) -> dict[str, np.ndarray]:
    """Return the moments of the wakings of known programs: periodic, in bursts, rare, in one storm, growing."""
    rng, draws = random.Random(seed), np.random.default_rng(seed)

    def periodic(period_s: float) -> np.ndarray:
        return np.arange(rng.random() * period_s, length_s, period_s)

    def independent(rate_hz: float, from_s: float = 0.0, to_s: float = length_s) -> np.ndarray:
        span_s = to_s - from_s
        return from_s + draws.random(draws.poisson(rate_hz * span_s)) * span_s

    def bursts(period_s: float, count: int, span_s: float) -> np.ndarray:
        times = np.concatenate([at_s + draws.random(count) * span_s for at_s in periodic(period_s)])
        return times[times < length_s]

    from_s = rng.uniform(0, 0.7 * length_s)
    programs = {
        "server": independent(rng.uniform(2000, 12_000)),
        "half of each second": bursts(1.0, rng.randrange(20, 1000), 0.5),
        "at a slice-like rate": periodic(rng.choice([0.25, 0.3, 0.5, 1.0, 2.0, 3.0])),
        "timer": periodic(1 / 97),
        "bursts": bursts(1.9, 300, 0.1),
        "rare bursts": bursts(7.3, 50, 0.05),
        "rare": independent(rng.choice([0.1, 0.3, 1, 3])),
        "others": independent(30),
        "storm": independent(rng.uniform(1000, 10_000), from_s, min(length_s, from_s + rng.uniform(0.5, length_s / 3))),
        "growing": length_s * np.sqrt(draws.random(20_000)),
    }
    return {name: np.sort(times) for name, times in programs.items()}


def load_of(programs: dict[str, np.ndarray], length_s: float) -> Load:
    """Return the rate of all wakings at each moment."""
    bin_s = 0.05
    counts, _ = np.histogram(np.concatenate(list(programs.values())), np.arange(0, length_s + 1, bin_s))
    rates = (counts / bin_s).tolist()
    return lambda at_s: float(rates[min(len(rates) - 1, int(at_s / bin_s))])
