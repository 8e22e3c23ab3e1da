# SPDX-License-Identifier: Apache-2.0
"""Points measured in rounds: equal ones are not told apart, whatever drifts, and different ones are."""

from __future__ import annotations

import numpy as np
import pytest

from powerprof.statistics.verdicts import compare_points, which_differ
from tests.unit.statistics.coverage import DRIFTS, told_apart


@pytest.mark.parametrize("rounds", [3, 5])
@pytest.mark.parametrize("drift", DRIFTS)
def test_eight_equal_points_are_told_apart_in_few_runs(drift: str, rounds: int) -> None:
    """At most 5 % of runs; 150 of them are worth ± 1.8 points. The soak has 2,000 of each."""
    assert told_apart(drift, rounds, 150) <= 0.05 + 0.04


def test_equal_points_of_which_some_scatter_ten_times_as_much_are_not_told_apart() -> None:
    assert told_apart("walk", 5, 150, scatters=(0.01,) * 4 + (0.1,) * 4) <= 0.05 + 0.04


def test_points_that_differ_are_told_apart_in_a_drift_that_is_larger() -> None:
    """Steps of 10 % from point to point, known to 1 %, while the host changes by 20 %."""
    assert told_apart("linear", 5, 100, apart=0.10, every=True) >= 0.9


def test_a_pair_is_compared_over_the_rounds_that_both_have() -> None:
    a, b = {0: 10.0, 1: 20.0, 2: 30.0, 3: 40.0}, {1: 22.1, 2: 33.0, 3: 43.9, 4: 1.0}
    # The third shows that values are read in steps of 0.01.
    pair, *_ = compare_points([a, b, {0: 10.01}], in_rounds=True)
    assert (pair.first, pair.second) == (0, 1)
    # 22.1 / 20, 33 / 30 and 43.9 / 40 are 1.105, 1.1 and 1.0975.
    assert pair.percent == pytest.approx(10.08, abs=0.01)
    assert pair.interval is not None and pair.interval.low < 10 < pair.interval.high < 11.1
    assert which_differ([pair.p_value]) == [True]
    (few,) = compare_points([a, {0: 1.0, 1: 2.0}], in_rounds=True)
    assert (few.percent, few.interval, few.p_value) == (None, None, None)
    assert which_differ([few.p_value]) == [False]


def test_values_that_may_be_nought_are_compared_by_their_difference() -> None:
    (pair,) = compare_points([dict(enumerate([0.0, 1.0, 2.0])), dict(enumerate([5.0, 6.1, 6.9]))], in_rounds=True)
    assert pair.percent == pytest.approx(500.0)
    (none,) = compare_points([dict.fromkeys(range(3), 0.0), dict(enumerate([5.0, 6.1, 6.9]))], in_rounds=True)
    assert none.percent is None and none.p_value is not None


def test_equal_readings_are_no_certainty() -> None:
    """Three times 4 and three times 5, in steps of 1."""
    (pair,) = compare_points([dict.fromkeys(range(3), 4.0), dict.fromkeys(range(3), 5.0)], in_rounds=True)
    assert pair.p_value is not None and pair.p_value > 0.01
    (same,) = compare_points([dict.fromkeys(range(3), 4.0)] * 2, in_rounds=True)
    assert same.p_value == 1.0


def test_points_that_were_measured_one_after_the_other_need_more() -> None:
    generator = np.random.default_rng(5)
    points = [dict(enumerate(generator.normal(mean, 0.1, 3).tolist())) for mean in (10.0, 10.8)]
    (in_rounds,), (apart,) = (compare_points(points, in_rounds=each) for each in (True, False))
    assert in_rounds.p_value is not None and apart.p_value is not None
    assert in_rounds.p_value < apart.p_value
