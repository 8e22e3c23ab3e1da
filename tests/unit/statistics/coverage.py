# SPDX-License-Identifier: Apache-2.0
"""Simulated experiments whose truth is known: how often the intervals hold it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from powerprof.experiment.claims import claim_of
from powerprof.experiment.plan import block_order, round_order
from powerprof.experiment.records import Metric
from powerprof.experiment.sweep_record import compare_metrics
from powerprof.experiment.verdict import judge_metrics, match_figures
from powerprof.model.records import Figures
from powerprof.statistics.intervals import Interval, mean_interval, welch_interval
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


def _pairs(generator: Generator, count: int) -> tuple[Interval | None, float]:
    a, b = (generator.normal(10, 1, count) for _ in range(2))
    return compare_pairs(a.tolist(), b.tolist(), seed=1).difference_interval, 0.0


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
        return compare_pairs(a.tolist(), b.tolist(), seed=1).ratio_interval, math.exp((sigma_b**2 - sigma_a**2) / 2)

    return trial


def _gamma_side(generator: Generator, count: int) -> tuple[Interval | None, float]:
    return mean_interval(generator.exponential(1, count).tolist(), seed=1), 1.0


TRIALS: dict[str, tuple[Trial, tuple[int, ...]]] = {
    "pairs, normal": (_pairs, (3, 6, 10, 20)),
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
    """The share of trials whose interval holds the truth, among those with an interval; at least half have one."""
    trial, generator = TRIALS[name][0], np.random.default_rng(seed)
    results = [trial(generator, count) for _ in range(trials)]
    known = [(found, truth) for found, truth in results if found is not None]
    assert 2 * len(known) >= trials, f"{name}: {trials - len(known)} of {trials} intervals are unknown"
    return sum(not found.excludes(truth) for found, truth in known) / len(known)


def _figures(name: str, values: Values) -> Figures:
    return Figures(name=name, unit="1", kind="measured", values=values.tolist())


def _independent(draw: Callable[[Generator, int], Values]) -> Callable[[Generator, int], tuple[Values, Values]]:
    return lambda generator, count: (draw(generator, count), draw(generator, count))


def _unequal(generator: Generator, count: int) -> tuple[Values, Values]:
    return generator.normal(100, 1, count), generator.normal(100, 10, count)


def _in_order(host: Callable[[Generator, int], Values]) -> Callable[[Generator, int], tuple[Values, Values]]:
    """Values of a host of about 100 that changes over the run, as both conditions meet it in their order."""

    def draw(generator: Generator, count: int) -> tuple[Values, Values]:
        order = block_order(count, int(generator.integers(1_000_000)))
        values = 100 + host(generator, 2 * count) + generator.normal(0, 1, 2 * count)
        places = {arm: [2 * pair + arms.index(arm) for pair, arms in enumerate(order)] for arm in ("a", "b")}
        return values[places["a"]], values[places["b"]]

    return draw


def _correlated_sides(coefficient: float) -> Callable[[Generator, int], tuple[Values, Values]]:
    return _independent(lambda generator, count: 100 + 5 * correlated(generator, count, coefficient))


def _with_levels(levels: float) -> Callable[[Generator, int], tuple[Values, Values]]:
    """Each run has a level of its own, whose deviation is `levels` times that of a window."""
    return _independent(
        lambda generator, count: 100 + 2 * (levels * generator.normal() + generator.normal(0, 1, count))
    )


def _two_modes(generator: Generator, count: int, share: float, scatter: float) -> Values:
    """Windows with or without a disturbance of 20 %."""
    return (100 + 20.0 * (generator.random(count) < share)) * (1 + scatter * generator.normal(0, 1, count))


def _mixed(generator: Generator, count: int) -> tuple[Values, Values]:
    scatter = math.exp(generator.uniform(math.log(3e-4), math.log(0.3)))
    return generator.lognormal(0, scatter, count), generator.lognormal(0, scatter, count)


def _equal_means(generator: Generator, count: int) -> tuple[Values, Values]:
    return generator.lognormal(-0.02, 0.2, count), generator.lognormal(-0.5, 1.0, count)


def _disturbed_windows(generator: Generator, count: int) -> Values:
    """One window in twenty takes ten times as long."""
    return generator.normal(100, 5, count) * np.where(generator.random(count) < 0.05, 10.0, 1.0)


def _disturbed(generator: Generator, count: int) -> Values:
    return generator.normal(100, 3, count) + 50 * (generator.random(count) < 0.1)


def _uneven_counts(generator: Generator, count: int, mean: float = 3) -> Values:
    return generator.poisson(mean, count) / generator.normal(1, 0.002, count)


# Figures of a condition and of itself, by how they come out; whether in pairs, and whether apart as well.
ROWS: dict[str, tuple[Callable[[Generator, int], tuple[Values, Values]], tuple[bool, ...]]] = {
    "normal": (_independent(lambda generator, count: generator.normal(100, 5, count)), (True, False)),
    "lognormal 0.8": (_independent(lambda generator, count: generator.lognormal(0, 0.8, count)), (True, False)),
    "counts of 2": (_independent(lambda generator, count: generator.poisson(2, count).astype(float)), (True, False)),
    "counts of 20": (_independent(lambda generator, count: generator.poisson(20, count).astype(float)), (True, False)),
    "counts of 3, unequal windows": (_independent(_uneven_counts), (True, False)),
    "heavy counts": (_independent(lambda generator, count: generator.lognormal(0, 1.0, count) // 0.1), (True, False)),
    "Student's t, 3": (_independent(lambda generator, count: 100 + 4 * generator.standard_t(3, count)), (True, False)),
    "two modes, 3:7": (_independent(lambda generator, count: _two_modes(generator, count, 0.3, 0.02)), (True, False)),
    "two modes, 1:1": (_independent(lambda generator, count: _two_modes(generator, count, 0.5, 0.005)), (True, False)),
    "B scatters 10 times as much": (_unequal, (True, False)),
    "gamma 0.3": (_independent(lambda generator, count: generator.gamma(0.3, 1.0, count)), (True,)),
    "counts of 8, unequal windows": (
        _independent(lambda generator, count: _uneven_counts(generator, count, 8)),
        (True,),
    ),
    "three modes": (_independent(lambda generator, count: 100 + 15.0 * generator.integers(0, 3, count)), (True,)),
    "steps of 2 %": (_independent(lambda generator, count: 2 * np.round(generator.normal(50, 0.8, count))), (True,)),
    "near zero": (_independent(lambda generator, count: generator.normal(0.5, 1, count)), (True,)),
    "rows scatter by 0.03 to 30 %": (_mixed, (True,)),
    "lognormal 0.2 and 1.0, equal means": (_equal_means, (True,)),
    "one pair in ten disturbed": (_independent(_disturbed), (True,)),
    "one window in twenty disturbed": (_independent(_disturbed_windows), (True,)),
    "a sine over the run": (_in_order(lambda generator, count: 20 * np.sin(np.arange(count) / 2)), (True,)),
    "a drift of 20 %": (_in_order(lambda generator, count: np.linspace(0, 20, count)), (True,)),
    "a step of 20 %": (_in_order(lambda generator, count: 20.0 * (np.arange(count) > count // 3)), (True,)),
    "host AR(0.5)": (_in_order(lambda generator, count: 5 * correlated(generator, count, 0.5)), (True,)),
    "host AR(0.8)": (_in_order(lambda generator, count: 5 * correlated(generator, count, 0.8)), (True,)),
    "host AR(0.9)": (_in_order(lambda generator, count: 5 * correlated(generator, count, 0.9)), (True,)),
    "sides AR(0.5)": (_correlated_sides(0.5), (True, False)),
    "sides AR(0.8)": (_correlated_sides(0.8), (True, False)),
    "sides AR(0.9)": (_correlated_sides(0.9), (True, False)),
    "runs, level 1": (_with_levels(1.0), (False,)),
    "runs, level 2": (_with_levels(2.0), (False,)),
    "runs, level 4": (_with_levels(4.0), (False,)),
}


def _report(
    kind: str | Sequence[str], generator: Generator, count: int, effects: Sequence[float], *, paired: bool = True
) -> list[Metric]:
    """Judge a report whose row n has B multiplied by the n-th effect; the first row is the headline.

    `kind` is that of all rows, or of each.
    """
    kinds = [kind] * len(effects) if isinstance(kind, str) else kind
    rows = [ROWS[each][0](generator, count) for each in kinds]
    a = [_figures(f"row{number}", row[0]) for number, row in enumerate(rows)]
    b = [_figures(f"row{number}", row[1] * effects[number]) for number, row in enumerate(rows)]
    return judge_metrics(match_figures(a, b), "row0", 1, paired=paired, typical=True)


def false_words(kind: str | Sequence[str], count: int, trials: int, *, paired: bool = True, seed: int = 7) -> float:
    """The share of reports with a false word anywhere, headline included: 20 rows of a condition and itself."""
    generator, wrong = np.random.default_rng(seed), 0
    is_typical = kind not in _TYPICALLY_DIFFERENT
    for _ in range(trials):
        judged = _report(kind, generator, count, [1.0] * 20, paired=paired)
        claims = [claim_of(metric) for metric in judged]
        wrong += any(each.verdict != "inconclusive" and (is_typical or not each.is_typical) for each in claims)
    return wrong / trials


def power(
    kind: str, effect: float, count: int, trials: int, *, headline: bool = True, rows: int = 20, seed: int = 5
) -> float:
    """The share of reports that find an effect in the headline, or in the second row; the other rows have none."""
    generator, right = np.random.default_rng(seed), 0
    effects = [1.0] * rows
    effects[0 if headline else 1] = effect
    for _ in range(trials):
        metric = next(
            each for each in _report(kind, generator, count, effects) if each.name == ("row0" if headline else "row1")
        )
        right += claim_of(metric).verdict == ("b_higher" if effect > 1 else "b_lower")
    return right / trials


def report_coverage(
    kind: str, truth: float | None, count: int, trials: int, *, paired: bool = True, seed: int = 3
) -> float:
    """The share of intervals in reports of 20 rows that hold the truth: of column A, or of the difference (None)."""
    generator, held, known = np.random.default_rng(seed), 0, 0
    for _ in range(trials):
        for metric in _report(kind, generator, count, [1.0] * 20, paired=paired):
            ends = metric.difference.ci95 if truth is None else metric.a.ci95
            known += ends is not None
            held += ends is not None and ends[0] <= (truth or 0.0) <= ends[1]
    return held / known if known else 1.0


# Kinds whose noise both conditions share or that is independent: a false word in at most 2.5 % of reports.
SHARED = [kind for kind, (_, ways) in ROWS.items() if True in ways and not kind.startswith("sides ")]
# Equal means whose typical pairs differ: `typically` is right.
_TYPICALLY_DIFFERENT = ("lognormal 0.2 and 1.0, equal means",)
# The noise of the rows of which column A is checked, with its mean.
COLUMNS = {
    "normal": 100.0,
    "lognormal 0.8": math.exp(0.32),
    "counts of 2": 2.0,
    "two modes, 3:7": 106.0,
    "two modes, 1:1": 110.0,
    "host AR(0.5)": 100.0,
    "host AR(0.8)": 100.0,
    "host AR(0.9)": 100.0,
}
# The noise with which the share of found effects must grow with every further pair.
POWERS = (
    "normal",
    "one window in twenty disturbed",
    "a drift of 20 %",
    "host AR(0.8)",
    "Student's t, 3",
    "lognormal 0.8",
)
EFFECTS = (1.05, 1.1, 1.3, 8.0)
COUNTS = (3, 4, 5, 6, 8, 10, 20)


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
        sure = [pair.differ for pair in compare_metrics({"queries_hz": measured})]
        told += (all if every else any)(sure)
    return told / trials


def starts_told_apart(
    repetitions: int, trials: int, *, starts: int, points: int = 2, apart: float = 0.0, judged: int | None = None
) -> float:
    """The share of sweeps over a start-up setting with a false (or right) difference between any two points.

    Starts of one setting scatter by 2 %, windows of one start by 1 %. `starts` is 1, or that of each repetition;
    `judged` is another number of starts by which the points are judged.
    """
    generator, told = np.random.default_rng(repetitions), 0
    for _ in range(trials):
        levels = generator.normal(1, 0.02, (points, 1 if starts == 1 else repetitions))
        values = 1000 * (levels + apart * np.arange(points)[:, None] + generator.normal(0, 0.01, (points, repetitions)))
        measured: dict[Value, dict[int, float]] = {
            point: dict(enumerate(of)) for point, of in enumerate(values.tolist())
        }
        told += any(
            pair.differ for pair in compare_metrics({"queries_hz": measured}, starts if judged is None else judged)
        )
    return told / trials
