# SPDX-License-Identifier: Apache-2.0
"""Intervals hold the truth, and reports of nothing say nothing: the quick part of tests/soak/test_coverage.py."""

from __future__ import annotations

import numpy as np
import pytest

from powerprof.statistics import intervals
from powerprof.statistics.intervals import UNKNOWN_FACTORS, effective_freedom, pool_differences, serial_factor
from powerprof.statistics.verdicts import compare_pairs, compare_unpaired, p_of_two, primary_verdict, survivors
from tests.unit.statistics.coverage import correlated, coverage, false_words


@pytest.fixture(autouse=True)
def few_resamples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(intervals, "RESAMPLES", 199)


@pytest.mark.parametrize(
    ("name", "count", "at_least"),
    [
        ("pairs, AR(0.5)", 10, 0.90),
        ("apart, AR(0.8)", 3, 0.92),
        ("apart, AR(0.8)", 4, 0.92),
        ("apart, AR(0.8)", 5, 0.92),
        ("apart, AR(0.8)", 10, 0.92),
        ("apart, B scatters 10 times as much", 3, 0.93),
        ("side, lognormal 1.0", 3, 0.92),
        ("side, lognormal 0.8", 10, 0.93),
        ("ratio, lognormal 0.2 and 1.0", 5, 0.91),
    ],
)
def test_the_interval_holds_the_truth(name: str, count: int, at_least: float) -> None:
    """The soak's table has 2,000 trials each and asks for 93 %; so few trials are worth ± 1.5 points."""
    assert coverage(name, count, 300) >= at_least


@pytest.mark.parametrize(("kind", "count"), [("counts of 2", 3), ("normal", 3)])
def test_equal_conditions_have_few_false_verdicts(kind: str, count: int) -> None:
    assert false_words(kind, count, 100) <= 0.06


@pytest.mark.parametrize("count", [4, 5, 10])
def test_correlated_windows_have_few_false_verdicts(count: int) -> None:
    """The p-values alone decide, and 300 reports are worth ± 1 point: 9 % at 5 windows and 13 % at 10 before."""
    generator, wrong = np.random.default_rng(count), 0
    for _ in range(300):
        rows = [[correlated(generator, count, 0.8).tolist() for _ in "ab"] for _ in range(20)]
        first, *others = (p_of_two(a, b) for a, b in rows)
        wrong += primary_verdict("b_lower", first) != "inconclusive" or any(survivors(others))
    assert wrong / 300 <= 0.06


def test_correlated_windows_are_worth_fewer_degrees_of_freedom() -> None:
    assert effective_freedom([1.0, 2.0, 4.0, 3.0]) == 3.0
    assert effective_freedom([1.0, -1.0] * 5) > 3 * effective_freedom([float(n) for n in range(10)])
    assert effective_freedom([float(n) for n in range(10)]) < 2.0
    assert effective_freedom([3.0] * 10) == 9.0


def test_counts_that_do_not_scatter_are_known_to_their_step() -> None:
    """Three times 4 and then 5: chance alone, with counts; no scatter is not certainty."""
    result = compare_pairs([4.0, 4.0, 4.0], [5.0, 5.0, 5.0], seed=1)
    assert result.p_value is not None and result.p_value > 0.03
    assert primary_verdict(result.verdict, result.p_value) == "inconclusive"
    assert result.difference_interval is not None
    assert result.difference_interval.low < 1.0 < result.difference_interval.high
    # Where the step is known to be small, the same values are a difference.
    assert compare_pairs([4.0, 4.0, 4.0], [5.0, 5.0, 5.0], seed=1, step=0.01).verdict == "b_higher"
    apart = compare_unpaired([4.0, 4.0, 4.0], [5.0, 5.0, 5.0], seed=1)
    assert apart.verdict == "inconclusive"
    assert apart.p_value is not None and apart.p_value > 0.03
    pooled = pool_differences([([4.0, 4.0, 4.0], [5.0, 5.0, 5.0])])
    assert pooled is not None and pooled.p_value is not None and pooled.p_value > 0.01


def test_the_primary_verdict_uses_its_level() -> None:
    assert primary_verdict("b_lower", 0.014) == "b_lower"
    assert primary_verdict("b_lower", 0.016) == "inconclusive"
    assert primary_verdict("b_lower", None) == "inconclusive"


def test_consecutive_windows_have_a_prior_correlation() -> None:
    assert serial_factor([1.0, 5.0, 2.0], in_a_row=True) == UNKNOWN_FACTORS[3]
    assert serial_factor([1.0, 5.0, 2.0]) == 1.0
    assert serial_factor([3.0] * 10) == 1.0
    turning = [1.0, -1.0] * 5
    assert serial_factor(turning) == 1.0
    assert 1.0 < serial_factor(turning, in_a_row=True) < 1.7
    assert serial_factor([float(n) for n in range(10)]) > 3.0
