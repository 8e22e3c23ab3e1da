# SPDX-License-Identifier: Apache-2.0
"""Simulated experiments whose truth is known: how often the intervals hold it."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from powerprof.experiment.judge.verdict import judge_saved
from powerprof.experiment.records import Difference, Metric, Side
from powerprof.statistics import Interval, compare_pairs, mean_interval, ratio_interval, welch_interval

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
    "pairs, AR(0.5)": (_pairs(0.5), (10, 20)),
    "apart, normal": (_apart(0.0), (3, 6, 10)),
    "apart, B scatters 10 times as much": (_apart(0.0, 10.0), (3, 6, 10)),
    "apart, AR(0.8)": (_apart(0.8), (3, 6, 10, 20)),
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


def _metric(name: str, values: Values) -> Metric:
    return Metric(
        name=name,
        unit="1",
        kind="measured",
        a=Side(mean=float(values.mean()), ci95=None, values=values.tolist()),
        b=Side(mean=None, ci95=None),
        difference=Difference(b_minus_a=None, ci95=None, percent=None),
        verdict="inconclusive",
        minimum_detectable_percent=None,
    )


ROWS: dict[str, Callable[[Generator, int], Values]] = {
    "normal": lambda generator, count: generator.normal(100, 5, count),
    "lognormal 0.8": lambda generator, count: generator.lognormal(0, 0.8, count),
    "counts of 2": lambda generator, count: generator.poisson(2, count).astype(float),
    "counts of 20": lambda generator, count: generator.poisson(20, count).astype(float),
}


def false_words(kind: str, count: int, trials: int, *, paired: bool = True, seed: int = 7) -> float:
    """The share of reports with a false word anywhere, headline included: 20 rows of a condition and itself."""
    generator, wrong = np.random.default_rng(seed), 0
    for _ in range(trials):
        a, b = ([_metric(f"row{row}", ROWS[kind](generator, count)) for row in range(20)] for _ in range(2))
        judged = judge_saved(a, b, "row0", 1, paired=paired)
        wrong += any(metric.verdict != "inconclusive" for metric in judged)
    return wrong / trials
