# SPDX-License-Identifier: Apache-2.0
"""Simulated experiments whose truth is known: how often the intervals hold it."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from powerprof.experiment.plan import block_order, round_order
from powerprof.experiment.sweep_rounds import compare_metrics
from powerprof.experiment.verdict import judge_saved
from powerprof.model.records import Figures
from powerprof.statistics.intervals import Interval, mean_interval, ratio_interval, welch_interval
from powerprof.statistics.verdicts import compare_pairs
from powerprof.workloads.definition import Value

Generator = np.random.Generator
Values = np.ndarray[Any, Any]
Trial = Callable[[Generator, int], tuple[Interval | None, float]]


def correlated(generator: Generator, count: int, coefficient: float) -> Values:
    """A stationary autoregression of order 1 with a deviation of 1."""
    noise = generator.normal(0, 1, count)
    values = np.empty(count)
    values[0] = noise[0]
    for index in range(1, count):
        values[index] = coefficient * values[index - 1] + math.sqrt(1 - coefficient**2) * noise[index]
    return values


def _pairs(coefficient: float) -> Trial:
    def trial(generator: Generator, count: int) -> tuple[Interval | None, float]:
        a, b = (10 + correlated(generator, count, coefficient) for _ in range(2))
        return compare_pairs(a.tolist(), b.tolist(), seed=1).difference_interval, 0.0

    return trial


def _apart(coefficient: float, spread: float = 1.0) -> Trial:
    def trial(generator: Generator, count: int) -> tuple[Interval | None, float]:
        a, b = (correlated(generator, count, coefficient) for _ in range(2))
        return welch_interval(a.tolist(), (spread * b).tolist()), 0.0

    return trial


def _side(sigma: float) -> Trial:
    def trial(generator: Generator, count: int) -> tuple[Interval | None, float]:
        return mean_interval(generator.lognormal(0, sigma, count).tolist(), seed=1), math.exp(sigma**2 / 2)

    return trial


def _ratio(sigma_a: float, sigma_b: float) -> Trial:
    def trial(generator: Generator, count: int) -> tuple[Interval | None, float]:
        a, b = generator.lognormal(0, sigma_a, count), generator.lognormal(0, sigma_b, count)
        return ratio_interval(a.tolist(), b.tolist(), seed=1), math.exp((sigma_b**2 - sigma_a**2) / 2)

    return trial


def _gamma_side(generator: Generator, count: int) -> tuple[Interval | None, float]:
    return mean_interval(generator.exponential(1, count).tolist(), seed=1), 1.0


TRIALS: dict[str, tuple[Trial, tuple[int, ...]]] = {
    "pairs, normal": (_pairs(0.0), (3, 6, 10, 20)),
    "pairs, AR(0.5)": (_pairs(0.5), (6, 8, 10, 20)),
    "apart, normal": (_apart(0.0), (3, 5, 6, 10)),
    "apart, B scatters 10 times as much": (_apart(0.0, 10.0), (3, 5, 6, 10)),
    "apart, AR(0.8)": (_apart(0.8), (3, 4, 5, 6, 10, 20)),
    "side, lognormal 0.8": (_side(0.8), (3, 5, 6, 10, 20)),
    "side, lognormal 1.0": (_side(1.0), (3, 6, 10)),
    "side, exponential": (_gamma_side, (3, 6, 10)),
    "ratio, lognormal 0.3": (_ratio(0.3, 0.3), (3, 6, 10)),
    "ratio, lognormal 0.8": (_ratio(0.8, 0.8), (3, 5, 6, 10, 20)),
    "ratio, lognormal 0.2 and 1.0": (_ratio(0.2, 1.0), (3, 5, 6, 10, 20)),
}


def coverage(name: str, count: int, trials: int, seed: int = 11) -> float:
    """The share of trials whose interval holds the truth."""
    trial, generator = TRIALS[name][0], np.random.default_rng(seed)
    held = 0
    for _ in range(trials):
        found, truth = trial(generator, count)
        held += found is not None and not found.excludes(truth)
    return held / trials


def _figures(name: str, values: Values) -> Figures:
    return Figures(name=name, unit="1", kind="measured", values=values.tolist())


def _independent(draw: Callable[[Generator, int], Values]) -> Callable[[Generator, int], tuple[Values, Values]]:
    return lambda generator, count: (draw(generator, count), draw(generator, count))


def _unequal(generator: Generator, count: int) -> tuple[Values, Values]:
    return generator.normal(100, 1, count), generator.normal(100, 10, count)


def _drifting(generator: Generator, count: int) -> tuple[Values, Values]:
    """A host that changes by a fifth over the run, as both conditions meet it in their order."""
    order = block_order(count, int(generator.integers(1_000_000)))
    host = 100 * (1 + np.linspace(0, 0.2, 2 * count)) + generator.normal(0, 1, 2 * count)
    places = {arm: [2 * pair + arms.index(arm) for pair, arms in enumerate(order)] for arm in ("a", "b")}
    return host[places["a"]], host[places["b"]]


def _correlated_sides(generator: Generator, count: int) -> tuple[Values, Values]:
    return 100 + correlated(generator, count, 0.8), 100 + correlated(generator, count, 0.8)


# Figures of a condition and of itself, by how they come out; whether in pairs, and whether apart as well.
ROWS: dict[str, tuple[Callable[[Generator, int], tuple[Values, Values]], tuple[bool, ...]]] = {
    "normal": (_independent(lambda generator, count: generator.normal(100, 5, count)), (True, False)),
    "lognormal 0.8": (_independent(lambda generator, count: generator.lognormal(0, 0.8, count)), (True, False)),
    "counts of 2": (_independent(lambda generator, count: generator.poisson(2, count).astype(float)), (True, False)),
    "counts of 20": (_independent(lambda generator, count: generator.poisson(20, count).astype(float)), (True, False)),
    "B scatters 10 times as much": (_unequal, (True, False)),
    "a drift of 20 %": (_drifting, (True,)),
    "AR(0.8)": (_correlated_sides, (False,)),
}


def false_words(kind: str, count: int, trials: int, *, paired: bool = True, seed: int = 7) -> float:
    """The share of reports with a false word anywhere, headline included: 20 rows of a condition and itself."""
    generator, wrong = np.random.default_rng(seed), 0
    for _ in range(trials):
        rows = [ROWS[kind][0](generator, count) for _ in range(20)]
        a, b = ([_figures(f"row{number}", row[side]) for number, row in enumerate(rows)] for side in (0, 1))
        judged = judge_saved(a, b, "row0", 1, paired=paired)
        wrong += any(metric.verdict != "inconclusive" for metric in judged)
    return wrong / trials


def _walk(generator: Generator, count: int) -> Values:
    return np.cumsum(generator.normal(0, 0.2 / math.sqrt(count), count))


# How the host changes over the windows of a sweep, as a share of each figure.
DRIFTS: dict[str, Callable[[Generator, int], Values]] = {
    "none": lambda generator, count: np.zeros(count),
    "linear": lambda generator, count: np.linspace(0, 0.2, count),
    "step": lambda generator, count: 0.2 * (np.arange(count) > generator.integers(0, count)),
    "walk": _walk,
    "correlated": lambda generator, count: 0.05 * correlated(generator, count, 0.8),
}


def told_apart(
    drift: str,
    rounds: int,
    trials: int,
    *,
    scatters: tuple[float, ...] = (0.01,) * 8,
    apart: float = 0.0,
    every: bool = False,
    seed: int = 13,
) -> float:
    """The share of simulated sweeps in which any two points are told apart (`every`: all of them)."""
    generator, points, told = np.random.default_rng(seed), len(scatters), 0
    for trial in range(trials):
        host, at = DRIFTS[drift](generator, points * rounds), 0
        measured: dict[Value, dict[int, float]] = {point: {} for point in range(points)}
        for number, order in enumerate(round_order(points, rounds, trial)):
            for point in order:
                own = 1 + apart * point + scatters[point] * generator.normal()
                measured[point][number] = 1000 * own * (1 + host[at])
                at += 1
        sure = [pair.differ for pair in compare_metrics({"queries_hz": measured}, in_rounds=True)]
        told += (all if every else any)(sure)
    return told / trials
