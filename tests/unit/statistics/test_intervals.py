# SPDX-License-Identifier: Apache-2.0
"""Intervals of means, differences, ratios, rates and shares: by hand, by SciPy, and by their laws."""

from __future__ import annotations

import math
from statistics import fmean, stdev

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from powerprof.statistics.distributions import student_p
from powerprof.statistics.intervals import (
    WIDEST_FACTOR,
    Interval,
    bounded_interval,
    cut_difference,
    mean_interval,
    student_interval,
    welch_error,
    welch_interval,
    widened_level,
)
from powerprof.statistics.pairs import INDEPENDENT
from powerprof.statistics.scatter import serial_factor
from powerprof.statistics.verdicts import compare_pairs

A = [2.71, 2.69, 2.75, 2.70, 2.68, 2.74, 2.72, 2.73, 2.66, 2.70, 2.71, 2.69]
B = [2.80, 2.79, 2.86, 2.78, 2.79, 2.83, 2.85, 2.80, 2.77, 2.81, 2.84, 2.76]


def test_the_interval_of_a_mean_joins_scipys_and_students() -> None:
    expected = stats.bootstrap(
        (np.array(A),),
        np.mean,
        n_resamples=9_999,
        confidence_level=widened_level(12),
        method="BCa",
        vectorized=True,
        random_state=np.random.default_rng(5),
    ).confidence_interval
    student = stats.ttest_1samp(A, 0).confidence_interval(0.95)
    found, factor, mean = mean_interval(A, seed=5), serial_factor(A), float(np.mean(A))
    assert found is not None
    assert mean - found.low == pytest.approx(factor * (mean - min(expected.low, student.low)), abs=1e-12)
    assert found.high - mean == pytest.approx(factor * (max(expected.high, student.high) - mean), abs=1e-12)


@pytest.mark.parametrize("count", [3, 5, 6, 12])
def test_the_ratio_of_pairs_is_students_over_logarithms_for_any_count(count: int) -> None:
    a, b = A[:count], B[:count]
    student = stats.ttest_1samp(np.log(np.array(b) / np.array(a)), 0)
    found = compare_pairs(a, b, seed=5, step=0.0, noise=INDEPENDENT)
    ends = student.confidence_interval(0.95)
    assert found.ratio_interval is not None
    assert (found.ratio_interval.low, found.ratio_interval.high) == pytest.approx(
        (math.exp(ends.low), math.exp(ends.high)), rel=1e-3
    )
    assert found.p_value == pytest.approx(student.pvalue, rel=0.05)


def test_the_level_is_widened_by_students_quantile_and_the_lost_degree_of_freedom() -> None:
    # n = 12: t(0.975, 11) = 2.2010, × sqrt(12/11) = 2.2988; 1 − 2·Φ(−2.2988) = 0.97848
    assert widened_level(12) == pytest.approx(0.97848, abs=1e-5)
    assert widened_level(100_000) == pytest.approx(0.95, abs=1e-4)


@pytest.mark.parametrize("values", [[], [1.0], [1.0, 2.0], [1.0, float("nan"), 2.0]])
def test_too_little_gives_no_interval(values: list[float]) -> None:
    assert mean_interval(values, seed=1) is None


def test_constant_values_give_a_point() -> None:
    found = mean_interval([3.0] * 8, seed=1)
    assert found is not None
    assert (found.low, found.high, found.method) == (3.0, 3.0, "constant")


def test_two_pairs_have_no_interval() -> None:
    found = compare_pairs([1.0, 1.1], [2.0, 2.4], seed=1)
    assert (found.ratio_interval, found.difference_interval, found.p_value) == (None, None, None)


@pytest.mark.parametrize(
    ("a", "b"),
    [
        # An idle residency that other programs leave little of in one window: the least gap is taken for the step.
        ([12.1, 55.0, 38.9], [0.001, 4.4, 22.0]),
        ([31.0, 12.4, 47.0], [0.002, 6.3, 9.4]),
        ([0.0001, 0.1, 0.2], [12.0, 15.0, 18.0]),
    ],
)
def test_a_value_far_below_the_resolution_gives_no_ratio(a: list[float], b: list[float]) -> None:
    found = compare_pairs(a, b, seed=1)
    assert found.ratio_interval is None
    # Differences do not need it.
    plain = student_interval([y - x for x, y in zip(a, b, strict=True)])
    assert found.difference_interval is not None and plain is not None
    assert found.difference_interval.low < plain.low * 0.9 and found.difference_interval.method == "student"


@given(
    st.integers(1, 8).flatmap(
        lambda pairs: st.lists(
            st.tuples(*[st.one_of(st.just(0.0), st.floats(1e-9, 1e9))] * 2), min_size=pairs, max_size=pairs
        )
    )
)
@settings(max_examples=200, deadline=None)
def test_no_pairs_are_too_odd(pairs: list[tuple[float, float]]) -> None:
    found = compare_pairs([x for x, _ in pairs], [y for _, y in pairs], seed=1)
    for interval in (found.ratio_interval, found.difference_interval):
        assert interval is None or interval.low <= interval.high < math.inf


def test_a_ratio_over_a_zero_is_refused() -> None:
    assert compare_pairs([0.0, *A[1:]], B, seed=1).ratio_interval is None


@pytest.mark.parametrize(
    ("values", "floor", "ceiling"),
    [
        ([0.1, 2.0, 0.05, 0.1], 0.0, None),
        ([99.9, 99.0, 99.99, 97.0], 0.0, 100.0),
        ([20.0, 60.0, 90.0], 0.0, 100.0),
        ([0.0, 0.0, 0.3], 0.0, 100.0),
        # Only one end of the plain one is out; bent away from there, the other would be.
        ([74.4, 97.0, 59.2], 0.0, 100.0),
        ([25.6, 3.0, 40.8], 0.0, 100.0),
    ],
)
def test_a_bounded_interval_stays_within_its_bounds(values: list[float], floor: float, ceiling: float | None) -> None:
    plain, found = student_interval(values), bounded_interval(values, floor, ceiling)
    assert plain is not None
    assert found is not None
    assert plain.low < floor or (ceiling is not None and plain.high > ceiling)
    mean = sum(values) / len(values)
    # Bent, not cut: open at the bound, and as long on the other side or longer.
    assert floor < found.low < mean < found.high
    assert ceiling is None or found.high < ceiling


def test_a_mean_next_to_its_bound_has_a_wide_interval() -> None:
    """Read a clock a little below 0: no overflow, and an end that says nothing is unknown."""
    assert bounded_interval([-0.1, 0.1001], 0.0, 100.0) is None
    assert bounded_interval([1.0, 99.0], 0.0, 100.0) is None  # the whole range
    assert bounded_interval([99.0, 100.9], 0.0, 100.0) is None


@given(
    values=st.lists(st.floats(0.0, 100.0), min_size=1, max_size=9),
    bounds=st.sampled_from([(None, None), (0.0, None), (0.0, 100.0), (None, 100.0)]),
)
def test_every_interval_within_bounds_is_possible(
    values: list[float], bounds: tuple[float | None, float | None]
) -> None:
    floor, ceiling = bounds
    found, mean = bounded_interval(values, floor, ceiling), fmean(values)
    if found is None:
        return
    assert found.low <= mean * (1 + 1e-9) and mean <= found.high * (1 + 1e-9)
    assert floor is None or (found.low >= floor and found.high <= max(WIDEST_FACTOR * mean, mean))
    assert ceiling is None or found.high <= ceiling * (1 + 1e-9)


def test_an_interval_clear_of_its_bounds_is_students() -> None:
    assert bounded_interval([40.0, 41.0, 42.0], 0.0, 100.0) == student_interval([40.0, 41.0, 42.0])
    assert bounded_interval([0.0, 0.0], 0.0, 100.0) == student_interval([0.0, 0.0])
    assert bounded_interval([3.0]) is None


def test_bounded_intervals_cover_rare_events() -> None:
    """Wake-ups counted in windows, 1.5 a window: a Poisson count, whose plain interval often reaches below 0."""
    generator = np.random.default_rng(1)
    covered = 0
    for _ in range(1000):
        found = bounded_interval(generator.poisson(1.5, 5).astype(float).tolist(), 0.0)
        covered += found is not None and found.low <= 1.5 <= found.high
    assert covered >= 930


# Eight windows with a correlation, and seven shorter ones of another level: nothing about them is equal or round.
WALK = [31.7, 33.2, 35.9, 36.4, 34.1, 38.8, 41.3, 40.2]
LEVEL = [52.3, 47.1, 55.6, 49.9, 61.4]
NUMBERS = st.lists(st.floats(0.5, 400.0), min_size=3, max_size=5)


def t(level: float, freedom: float) -> float:
    return float(stats.t.ppf((1 + level) / 2, freedom))


def test_an_interval_is_stretched_joined_and_halved_by_its_ends() -> None:
    one = Interval(8.0, 13.0, "x")
    assert one.stretched(9.0, 3.0) == Interval(6.0, 21.0, "x")
    assert one.with_ends(Interval(8.5, 14.5, "y")) == Interval(8.0, 14.5, "x")
    assert one.with_ends(Interval(5.0, 6.0, "y")) == Interval(5.0, 13.0, "x")
    assert (one.half_width, one.excludes(8.0), one.excludes(7.9), one.excludes(13.1)) == (2.5, False, True, True)


@pytest.mark.parametrize("values", [WALK, LEVEL, [0.3, 7.1]])
def test_students_interval_is_scipys(values: list[float]) -> None:
    found = student_interval(values)
    expected = stats.t.interval(0.95, len(values) - 1, fmean(values), stats.sem(values))
    assert found is not None
    assert (found.low, found.high) == pytest.approx(expected)
    assert student_p(2.3, 4) == pytest.approx(2 * stats.t.sf(2.3, 4))


def test_the_error_of_a_difference_adds_the_errors_of_both_means() -> None:
    errors = [stdev(values) * serial_factor(values) / math.sqrt(len(values)) for values in (WALK, LEVEL)]
    assert welch_error(WALK, LEVEL) == (pytest.approx(math.hypot(*errors)), 4)
    found, reach = welch_interval(WALK, LEVEL), t(0.95, 4) * math.hypot(*errors)
    apart = fmean(LEVEL) - fmean(WALK)
    assert found is not None
    assert (found.low, found.high) == pytest.approx((apart - reach, apart + reach))
    # Levels of runs scatter twice as much as their windows; a coarse reading hides the scatter of both.
    levels = [math.hypot(error, 2 * stdev(values)) for error, values in zip(errors, (WALK, LEVEL), strict=True)]
    assert welch_error(WALK, LEVEL, 2.0)[0] == pytest.approx(math.hypot(*levels))
    coarse = [100 / math.sqrt(12) * serial_factor(values) / math.sqrt(len(values)) for values in (WALK, LEVEL)]
    assert welch_error(WALK, LEVEL, step=100.0)[0] == pytest.approx(math.hypot(*coarse))


@given(a=NUMBERS, b=NUMBERS, scale=st.floats(0.01, 90.0))
@settings(max_examples=40, deadline=None)
def test_a_difference_changes_its_sign_with_its_sides_and_its_size_with_its_unit(
    a: list[float], b: list[float], scale: float
) -> None:
    there, back = welch_interval(a, b), welch_interval(b, a)
    larger = welch_interval([scale * x for x in a], [scale * x for x in b])
    assert there is not None and back is not None and larger is not None
    assert (back.low, back.high) == pytest.approx((-there.high, -there.low))
    assert (larger.low, larger.high) == pytest.approx((scale * there.low, scale * there.high), rel=1e-6, abs=1e-9)


@given(values=NUMBERS, floor=st.floats(0.0, 0.4), room=st.floats(0.5, 60.0), shift=st.floats(-70.0, 70.0))
@settings(max_examples=60, deadline=None)
def test_a_bounded_interval_is_the_same_from_either_bound(
    values: list[float], floor: float, room: float, shift: float
) -> None:
    ceiling = max(values) + room

    def ends(of: list[float], low: float | None, high: float | None) -> tuple[float, float]:
        found = bounded_interval(of, low, high)
        assert found is not None
        assert (low is None or found.low >= low - 1e-9) and (high is None or found.high <= high + 1e-9)
        return found.low, found.high

    for low, high in ((floor, None), (None, ceiling), (floor, ceiling)):
        here = ends(values, low, high)
        moved = ends([x + shift for x in values], *(None if x is None else x + shift for x in (low, high)))
        assert moved == pytest.approx((here[0] + shift, here[1] + shift), rel=1e-6, abs=1e-6)
        turned = ends([-x for x in values], *(None if x is None else -x for x in (high, low)))
        assert turned == pytest.approx((-here[1], -here[0]), rel=1e-6, abs=1e-6)


def test_an_interval_bends_towards_its_bound() -> None:
    """From 2 the distances of the ends have the ratio e^(reach ÷ distance of the mean)."""
    values = [2.1, 9.4, 3.3, 2.6]
    centre, reach = fmean(values), t(0.95, 3) * stats.sem(values)
    factor = math.exp(reach / (centre - 2))
    found = bounded_interval(values, 2.0)
    assert found is not None and found.method == "student-log"
    assert (found.low - 2, found.high - 2) == pytest.approx(((centre - 2) / factor, (centre - 2) * factor))
    both = bounded_interval(values, 2.0, 11.0)
    assert both is not None and both.method == "student-logit"
    odds, spread = (centre - 2) / (11 - centre), math.exp(reach * (1 / (centre - 2) + 1 / (11 - centre)))
    assert (both.low - 2) / (11 - both.low) == pytest.approx(odds / spread)
    assert (both.high - 2) / (11 - both.high) == pytest.approx(odds * spread)


def test_the_interval_of_positive_values_reaches_the_lognormal_ends() -> None:
    values = [1.3, 9.7, 2.2]
    logs = [math.log(value) for value in values]
    variance, middle = stdev(logs) ** 2, fmean(logs) + stdev(logs) ** 2 / 2
    reach = t(0.95, 2) * math.sqrt(variance / 3 + variance**2 / 2)
    plain = t(0.95, 2) * 2.0 * stats.sem(values)  # three windows in a row count twice
    found = mean_interval(values, seed=1)
    assert found is not None
    assert found.low == pytest.approx(min(fmean(values) - plain, math.exp(middle - reach)))
    assert found.high == pytest.approx(max(fmean(values) + plain, math.exp(middle + reach)))
    equal = mean_interval([7.0] * 3, seed=1, least=0.6)
    assert equal is not None
    credible = t(0.95, 2) * 2.0 * 0.6 / math.sqrt(3)
    assert (equal.low, equal.high) == pytest.approx((7 - credible, 7 + credible))


@given(values=st.lists(st.floats(0.5, 400.0), min_size=3, max_size=5), spread=st.floats(1e-4, 0.02))
@settings(max_examples=40, deadline=None)
def test_every_interval_of_a_mean_contains_it(values: list[float], spread: float) -> None:
    for each in (values, [values[0] * (1 + spread * n) for n in range(4)], [values[0], values[0], values[0] + 1e-9]):
        found = mean_interval(each, seed=1)
        if found is None:  # The tail of a lognormal distribution says nothing.
            assert len(each) < 3 or max(each) > 3 * min(each) > 0
        else:
            assert found.low <= fmean(each) <= found.high
            assert min(each) <= 0 or found.high <= WIDEST_FACTOR * fmean(each)


@given(
    ends=st.tuples(st.floats(-300, 300), st.floats(-300, 300)).map(sorted),
    mean_a=st.tuples(st.floats(0, 100), st.floats(0, 100)).map(sorted),
    share=st.floats(0, 1),
    a_share=st.floats(0, 1),
    b=st.floats(0, 100),
    ceiling=st.sampled_from([100.0, None]),
)
def test_a_cut_difference_keeps_every_possible_one(
    ends: list[float], mean_a: list[float], share: float, a_share: float, b: float, ceiling: float | None
) -> None:
    """Every b − a of possible values that the interval had is in the cut one, and so is the difference itself."""
    difference = ends[0] + share * (ends[1] - ends[0])
    possible = b - (mean_a[0] + a_share * (mean_a[1] - mean_a[0]))
    low, high = cut_difference((ends[0], ends[1]), difference, (mean_a[0], mean_a[1]), (0.0, ceiling))
    assert ends[0] <= low <= difference + 1e-9 and difference - 1e-9 <= high <= ends[1]
    if ends[0] <= possible <= ends[1]:
        assert low - 1e-9 <= possible <= high + 1e-9


def test_a_difference_ends_where_b_would_leave_its_range() -> None:
    limits = (0.0, 100.0)
    assert cut_difference((-80.0, 120.0), 5.0, (20.0, 30.0), limits) == (-30.0, 80.0)
    assert cut_difference((-80.0, 120.0), 5.0, (20.0, 30.0), (None, None)) == (-80.0, 120.0)
    assert cut_difference((-10.0, 12.0), 5.0, (20.0, 30.0), limits) == (-10.0, 12.0)
