# SPDX-License-Identifier: Apache-2.0
"""Intervals hold the truth, and reports of nothing say nothing: the quick part of tests/nightly/test_coverage.py."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest

from powerprof.statistics import intervals
from powerprof.statistics.pairs import pool_noise
from powerprof.statistics.pooling import pool_differences
from powerprof.statistics.scatter import UNKNOWN_FACTORS, effective_freedom, serial_factor, step_of
from powerprof.statistics.verdicts import compare_pairs, compare_unpaired, primary_verdict
from tests.unit.statistics.coverage import COLUMNS, SHARED, correlated, coverage, false_words, power, report_coverage
from tests.unit.statistics.function_noise import KINDS, judge_tables


@pytest.fixture(autouse=True)
def few_resamples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(intervals, "RESAMPLES", 199)


@pytest.mark.simulation
@pytest.mark.parametrize(
    ("name", "count", "at_least"),
    [
        ("pairs, normal", 5, 0.93),
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


@pytest.fixture
def without_bootstrap(monkeypatch: pytest.MonkeyPatch) -> None:
    """Skip the bootstrap of the columns: it takes no part in verdicts."""
    monkeypatch.setattr(intervals, "_bca", lambda values, seed: None)


@pytest.mark.simulation
@pytest.mark.usefixtures("without_bootstrap")
@pytest.mark.parametrize(("kind", "count"), [(kind, (3, 6)[number % 2]) for number, kind in enumerate(SHARED)])
def test_equal_conditions_have_few_false_verdicts(kind: str, count: int) -> None:
    """At most 2.5 % of reports; 40 of them are worth ± 2.5 points. The soak has the table."""
    assert false_words(kind, count, 40) <= 0.025 + 0.05


@pytest.mark.simulation
@pytest.mark.usefixtures("without_bootstrap")
@pytest.mark.parametrize(
    ("kind", "most", "count"), [("sides AR(0.5)", 0.08, 10), ("sides AR(0.8)", 0.12, 4), ("sides AR(0.9)", 0.16, 10)]
)
def test_the_correlation_of_a_report_widens_its_rows(kind: str, most: float, count: int) -> None:
    """Each side with a correlation of its own: 42 % of reports at 4 pairs with 0.8 if every row is judged alone."""
    assert false_words(kind, count, 80) <= most


@pytest.mark.simulation
@pytest.mark.usefixtures("without_bootstrap")
@pytest.mark.parametrize(("kind", "count"), [("runs, level 1", 20), ("runs, level 2", 3), ("sides AR(0.8)", 20)])
def test_a_run_is_one_sample_of_its_level(kind: str, count: int) -> None:
    """93 % of reports had a false word at level 1 and 20 windows: windows do not show the levels of runs."""
    assert false_words(kind, count, 40, paired=False) <= 0.025 + 0.05


@pytest.mark.simulation
@pytest.mark.usefixtures("without_bootstrap")
@pytest.mark.parametrize(
    ("kind", "effect", "headline"),
    [("a drift of 20 %", 1.3, True), ("host AR(0.8)", 1.3, False), ("normal", 8.0, False)],
)
def test_more_pairs_never_lose_an_effect(kind: str, effect: float, headline: bool) -> None:
    """From 5 to 6 pairs 30 % was found in 99 and 71 % of reports; an 8-fold row in 100 and 45 %."""
    shares = [power(kind, effect, count, 40, headline=headline) for count in (3, 5, 6, 20)]
    assert all(later >= earlier - 0.05 for earlier, later in pairwise(shares)), shares
    assert shares[-1] == 1.0


@pytest.mark.simulation
@pytest.mark.usefixtures("without_bootstrap")
@pytest.mark.parametrize(("kind", "count"), [(kind, (3, 4, 6)[number % 3]) for number, kind in enumerate(COLUMNS)])
def test_the_interval_of_a_column_holds_its_mean(kind: str, count: int) -> None:
    """0.58 with a correlation of 0.9 and 0.65 with two modes at 3 pairs, if its windows count as independent."""
    assert report_coverage(kind, COLUMNS[kind], count, 40) >= (0.84 if kind == "host AR(0.9)" else 0.90)


@pytest.mark.simulation
@pytest.mark.usefixtures("without_bootstrap")
@pytest.mark.parametrize("kind", KINDS)
def test_equal_functions_have_no_false_verdicts(kind: str) -> None:
    """Two modes of each function: 23 % of tables at 4 pairs if every function is judged by its own scatter."""
    tables = {3: 1, 4: 8} if kind in ("two modes of each function", "work in half of the windows") else {3: 1, 4: 1}
    assert [judge_tables(kind, pairs, count).false for pairs, count in tables.items()] == [0.0, 0.0]


@pytest.mark.simulation
@pytest.mark.usefixtures("without_bootstrap")
def test_ten_pairs_find_a_function_of_three_times_the_time() -> None:
    assert judge_tables("Poisson", 10, 3, effect=3.0).found == 1.0


def test_runs_are_known_to_the_step_of_their_readings() -> None:
    """Two samples in each window against four, in windows of slightly different length."""
    few, more = [0.2, 0.20001, 0.2], [0.4, 0.40002, 0.4]
    assert compare_unpaired(few, more, seed=1).verdict == "b_higher"
    assert compare_unpaired(few, more, seed=1, step=0.1).verdict == "inconclusive"


def test_the_noise_of_a_report_is_that_of_all_rows() -> None:
    generator = np.random.default_rng(3)
    independent = [tuple(generator.normal(100, 5, 6).tolist() for _ in "ab") for _ in range(40)]
    sides = [tuple((100 + 5 * correlated(generator, 6, 0.9)).tolist() for _ in "ab") for _ in range(40)]
    small, large = pool_noise(independent), pool_noise(sides)  # type: ignore[arg-type]
    assert small.lag == pytest.approx(-1 / 6, abs=0.1) and large.lag > 0.05
    assert small.serial(6)[0] < 1.2 < 2.0 < large.serial(6)[0]
    assert large.serial(6)[1] < small.serial(6)[1] <= 5.0
    assert small.scatter == pytest.approx(math.hypot(0.05, 0.05), rel=0.2)
    assert small.side == pytest.approx(0.05, rel=0.2)
    # Rows of two pairs, equal rows and no rows show nothing.
    for rows in ([], [([1.0, 2.0], [2.0, 3.0])], [([3.0] * 4, [3.0] * 4)]):
        assert pool_noise(rows).serial(6) == (1.0, 5.0)
        assert pool_noise(rows).least(5) == 0.0


def test_rows_with_a_strong_correlation_widen_all_rows() -> None:
    generator = np.random.default_rng(8)
    rows = [tuple(generator.normal(100, 5, 30).tolist() for _ in "ab") for _ in range(10)]
    alone = pool_noise(rows).serial(30)[0]  # type: ignore[arg-type]
    rows += [tuple((100 + 5 * correlated(generator, 30, 0.9)).tolist() for _ in "ab") for _ in range(10)]
    assert pool_noise(rows).serial(30)[0] > 2 * alone  # type: ignore[arg-type]


@pytest.mark.simulation
@pytest.mark.parametrize(("count", "most"), [(4, 0.1), (6, 0.25), (10, 0.2), (20, 0.06)])
def test_a_report_of_half_correlated_rows_has_few_false_words(count: int, most: float) -> None:
    """Half of the rows have AR(0.9). Judged by its own correlation, a row of ten pairs was false in 48 % of reports."""
    kinds = ["normal", "sides AR(0.9)"] * 10
    assert false_words(kinds, count, 100) <= most


def test_pairs_that_are_alike_by_chance_are_no_certainty() -> None:
    """Disturbed windows: three times 100 against three times 120, while the other rows scatter by 10 %."""
    alike = ([100.0, 100.1, 99.9], [120.0, 120.2, 119.9])
    alone = compare_pairs(*alike, seed=1)
    other = ([100.0, 120.0, 101.0], [121.0, 99.0, 119.0])
    in_report = compare_pairs(*alike, seed=1, noise=pool_noise([alike, other, other]))
    assert alone.p_value is not None and in_report.p_value is not None
    assert alone.p_value < 0.001 < 0.015 < in_report.p_value


def test_means_and_medians_must_differ() -> None:
    """Equal means with a deviation of 0.2 and 1.0 of the logarithms: the medians alone differ."""
    generator = np.random.default_rng(2)
    a, b = generator.lognormal(-0.02, 0.2, 200), generator.lognormal(-0.5, 1.0, 200)
    assert compare_pairs(a.tolist(), b.tolist(), seed=1).verdict == "inconclusive"


def test_the_gap_of_two_values_is_no_step_of_which_they_are_no_multiples() -> None:
    assert step_of([0.12] * 3, [2.8] * 3) == pytest.approx(0.12)
    assert step_of([4.0] * 3, [5.0] * 3) == 1.0
    assert step_of([0.0] * 3, [5.0] * 3) == 5.0
    assert step_of([3.0] * 3) == 0.0


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
    pooled = pool_differences([([4.0, 4.0, 4.0], [5.0, 5.0, 5.0])], levels=0.0)
    assert pooled is not None and pooled.p_value is not None and pooled.p_value > 0.01


def test_the_primary_verdict_uses_its_level() -> None:
    assert primary_verdict("b_lower", 0.014) == "b_lower"
    assert primary_verdict("b_lower", 0.016) == "inconclusive"
    assert primary_verdict("b_lower", None) == "inconclusive"


def test_consecutive_windows_have_a_prior_correlation() -> None:
    assert serial_factor([1.0, 5.0, 2.0]) == UNKNOWN_FACTORS[3]
    assert serial_factor([3.0] * 10) == 1.0
    turning = [1.0, -1.0] * 5
    assert 1.0 < serial_factor(turning) < 1.7
    assert serial_factor([float(n) for n in range(10)]) > 3.0
