# SPDX-License-Identifier: Apache-2.0
"""Intervals by hand, and the laws that they obey."""

from __future__ import annotations

import math
from statistics import fmean, stdev

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from powerprof.statistics.intervals import (
    BLOCKS,
    Interval,
    bounded_interval,
    difference_of_rates,
    effective_freedom,
    lag_of,
    mean_interval,
    pool_differences,
    probability_within,
    proportion,
    rate_interval,
    rounding,
    serial_factor,
    student_interval,
    student_p,
    welch_error,
    welch_interval,
)

# Eight windows with a correlation, and seven shorter ones of another level: nothing about them is equal or round.
WALK = [31.7, 33.2, 35.9, 36.4, 34.1, 38.8, 41.3, 40.2]
LEVEL = [52.3, 47.1, 55.6, 49.9, 61.4]
NUMBERS = st.lists(st.floats(0.5, 400.0), min_size=3, max_size=5)


def t(level: float, freedom: float) -> float:
    return float(stats.t.ppf((1 + level) / 2, freedom))


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
        assert found is not None and found.low <= fmean(each) <= found.high


@pytest.mark.parametrize("freedom", [1, 2, 3, 4, 7, 10, 25])
def test_students_probability_without_scipy(freedom: int) -> None:
    assert probability_within(1.7, freedom) == pytest.approx(1 - 2 * stats.t.sf(1.7, freedom))


def test_few_events_have_poissons_interval_per_second() -> None:
    found = rate_interval(7, [1.0] * 7, 3.5)
    assert (found.low, found.high, found.method) == (
        pytest.approx(stats.chi2.ppf(0.025, 14) / 2 / 3.5),
        pytest.approx(stats.chi2.ppf(0.975, 16) / 2 / 3.5),
        "poisson",
    )


def test_the_blocks_of_a_window_show_its_scatter() -> None:
    blocks = [31.0, 36.0, 29.0, 41.0, 33.0, 38.0, 30.0, 44.0, 35.0, 32.0]
    error = stdev(blocks) / math.sqrt(BLOCKS) * serial_factor(blocks)
    found, rate = rate_interval(349, blocks, 4.7), 349 / 4.7
    assert rate - found.low == pytest.approx(t(0.95, 9) * error * BLOCKS / 4.7)
    assert found.high - rate == pytest.approx(rate - found.low)
    # A regular timer scatters by its edges.
    regular = rate_interval(40, [4.0] * 10, 4.7)
    assert regular.high - 40 / 4.7 == pytest.approx(t(0.95, 9) * math.sqrt(1 / 6 / 10) * 10 / 4.7)


def test_rates_differ_by_the_squares_of_the_facing_distances() -> None:
    a, b = Interval(2.0, 5.0, ""), Interval(6.5, 9.0, "")
    found = difference_of_rates(3.0, a, 7.0, b)
    assert (found.low, found.high) == pytest.approx((4 - math.hypot(0.5, 2.0), 4 + math.hypot(2.0, 1.0)))
    back = difference_of_rates(7.0, b, 3.0, a)
    assert (back.low, back.high) == pytest.approx((-found.high, -found.low))


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
    found = pool_differences([*strata, ([], [4.0])])
    assert found is not None and found.interval is not None
    assert (found.a_mean, found.b_mean) == pytest.approx(((10.4 + 99.5) / 2, (15.35 + 79.65) / 2))
    assert found.percent == pytest.approx(mean)
    reach = t(0.95, variance**2 / spread) * error
    assert (found.interval.low, found.interval.high) == pytest.approx((mean - reach, mean + reach))
    assert found.p_value == pytest.approx(2 * stats.t.sf(abs(mean) / error, variance**2 / sparse))
    turned = pool_differences([(b, a) for a, b in strata])
    assert turned is not None and turned.interval is not None
    assert (turned.percent, turned.p_value) == pytest.approx((-mean, found.p_value))
    assert (turned.interval.low, turned.interval.high) == pytest.approx((reach * -1 - mean, reach - mean))
    # An unknown setting takes the interval away, a setting with 0 in both counts as no difference.
    single = pool_differences([*strata, ([3.0], [3.5, 4.0])])
    assert single is not None and (single.interval, single.p_value) == (None, None)
    nought = pool_differences([strata[0], ([0.0, 0.0], [0.0, 0.0])])
    assert nought is not None and nought.percent == pytest.approx(percents[0] / 2)


def test_a_share_of_a_part_is_bounded_by_that_part() -> None:
    whole, part = proportion(7, 20), proportion(7, 20, of=50)
    z = 1.959964
    middle, half = (0.35 + z * z / 40) / (1 + z * z / 20), z * math.sqrt(0.35 * 0.65 / 20 + z * z / 1600)
    half /= 1 + z * z / 20
    assert whole == pytest.approx((35.0, 100 * (middle - half), 100 * (middle + half)))
    assert part == pytest.approx((14.0, 40 * (middle - half), 40 * (middle + half)))
