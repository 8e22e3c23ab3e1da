# SPDX-License-Identifier: Apache-2.0
"""Differences that are pooled over several settings."""

from __future__ import annotations

import math
import random
from statistics import fmean, stdev

import pytest
from scipy import stats

from powerprof.statistics.pooling import pool_differences
from powerprof.statistics.scatter import effective_freedom, serial_factor


def t(level: float, freedom: float) -> float:
    return float(stats.t.ppf((1 + level) / 2, freedom))


def test_differences_are_pooled_over_the_settings() -> None:
    strata = [([10.2, 11.9, 9.1], [14.4, 16.3]), ([103.0, 96.0], [88.0, 71.0, 79.5, 80.1])]
    percents, variance, spread, sparse = [], 0.0, 0.0, 0.0
    for a, b in strata:
        centre = (fmean(a) + fmean(b)) / 2
        percents.append(100 * (fmean(b) - fmean(a)) / centre)
        for side in (a, b):
            part = (stdev(side) * serial_factor(side) * 100 / centre) ** 2 / len(side)
            variance += part
            spread += part**2 / (len(side) - 1)
            sparse += part**2 / effective_freedom(side)
    mean, error = fmean(percents), math.sqrt(variance) / 2
    found = pool_differences([*strata, ([], [4.0])], levels=0.0)
    assert found is not None and found.interval is not None
    assert (found.a_mean, found.b_mean) == pytest.approx(((10.4 + 99.5) / 2, (15.35 + 79.65) / 2))
    assert found.percent == pytest.approx(mean)
    reach = t(0.95, variance**2 / spread) * error
    assert (found.interval.low, found.interval.high) == pytest.approx((mean - reach, mean + reach))
    assert found.p_value == pytest.approx(2 * stats.t.sf(abs(mean) / error, variance**2 / sparse))
    turned = pool_differences([(b, a) for a, b in strata], levels=0.0)
    assert turned is not None and turned.interval is not None
    assert (turned.percent, turned.p_value) == pytest.approx((-mean, found.p_value))
    assert (turned.interval.low, turned.interval.high) == pytest.approx((reach * -1 - mean, reach - mean))
    # An unknown setting takes the interval away, a setting with 0 in both counts as no difference.
    single = pool_differences([*strata, ([3.0], [3.5, 4.0])], levels=0.0)
    assert single is not None and (single.interval, single.p_value) == (None, None)
    nought = pool_differences([strata[0], ([0.0, 0.0], [0.0, 0.0])], levels=0.0)
    assert nought is not None and nought.percent == pytest.approx(percents[0] / 2)


def test_settings_of_different_size_count_alike() -> None:
    found = pool_differences(
        [([10.0, 10.0, 10.0], [30.0, 30.0, 30.0]), ([1000.0, 1000.0], [3000.0, 3000.0])], levels=0.0
    )
    assert found is not None
    assert found.percent == pytest.approx(100.0)
    # No window scatters: they are known to the step that they show, 20 and 2000.
    assert found.interval is not None and found.interval.low < 100.0 < found.interval.high
    assert found.p_value is not None and 0.0 < found.p_value < 0.05


def test_a_change_from_zero_has_an_interval() -> None:
    found = pool_differences([([0.0, 0.0, 0.0], [5.0, 6.0, 7.0]), ([0.0, 0.0], [0.0, 0.0])], levels=0.0)
    assert found is not None
    assert found.percent == pytest.approx(100.0)  # 200 at one of two settings
    assert found.interval is not None
    assert found.interval.low > 0


def test_one_window_per_setting_gives_no_interval() -> None:
    found = pool_differences([([1.0], [2.0])], levels=0.0)
    assert found is not None
    assert found.interval is None
    assert found.p_value is None
    assert pool_differences([([], [1.0])], levels=0.0) is None


def test_the_pooled_interval_covers_the_truth() -> None:
    draw = random.Random(4)
    held = 0
    for _ in range(400):
        strata = [
            ([draw.gauss(level, level / 20) for _ in range(3)], [draw.gauss(1.2 * level, level / 20) for _ in range(3)])
            for level in (1.0, 10.0, 100.0)
        ]
        found = pool_differences(strata, levels=0.0)
        assert found is not None
        assert found.interval is not None
        held += found.interval.low <= 200 * 0.2 / 2.2 <= found.interval.high
    # 95 % of 400 are 380, less 3 standard deviations (13). Three windows in a row may be correlated: more here.
    assert held >= 367
