# SPDX-License-Identifier: Apache-2.0
"""Simulated samples of the functions of one server: kinds of noise, without and with a function of 3 times the time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from powerprof.attribution.profile import FunctionShare
from powerprof.experiment.plan import block_order
from powerprof.experiment.records import Arm
from powerprof.experiment.verdict import SampledWindow, compare_functions
from tests.unit.statistics.coverage import Generator, Values, correlated

# Samples of every function (columns) in every window (rows) in the order of time.
Draw = Callable[[Generator, int], "Values"]


def _means(generator: Generator, functions: int = 250) -> Values:
    return generator.lognormal(1.0, 1.2, functions)


def _poisson(generator: Generator, rates: Values, windows: int) -> Values:
    return generator.poisson(np.broadcast_to(rates, (windows, rates.shape[-1])))


def _few(generator: Generator, windows: int) -> Values:
    return _poisson(generator, generator.uniform(0.5, 4, 250), windows)


def _typical(generator: Generator, windows: int) -> Values:
    return _poisson(generator, _means(generator), windows)


def _many(generator: Generator, windows: int) -> Values:
    return _poisson(generator, _means(generator, 500), windows)


def _overdispersed(generator: Generator, windows: int) -> Values:
    return _poisson(generator, 10 * _means(generator) * generator.gamma(1, 1, (windows, 250)), windows)


def _one_window(generator: Generator, windows: int) -> Values:
    counts = np.zeros((windows, 250), dtype=int)
    counts[generator.integers(0, windows, 250), np.arange(250)] = generator.integers(10, 400, 250)
    return counts


def _compiled_again(generator: Generator, windows: int) -> Values:
    """A compiler in time gives each of 50 functions one of 5 names in each window."""
    counts = np.zeros((windows, 250), dtype=int)
    names = 5 * np.arange(50) + generator.integers(0, 5, (windows, 50))
    np.put_along_axis(counts, names, _poisson(generator, 20 * _means(generator, 50), windows), axis=1)
    return counts


def _two_names(generator: Generator, windows: int) -> Values:
    """A function is renamed for good at a random window, as after a recompilation."""
    renamed = np.arange(windows)[:, None] >= generator.integers(1, windows, 125)
    counts = _poisson(generator, 20 * _means(generator, 125), windows)
    return np.hstack([counts * renamed, counts * ~renamed])


def _second_half(generator: Generator, windows: int) -> Values:
    late = np.arange(windows)[:, None] >= np.where(generator.random(250) < 0.3, windows // 2, 0)
    return _poisson(generator, 10 * _means(generator), windows) * late


def _rounded(generator: Generator, windows: int) -> Values:
    """A function takes a fixed time: its samples are that time, rounded up or down."""
    return np.floor(_means(generator) * 3 + generator.random((windows, 250))).astype(int)


def _constant(generator: Generator, windows: int) -> Values:
    """Half of the functions have the same samples in all windows but one in ten."""
    counts = np.broadcast_to(generator.integers(1, 30, 250), (windows, 250)).copy()
    moved = (generator.random((windows, 250)) < 0.1) | (np.arange(250) % 2 == 0)
    return counts + moved * generator.integers(-1, 2, (windows, 250))


def _drift(generator: Generator, windows: int) -> Values:
    return _poisson(generator, 30 * _means(generator) * np.linspace(1, 2, windows)[:, None], windows)


def _host(generator: Generator, windows: int) -> Values:
    host = np.exp(0.3 * correlated(generator, windows, 0.8))
    return _poisson(generator, 30 * _means(generator) * host[:, None], windows)


def _mostly_zero(generator: Generator, windows: int) -> Values:
    return _poisson(generator, 10 * _means(generator), windows) * (generator.random((windows, 250)) < 0.2)


def _one_to_three(generator: Generator, windows: int) -> Values:
    return generator.integers(1, 4, (windows, 250))


def _modes(generator: Generator, windows: int) -> Values:
    """Each function is in one of two modes in each window: 1 and 4 times its time."""
    return _poisson(generator, 20 * _means(generator) * generator.choice([1, 4], (windows, 250)), windows)


def _common_modes(generator: Generator, windows: int) -> Values:
    """The server is in one of two modes in each window, with other functions in each."""
    mode = generator.choice([0, 1], (windows, 1))
    factor = np.where(np.arange(250) % 2 == mode, 3.0, 1.0)
    return _poisson(generator, 20 * _means(generator) * factor, windows)


def _heavy(generator: Generator, windows: int) -> Values:
    return _poisson(generator, 5 * _means(generator) * (generator.pareto(1.5, (windows, 250)) + 0.2), windows)


def _plentiful(generator: Generator, windows: int) -> Values:
    """Long windows: the noise of the server is above that of samples, 10 %."""
    return _poisson(generator, 1000 * _means(generator) * generator.lognormal(0, 0.1, (windows, 250)), windows)


def _groups(generator: Generator, windows: int) -> Values:
    """Ten groups of functions whose work is or is not in a window: a flush, a merge."""
    works = (generator.random((windows, 10)) < 0.5)[:, np.arange(250) % 10]
    return _poisson(generator, 10 * _means(generator) * (0.1 + works), windows)


KINDS: Mapping[str, Draw] = {
    "Poisson": _typical,
    "Poisson, 0.5 to 4 samples": _few,
    "500 functions": _many,
    "deviation as large as the mean": _overdispersed,
    "in one window only": _one_window,
    "compiled again in each window": _compiled_again,
    "renamed once": _two_names,
    "from the second half on": _second_half,
    "a fixed time, rounded": _rounded,
    "mostly constant": _constant,
    "a drift to 2 times": _drift,
    "host AR(0.8), 30 %": _host,
    "zero in most windows": _mostly_zero,
    "1 to 3 samples": _one_to_three,
    "two modes of each function": _modes,
    "two modes of the server": _common_modes,
    "heavy tails": _heavy,
    "thousands of samples, 10 %": _plentiful,
    "work in half of the windows": _groups,
}


@dataclass(frozen=True)
class Tables:
    """The share of tables with a false function, and of those in which the function of 3 times the time is found."""

    false: float
    found: float


def judge_tables(
    kind: str, pairs: int, tables: int, *, effect: float = 1.0, seed: int = 4, spread_s: float = 0.003
) -> Tables:
    """Judge tables of functions. The last function has about 100 samples in A and `effect` times as many in B."""
    generator, false, found = np.random.default_rng(seed), 0, 0
    for table in range(tables):
        counts = KINDS[kind](generator, 2 * pairs)
        arms = [arm for pair in block_order(pairs, table) for arm in pair]
        windows = []
        for arm, row in zip(arms, counts.tolist(), strict=True):
            own = int(generator.poisson(100 * (effect if arm == "b" else 1.0)))
            windows.append(_window(arm, 2.0 + abs(float(generator.normal(0, spread_s))), [*row, own]))
        changes = compare_functions(windows, 1).functions
        words = {change.function for change in changes if change.verdict != "inconclusive"}
        is_found = f"f{counts.shape[1]}" in words
        found += is_found and effect != 1.0
        false += len(words) > (is_found and effect != 1.0)
    return Tables(false / tables, found / tables)


def _window(arm: Arm, length_s: float, counts: list[int]) -> SampledWindow:
    shares = [
        FunctionShare(
            function=f"f{number}",
            module="server",
            kernel=False,
            self_count=samples,
            self_percent=0.0,
            low_percent=None,
            high_percent=None,
            self_ms=10.0 * samples,
            total_count=samples,
            total_percent=0.0,
        )
        for number, samples in enumerate(counts)
        if samples > 0
    ]
    return SampledWindow(arm, length_s, shares)
