# SPDX-License-Identifier: Apache-2.0
"""Points that are measured in rounds or one after the other."""

from __future__ import annotations

import pytest

from powerprof.statistics.points import compare_points, which_differ
from tests.unit.statistics.coverage import DRIFTS, starts_told_apart, told_apart


@pytest.mark.parametrize("rounds", [3, 5])
@pytest.mark.parametrize("drift", DRIFTS)
def test_eight_equal_points_rarely_differ(drift: str, rounds: int) -> None:
    """At most 2.5 % of runs; 150 of them are worth ± 1.3 points. The soak has 2,000 of each."""
    assert told_apart(drift, rounds, 150) <= 0.025 + 0.03


def test_equal_points_with_unequal_scatter_rarely_differ() -> None:
    assert told_apart("walk", 5, 150, scatters=(0.01,) * 4 + (0.1,) * 4) <= 0.025 + 0.03


@pytest.mark.parametrize("repetitions", [3, 5, 6, 10, 20])
def test_starts_that_differ_are_no_difference_of_points(repetitions: int) -> None:
    """Rounds of one start do not show how far starts differ: judged by their own scatter, 20 rounds are half false."""
    for starts in (1, repetitions):
        assert starts_told_apart(repetitions, 300, starts=starts) <= 0.025 + 0.02
        assert starts_told_apart(repetitions, 30, starts=starts, apart=2.0) >= 0.9
    if repetitions == 20:
        assert starts_told_apart(repetitions, 100, starts=1, judged=0) > 0.3


def test_different_points_are_found_within_a_larger_drift() -> None:
    """Steps of 10 % from point to point, known to 1 %, while the host changes by 20 %."""
    assert told_apart("linear", 5, 100, apart=0.10, every=True) >= 0.9


def test_a_pair_is_compared_over_the_rounds_that_both_have() -> None:
    a, b = {0: 10.0, 1: 20.0, 2: 30.0, 3: 40.0}, {1: 22.1, 2: 33.0, 3: 43.9, 4: 1.0}
    # The third shows that values are read in steps of 0.01.
    pair, *_ = compare_points([a, b, {0: 10.01}])
    assert (pair.first, pair.second) == (0, 1)
    # 22.1 / 20, 33 / 30 and 43.9 / 40 are 1.105, 1.1 and 1.0975.
    assert pair.percent == pytest.approx(10.08, abs=0.01)
    assert pair.interval is not None and pair.interval.low < 10 < pair.interval.high < 11.1
    assert which_differ([pair.p_value]) == [True]
    (few,) = compare_points([a, {0: 1.0, 1: 2.0}])
    assert (few.percent, few.interval, few.p_value) == (None, None, None)
    assert which_differ([few.p_value]) == [False]


def test_values_with_zeros_are_compared_by_their_difference() -> None:
    (pair,) = compare_points([dict(enumerate([0.0, 1.0, 2.0])), dict(enumerate([5.0, 6.1, 6.9]))])
    assert pair.percent == pytest.approx(500.0)
    (none,) = compare_points([dict.fromkeys(range(3), 0.0), dict(enumerate([5.0, 6.1, 6.9]))])
    assert none.percent is None and none.p_value is not None


def test_equal_readings_are_no_certainty() -> None:
    """Three times 4 and three times 5, in steps of 1."""
    (pair,) = compare_points([dict.fromkeys(range(3), 4.0), dict.fromkeys(range(3), 5.0)])
    assert pair.p_value is not None and pair.p_value > 0.01
    (same,) = compare_points([dict.fromkeys(range(3), 4.0)] * 2)
    assert same.p_value == 1.0


def test_points_differ_in_percent_of_the_first() -> None:
    a, b = {0: 10.0, 1: 12.0, 2: 14.0, 3: 9.0}, {1: 30.0, 2: 21.0, 3: 27.0, 4: 1.0}
    (pair,) = compare_points([a, b])
    assert pair.percent == pytest.approx(100 * ((30 / 12 * 21 / 14 * 27 / 9) ** (1 / 3) - 1))
    (turned,) = compare_points([b, a])
    assert turned.p_value == pytest.approx(pair.p_value)
    assert turned.percent is not None and 1 + turned.percent / 100 == pytest.approx(1 / (1 + (pair.percent or 0) / 100))


def test_every_two_points_are_compared() -> None:
    points = [{n: level + 0.1 * n for n in range(3)} for level in (1.0, 2.0, 4.0)]
    found = compare_points(points)
    assert [(pair.first, pair.second) for pair in found] == [(0, 1), (0, 2), (1, 2)]
    percents = [pair.percent or 0.0 for pair in found]
    assert (1 + percents[0] / 100) * (1 + percents[2] / 100) == pytest.approx(1 + percents[1] / 100)
