# SPDX-License-Identifier: Apache-2.0
"""Correlation of consecutive windows, and the resolution of readings."""

from __future__ import annotations

import math
from statistics import fmean, stdev

import pytest

from powerprof.statistics.scatter import effective_freedom, lag_of, rounding, serial_factor

WALK = [31.7, 33.2, 35.9, 36.4, 34.1, 38.8, 41.3, 40.2]
LEVEL = [52.3, 47.1, 55.6, 49.9, 61.4]


def longer(values: list[float]) -> float:
    """Return the variance of the mean of an autoregression relative to independent values, term by term."""
    count, centre = len(values), fmean(values)
    around = [value - centre for value in values]
    lag = sum(around[n] * around[n + 1] for n in range(count - 1)) / sum(each**2 for each in around)
    seen = (count * lag + 1) / (count - 3) + 0.75 / math.sqrt(count)
    coefficient = min(max(seen, (count * max(seen, 0) + 6 * 0.6) / (count + 6)), 0.95)
    return 1 + 2 * sum((1 - step / count) * coefficient**step for step in range(1, count))


@pytest.mark.parametrize("values", [WALK, [*LEVEL, 50.2, 58.3], [3.0, -1.0, 2.5, -0.5, 2.0, -1.5]])
def test_correlated_windows_follow_an_autoregression(values: list[float]) -> None:
    factor, count = longer(values), len(values)
    assert serial_factor(values) == pytest.approx(math.sqrt(factor * (count - 1) / (count - factor)))
    assert effective_freedom(values) == pytest.approx(min(count / factor, count - 1))
    assert serial_factor(values) > 1.05


def test_neighbours_are_correlated_over_their_own_mean() -> None:
    # Around 5: −3, 1, −1, 3. Products −3, −1, −3; squares 9, 1, 1, 9.
    assert lag_of([2.0, 6.0, 4.0, 8.0]) == pytest.approx(-7 / 20)
    assert math.isnan(lag_of([4.0, 4.0]))


def test_a_reading_is_anywhere_within_its_step() -> None:
    grid = [1.2 * (n + 0.5) / 1000 for n in range(1000)]
    assert rounding(1.2) == pytest.approx(stdev(grid), rel=1e-3)
