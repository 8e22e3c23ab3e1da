# SPDX-License-Identifier: Apache-2.0
"""Verdicts, controls, families and points in rounds."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest

from powerprof.statistics.intervals import Interval
from powerprof.statistics.verdicts import (
    baseline_drift,
    block_trend,
    compare_pairs,
    compare_points,
    compare_unpaired,
    judge_control,
    survivors,
    verdict_of,
    which_differ,
)
from tests.unit.statistics.coverage import DRIFTS, told_apart


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [(0.1, 0.2, "b_higher"), (-0.2, -0.1, "b_lower"), (-0.1, 0.1, "inconclusive"), (0.0, 0.1, "inconclusive")],
)
def test_the_verdict_is_where_the_interval_lies(low: float, high: float, verdict: str) -> None:
    assert verdict_of(Interval(low, high, "test")) == verdict


def test_no_interval_is_inconclusive() -> None:
    assert verdict_of(None) == "inconclusive"


def _noisy(mean: float, spread: float, count: int, seed: int) -> list[float]:
    generator = random.Random(seed)
    return [generator.gauss(mean, spread) for _ in range(count)]


def test_a_large_difference_is_found() -> None:
    result = compare_pairs(_noisy(1.0, 0.01, 12, 1), _noisy(48.0, 0.5, 12, 2), seed=1)
    assert result.verdict == "b_higher"
    assert result.ratio == pytest.approx(48, rel=0.01)
    assert result.ratio_interval is not None
    assert result.ratio_interval.low < 48 < result.ratio_interval.high
    assert result.percent == pytest.approx(4700, rel=0.01)


def test_three_pairs_show_a_tenfold_effect_though_the_windows_are_noisy() -> None:
    result = compare_pairs([0.22, 0.31, 0.25], [2.1, 3.4, 2.6], seed=1)
    assert result.verdict == "b_higher"
    assert result.difference_interval is not None
    assert result.difference_interval.method == "student-log"
    assert result.difference_interval.low < result.difference < result.difference_interval.high
    below_zero = compare_pairs([-0.1, 0.2, 0.1], [0.3, 0.1, 0.2], seed=1)
    assert below_zero.difference_interval is not None
    assert below_zero.difference_interval.method == "student"


def test_the_minimum_detectable_effect_follows_the_formula() -> None:
    a, b = [10.0] * 10, [10.0, 11.0] * 5
    # s of the logarithms = log(1.1) × 0.52705, t(0.9925, 9) + t(0.8, 9) = 2.99820 + 0.88340
    expected = 100 * math.expm1((2.99820 + 0.88340) * math.log(1.1) * 0.527046 / math.sqrt(10))
    assert compare_pairs(a, b, seed=1).minimum_detectable_percent == pytest.approx(expected, rel=1e-4)
    assert compare_pairs([0.0] * 4, [1.0] * 4, seed=1).minimum_detectable_percent is None


def test_pairs_need_partners() -> None:
    with pytest.raises(ValueError, match="as many values"):
        compare_pairs([1.0, 2.0], [1.0], seed=1)


def test_unpaired_runs_are_judged_by_welch() -> None:
    same = compare_unpaired(_noisy(5, 0.2, 10, 1), _noisy(5, 0.4, 12, 2), seed=1)
    other = compare_unpaired(_noisy(5, 0.2, 10, 1), _noisy(12, 0.4, 12, 2), seed=1)
    assert same.verdict == "inconclusive"
    assert other.verdict == "b_higher"
    assert other.difference_interval is not None
    assert other.difference_interval.method == "welch"


def test_a_sound_control_has_a_resolution() -> None:
    control = judge_control(compare_pairs(_noisy(5, 0.05, 10, 3), _noisy(5, 0.05, 10, 4), seed=1))
    assert control.sound
    assert control.half_width_percent is not None
    assert 0.3 < control.half_width_percent < 2.5


def test_a_control_that_differs_is_unsound() -> None:
    control = judge_control(compare_pairs(_noisy(5, 0.05, 10, 3), _noisy(6, 0.05, 10, 4), seed=1))
    assert not control.sound
    assert control.difference_percent is not None and 15 < control.difference_percent < 25


def test_drift_below_the_floor_passes_and_above_it_fails() -> None:
    small = baseline_drift([0.40, 0.42, 0.41], [0.60, 0.62, 0.61], None)
    large = baseline_drift([0.40, 0.42, 0.41], [4.40, 4.42, 4.41], None)
    assert small is not None and not small.failed
    assert small.points == pytest.approx(0.20)
    assert large is not None and large.failed


def test_drift_is_weighed_against_the_effect() -> None:
    found = baseline_drift([0.40, 0.42, 0.41], [4.40, 4.42, 4.41], effect_points=30.0)
    assert found is not None and not found.failed


def test_a_missing_baseline_has_no_drift() -> None:
    assert baseline_drift([], [1.0], None) is None


def test_a_trend_over_the_blocks_is_found() -> None:
    rising = block_trend([1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 1.7])
    noise = block_trend([1.0, 1.3, 0.9, 1.2, 1.1, 1.0, 1.25, 0.95])
    assert rising is not None and rising.present
    assert rising.tau == pytest.approx(1.0)
    assert noise is not None and not noise.present
    assert block_trend([1.0] * 10) is None


def test_rows_are_claimed_together_by_holms_steps() -> None:
    # 0.005/4, 0.005/3, 0.005/2 and 0.005: the third is too large, and what comes after it goes with it.
    assert survivors([0.0012, 0.0016, 0.0026, 0.0049]) == [True, True, False, False]
    assert survivors([0.0049]) == [True]
    assert survivors([None, 1e-9, None]) == [False, True, False]
    assert survivors([]) == []


def test_a_condition_compared_with_itself_has_few_false_verdicts() -> None:
    """Twenty rows of which each by itself errs at 5 %: at least one does in half of the comparisons. Together, 1 %."""
    generator = random.Random(11)
    false_words = unadjusted = 0
    for _ in range(200):
        shared = [generator.gauss(0, 1) for _ in range(4)]
        rows = [
            compare_pairs([100.0] * 4, [100 + one / 2 + generator.gauss(0, 0.9) for one in shared], seed=1)
            for _ in range(20)
        ]
        kept = survivors([row.p_value for row in rows])
        unadjusted += any(row.verdict != "inconclusive" for row in rows)
        false_words += any(keeps and row.verdict != "inconclusive" for keeps, row in zip(kept, rows, strict=True))
    # Binomial, 200 trials at 1 %: more than 7 come once in 400 such tests.
    assert false_words <= 7
    assert unadjusted > 50


def test_the_p_value_goes_with_the_interval() -> None:
    """Both are Student's over the same differences; the interval may hold more (the lognormals')."""
    for seed in range(40):
        a, b = _noisy(1.0, 0.05, 5, seed), _noisy(1.04, 0.05, 5, seed + 100)
        result = compare_pairs(a, b, seed=1)
        assert result.p_value is not None
        assert result.verdict == "inconclusive" or result.p_value < 0.05


@pytest.mark.parametrize("rounds", [3, 5])
@pytest.mark.parametrize("drift", DRIFTS)
def test_eight_equal_points_rarely_differ(drift: str, rounds: int) -> None:
    """At most 5 % of runs; 150 of them are worth ± 1.8 points. The soak has 2,000 of each."""
    assert told_apart(drift, rounds, 150) <= 0.05 + 0.04


def test_equal_points_with_unequal_scatter_rarely_differ() -> None:
    assert told_apart("walk", 5, 150, scatters=(0.01,) * 4 + (0.1,) * 4) <= 0.05 + 0.04


def test_different_points_are_found_within_a_larger_drift() -> None:
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


def test_values_with_zeros_are_compared_by_their_difference() -> None:
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


def test_consecutive_points_need_larger_differences() -> None:
    generator = np.random.default_rng(5)
    points = [dict(enumerate(generator.normal(mean, 0.1, 3).tolist())) for mean in (10.0, 10.8)]
    (in_rounds,), (apart,) = (compare_points(points, in_rounds=each) for each in (True, False))
    assert in_rounds.p_value is not None and apart.p_value is not None
    assert in_rounds.p_value < apart.p_value
