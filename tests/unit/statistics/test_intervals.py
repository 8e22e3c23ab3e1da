# SPDX-License-Identifier: Apache-2.0
"""Intervals of means, differences, ratios, rates and shares: by hand, by SciPy, and by their laws."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable
from statistics import fmean, stdev

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from scipy.special import stdtrit

from powerprof.statistics.intervals import (
    BLOCKS,
    Interval,
    Proportion,
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
    two_sided_quantile,
    welch_error,
    welch_interval,
    widened_level,
)
from powerprof.statistics.pairs import INDEPENDENT
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
        ([1.0, 99.0], 0.0, 100.0),
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
    """A clock read a little below 0: no overflow, and nothing beyond what is possible."""
    found = bounded_interval([-0.1, 0.1001], 0.0, 100.0)
    assert found is not None
    assert 0.0 <= found.low < 0.0001
    assert found.high == pytest.approx(100.0)


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


@pytest.mark.parametrize("freedom", [1, 2, 3, 4, 5, 9, 30, 101])
@pytest.mark.parametrize("share", [0.5, 0.9, 0.95, 0.999])
def test_quantiles_are_scipys(freedom: int, share: float) -> None:
    assert two_sided_quantile(share, freedom) == pytest.approx(float(stdtrit(freedom, (1 + share) / 2)), rel=1e-9)


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


Times = Callable[[np.random.Generator, float], np.ndarray]


def timer(period_s: float) -> Times:
    return lambda random, window_s: np.arange(random.uniform(0, period_s), window_s, period_s)


def chance(rate_hz: float) -> Times:
    return lambda random, window_s: random.uniform(0, window_s, random.poisson(rate_hz * window_s))


def bursts(rate_hz: float, each: int) -> Times:
    def times(random: np.random.Generator, window_s: float) -> np.ndarray:
        starts = random.uniform(0, window_s, random.poisson(rate_hz / each * window_s))
        return np.repeat(starts, each)

    return times


def together(*those: Times) -> Times:
    return lambda random, window_s: np.concatenate([each(random, window_s) for each in those])


def counted(times: np.ndarray, window_s: float) -> Interval:
    blocks = np.histogram(times, bins=BLOCKS, range=(0, window_s))[0]
    return rate_interval(len(times), blocks.tolist(), window_s)


CASES = {
    "a timer each 0.4 s and one each second": (together(timer(0.4), timer(1.0)), 3.5),
    "a timer each 5 s": (timer(5.0), 0.2),
    "a timer each 30 s": (timer(30.0), 1 / 30),
    "chance, 5/s": (chance(5.0), 5.0),
    "chance, 0.2/s": (chance(0.2), 0.2),
    "chance, 100/s": (chance(100.0), 100.0),
    "bursts of 5, 10/s": (bursts(10.0, 5), 10.0),
    "a timer beside bursts": (together(timer(0.4), bursts(2.0, 4)), 4.5),
}


@pytest.mark.parametrize("window_s", [4.5, 16.0])
@pytest.mark.parametrize("name", CASES)
def test_an_interval_covers_the_rate(name: str, window_s: float) -> None:
    times, rate_hz = CASES[name]
    random = np.random.default_rng(7)
    covered = 0
    for _ in range(400):
        interval = counted(times(random, window_s), window_s)
        covered += not interval.excludes(rate_hz)
    # Of few bursts, four or five seconds show too little.
    assert covered / 400 >= (0.9 if window_s < 5 else 0.93)


def test_equal_rates_differ_in_one_of_twenty_at_most() -> None:
    random = np.random.default_rng(11)
    for times, _ in CASES.values():
        apart = 0
        for _ in range(400):
            first, second = times(random, 16.0), times(random, 16.0)
            between = difference_of_rates(
                len(first) / 16, counted(first, 16.0), len(second) / 16, counted(second, 16.0)
            )
            apart += between.excludes(0.0)
        assert apart / 400 <= 0.07


def test_a_servers_timers_are_known_to_a_third_of_a_wake_up_a_second() -> None:
    random = np.random.default_rng(3)
    widths = [counted(together(timer(0.4), timer(1.0))(random, 16.0), 16.0).half_width for _ in range(100)]
    assert np.median(widths) < 0.33


def test_a_count_of_zero_has_poissons_interval() -> None:
    interval = rate_interval(0, [0.0] * BLOCKS, 16.0)
    assert interval.low == 0.0
    assert interval.high == pytest.approx(3.689 / 16, rel=1e-3)


def test_settings_of_different_size_count_alike() -> None:
    found = pool_differences([([10.0, 10.0, 10.0], [30.0, 30.0, 30.0]), ([1000.0, 1000.0], [3000.0, 3000.0])])
    assert found is not None
    assert found.percent == pytest.approx(100.0)
    # No window scatters: they are known to the step that they show, 20 and 2000.
    assert found.interval is not None and found.interval.low < 100.0 < found.interval.high
    assert found.p_value is not None and 0.0 < found.p_value < 0.05


def test_a_change_from_zero_has_an_interval() -> None:
    found = pool_differences([([0.0, 0.0, 0.0], [5.0, 6.0, 7.0]), ([0.0, 0.0], [0.0, 0.0])])
    assert found is not None
    assert found.percent == pytest.approx(100.0)  # 200 at one of two settings
    assert found.interval is not None
    assert found.interval.low > 0


def test_one_window_per_setting_gives_no_interval() -> None:
    found = pool_differences([([1.0], [2.0])])
    assert found is not None
    assert found.interval is None
    assert found.p_value is None
    assert pool_differences([([], [1.0])]) is None


def test_the_pooled_interval_covers_the_truth() -> None:
    draw = random.Random(4)
    held = 0
    for _ in range(400):
        strata = [
            ([draw.gauss(level, level / 20) for _ in range(3)], [draw.gauss(1.2 * level, level / 20) for _ in range(3)])
            for level in (1.0, 10.0, 100.0)
        ]
        found = pool_differences(strata)
        assert found is not None
        assert found.interval is not None
        held += found.interval.low <= 200 * 0.2 / 2.2 <= found.interval.high
    # 95 % of 400 are 380, less 3 standard deviations (13). Three windows in a row may be correlated: more here.
    assert held >= 367


def test_the_interval_is_wilsons() -> None:
    # Figures by Newcombe (1998), table I: 81/263 and 0/20.
    assert proportion(81, 263)[1:] == pytest.approx((25.53, 36.62), abs=0.01)
    assert proportion(0, 20) == pytest.approx((0.0, 0.0, 16.11), abs=0.01)
    assert proportion(0, 0) == (0.0, 0.0, 100.0)


def holds(share: Proportion) -> bool:
    return 0 <= share.low_percent <= share.percent <= share.high_percent <= 100


def test_the_interval_contains_its_share_exactly() -> None:
    small = [(count, whole, of) for of in range(1, 40) for whole in range(1, of + 1) for count in range(whole + 1)]
    draw = random.Random(3)
    large = []
    for _ in range(20_000):
        of = draw.randint(1, 10**9)
        whole = draw.randint(1, of)
        large.append((draw.choice((0, 1, whole - 1, whole, draw.randint(0, whole))), whole, of))
    broken = [draw for draw in itertools.chain(small, large) if not holds(proportion(*draw))]
    assert broken == []
