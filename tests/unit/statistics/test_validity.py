# SPDX-License-Identifier: Apache-2.0
"""The A/A control, and drift of the baseline and over the blocks."""

from __future__ import annotations

import random

import pytest
from msgspec.structs import replace
from scipy import stats

from powerprof.statistics.intervals import welch_error
from powerprof.statistics.validity import baseline_drift, block_trend, judge_control
from powerprof.statistics.verdicts import compare_pairs


def _noisy(mean: float, spread: float, count: int, seed: int) -> list[float]:
    generator = random.Random(seed)
    return [generator.gauss(mean, spread) for _ in range(count)]


def t(level: float, freedom: float) -> float:
    return float(stats.t.ppf((1 + level) / 2, freedom))


def test_a_control_that_differs_is_unsound() -> None:
    control = judge_control(compare_pairs(_noisy(5, 0.05, 10, 3), _noisy(6, 0.05, 10, 4), seed=1))
    assert not control.sound
    assert control.difference_percent is not None and 15 < control.difference_percent < 25


def test_a_missing_baseline_has_no_drift() -> None:
    assert baseline_drift([], [1.0], None) is None


def test_a_trend_over_the_blocks_is_found() -> None:
    rising = block_trend([1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 1.7])
    noise = block_trend([1.0, 1.3, 0.9, 1.2, 1.1, 1.0, 1.25, 0.95])
    assert rising is not None and rising.present
    assert rising.tau == pytest.approx(1.0)
    assert noise is not None and not noise.present
    assert block_trend([1.0] * 10) is None


def test_a_control_is_in_percent_of_a() -> None:
    found = compare_pairs([4.0, 4.2, 3.9, 4.1], [4.3, 4.1, 4.4, 3.8], seed=1, step=0.1)
    control, ends = judge_control(found), found.difference_interval
    assert ends is not None
    assert control.difference_percent == pytest.approx(100 * (4.15 - 4.05) / 4.05)
    assert control.half_width_percent == pytest.approx(100 * (ends.high - ends.low) / 2 / 4.05)
    assert control.sound
    wider = judge_control(replace(found, a_mean=-8.1, b_mean=1.0))
    assert wider.difference_percent == pytest.approx(100 * 0.1 / 8.1)
    none = judge_control(replace(found, difference_interval=None))
    assert (none.sound, none.difference_percent, none.half_width_percent) == (False, None, None)


def test_a_drift_counts_in_both_directions() -> None:
    before, after = [4.40, 4.42, 4.41], [2.31, 2.29, 2.33]
    found, error = baseline_drift(before, after, None), welch_error(before, after)[0]
    assert found is not None and found.failed
    assert found.points == pytest.approx(-2.1)
    assert (found.low, found.high) == pytest.approx((-2.1 - t(0.95, 2) * error, -2.1 + t(0.95, 2) * error))
    # A quarter of the effect, up or down: 2.1 is less than that of 9 and more than that of 8 points.
    for effect, fails in ((9.0, False), (-9.0, False), (8.0, True), (-8.0, True)):
        weighed = baseline_drift(before, after, effect)
        assert weighed is not None and weighed.failed is fails
    # A single window has no interval, and fails by its size.
    for last, fails in ((2.0, True), (6.0, True), (4.6, False)):
        single = baseline_drift([4.2], [last], None)
        assert single is not None and (single.low, single.high, single.failed) == (None, None, fails)
