# SPDX-License-Identifier: Apache-2.0
"""The typical ratio of pairs by signed ranks: SciPy's test, an interval that agrees with it, and disturbed windows."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from powerprof.statistics import intervals
from powerprof.statistics.ranks import FEWEST_PAIRS, TYPICAL_LEVEL, measure_typical_ratio
from tests.unit.statistics.coverage import false_words, power


@pytest.mark.parametrize("count", [7, 8, 12, 20, 45])
def test_the_p_value_is_scipys_and_the_interval_agrees(count: int) -> None:
    generator = np.random.default_rng(count)
    for _ in range(40):
        a, factors = generator.lognormal(0, 0.5, count), generator.lognormal(0.1, 0.2, count)
        found = measure_typical_ratio(a.tolist(), (a * factors).tolist())
        assert found is not None
        assert found.p_value == pytest.approx(stats.wilcoxon(np.log(factors), method="exact").pvalue, abs=1e-12)
        assert (found.low > 1 or found.high < 1) == (found.p_value <= 0.05)
        assert found.low <= found.ratio <= found.high
        turned = measure_typical_ratio((a * factors).tolist(), a.tolist())
        assert turned is not None and turned.ratio == pytest.approx(1 / found.ratio)
        # A larger standard error widens the interval and the p-value alike.
        wide = measure_typical_ratio(a.tolist(), (a * factors).tolist(), factor=1.4)
        if wide is not None:
            assert wide.low <= found.low and wide.p_value >= found.p_value
            assert (wide.low > 1 or wide.high < 1) == (wide.p_value <= 0.05)


def test_the_interval_holds_the_typical_ratio() -> None:
    generator, held = np.random.default_rng(4), 0
    for _ in range(400):
        a, b = (generator.lognormal(middle, 0.3, 10) for middle in (0.0, math.log(1.3)))
        found = measure_typical_ratio(a.tolist(), b.tolist())
        held += found is not None and found.low <= 1.3 <= found.high
    assert held >= 0.93 * 400


def test_equal_few_and_zero_pairs_decide_nothing() -> None:
    rising = [10.0 * 1.3**number for number in range(12)]
    assert measure_typical_ratio(rising[:6], rising[:6]) is None and FEWEST_PAIRS == 7
    assert measure_typical_ratio([0.0, *rising], [*rising, 1.0]) is None
    equal = measure_typical_ratio(rising, rising)
    assert equal is not None and (equal.ratio, equal.p_value) == (1.0, 1.0)
    # Readings that differ by one step are equal.
    counts = [4.0, 5.0] * 6
    assert measure_typical_ratio(counts, [each + 1 for each in counts], step=1.0) == equal
    apart = measure_typical_ratio(counts, [each + 2 for each in counts], step=1.0)
    assert apart is not None and apart.p_value < 0.001
    # Six of thirteen pairs without a difference are no typical difference.
    mixed = measure_typical_ratio([1.0] * 13, [1.0] * 6 + [1.1] * 7)
    assert mixed is not None and mixed.p_value > 1 - TYPICAL_LEVEL


def test_one_pair_of_twenty_against_all_others_does_not_hide_them() -> None:
    a, b = [100.0 + number for number in range(20)], [130.0 + number for number in range(20)]
    a[7] *= 100
    found = measure_typical_ratio(a, b)
    assert found is not None and found.p_value < 1 - TYPICAL_LEVEL
    assert 1.2 < found.low < found.ratio < found.high < 1.31


def test_more_pairs_with_disturbed_windows_find_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """One window in twenty takes ten times as long. By the mean alone, 20 pairs found 30 % in 38 % of comparisons."""
    # The bootstrap of the columns takes no part in verdicts, and most of the CPU time.
    monkeypatch.setattr(intervals, "_bca", lambda values, seed: None)
    kind = "one window in twenty disturbed"
    few, many = (power(kind, 1.3, count, 60, rows=6) for count in (6, 20))
    assert few <= 0.65 and many >= 0.75
    for count in (7, 20):
        assert false_words(kind, count, 100) <= 0.06
