# SPDX-License-Identifier: Apache-2.0
"""The noise of a report and the test of pairs, by hand and by their laws."""

from __future__ import annotations

import math
from statistics import fmean, median, stdev, variance

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from powerprof.statistics.intervals import LEVEL
from powerprof.statistics.pairs import (
    INDEPENDENT,
    Noise,
    PairedTest,
    measure_difference,
    pool_noise,
    pool_sampling_noise,
)
from powerprof.statistics.scatter import lag_of

# Rows of unequal level and scatter; the third has a 0, the fourth is shorter than the others.
FIRST = ([2.3, 2.9, 2.1, 2.6], [3.4, 3.1, 3.9, 3.3])
SECOND = ([710.0, 640.0, 690.0, 735.0], [655.0, 702.0, 618.0, 671.0])
NOUGHT = ([0.0, 1.7, 0.4, 0.9], [2.2, 2.9, 1.1, 3.6])
SHORT = ([9.0, 11.0, 8.0], [5.0, 5.5, 4.0])
NOISE = Noise(lag=math.nan, rows=3, scatter=0.31, side=0.13)


def t(level: float, freedom: float) -> float:
    return float(stats.t.ppf((1 + level) / 2, freedom))


def logs(row: tuple[list[float], list[float]]) -> list[float]:
    return [math.log(y / x) for x, y in zip(*row, strict=True)]


def test_the_noise_of_a_report_is_relative_to_each_row() -> None:
    found = pool_noise([FIRST, SECOND, NOUGHT, SHORT])
    differences = [y - x for x, y in zip(*NOUGHT, strict=True)]
    level = (fmean(NOUGHT[0]) + fmean(NOUGHT[1])) / 2
    assert found.rows == 3
    lags = [lag_of(logs(FIRST)), lag_of(logs(SECOND)), lag_of(differences)]
    assert found.lag == pytest.approx(fmean(lags))
    assert found.scatter == pytest.approx(median([stdev(logs(FIRST)), stdev(logs(SECOND)), stdev(differences) / level]))
    assert pool_noise([NOUGHT]).scatter == pytest.approx(stdev(differences) / level)
    sides = [stdev(side) / fmean(side) for row in (FIRST, SECOND, NOUGHT) for side in row]
    assert found.side == pytest.approx(median(sides))


def test_the_correlation_of_a_report_nears_that_of_its_most_correlated_row() -> None:
    """The more the rows differ beyond chance, the nearer."""
    steady = [1.0, 2.0, 1.0, 2.0, 1.0, 2.0, 1.0, 2.0, 1.0, 2.0]
    rising = [1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0, 4.5, 5.0, 5.5]
    rows = [([1.0] * 10, values) for values in (steady, steady, rising)]
    lags = [lag_of(logs(row)) for row in rows]
    share = 1 - 1.25 * 8**2 / (10**2 * 9) / variance(lags)
    assert 0.5 < share < 1.0
    assert pool_noise(rows).lag == pytest.approx(fmean(lags) + share * (max(lags) - fmean(lags)))


@given(scale=st.floats(0.001, 5000.0))
@settings(max_examples=20, deadline=None)
def test_the_unit_of_a_row_does_not_change_the_noise(scale: float) -> None:
    rows = [FIRST, SECOND, NOUGHT]
    scaled = [tuple([scale * value for value in side] for side in row) for row in rows]
    one, other = pool_noise(rows), pool_noise(scaled)  # type: ignore[arg-type]
    assert (other.lag, other.scatter, other.side) == pytest.approx((one.lag, one.scatter, one.side))


def test_more_windows_need_less_of_the_typical_deviation() -> None:
    assert [NOISE.least(count) for count in (1, 2, 9)] == pytest.approx([0.0, 0.31 * 2**0.5, 0.31 * 0.5])
    assert [NOISE.side_least(count) for count in (1, 2, 10)] == pytest.approx([0.0, 0.13 * 0.6, 0.13 * 0.2])


def test_a_correlated_report_has_longer_errors_and_less_freedom() -> None:
    none, some, more = (Noise(lag, 40, 0.2, 0.1).serial(4) for lag in (-0.3, -0.15, 0.0))
    assert none == (1.0, 3.0)
    assert 1.0 < some[0] < more[0]
    assert 3.0 > some[1] > more[1] > 1.0
    # One row counts little, a hundred rows much.
    few, many = (Noise(-0.1, rows, 0.2, 0.1).serial(4)[0] for rows in (1, 100))
    assert few < many


def test_the_noise_of_samples_is_their_chance_and_the_servers() -> None:
    """Rows of samples of 0.04: one with many samples, one with a 0, one with few. One sample is the step."""
    step = 0.04
    many = ([4.1, 5.9, 4.4, 5.2], [6.6, 5.1, 7.3, 6.0])
    zero = ([0.0, 1.9, 0.5, 1.1], [2.4, 3.3, 1.2, 3.9])
    few = ([0.11, 0.2, 0.13, 0.16], [0.12, 0.21, 0.17, 0.09])
    level = fmean([*zero[0], *zero[1]])
    chances = [
        step * fmean(1 / x + 1 / y for x, y in zip(*many, strict=True)),
        2 * step / level,
        step * fmean(1 / x + 1 / y for x, y in zip(*few, strict=True)),
    ]
    seen = [
        variance(logs(many)) - chances[0],
        variance([y - x for x, y in zip(*zero, strict=True)]) / level**2 - chances[1],
    ]
    assert all(value > 0 for value in seen)
    found = pool_sampling_noise([many, zero, few], step)
    shared = median(seen)  # the third row has less than ten samples a window
    assert [noise.scatter for noise in found] == pytest.approx([math.sqrt(shared + chance) for chance in chances])
    # Beyond six pairs the shared part counts less.
    long = ([*many[0], *many[1]], [*many[1], *many[0]])
    (noise,) = pool_sampling_noise([long], step)
    chance = step * fmean(1 / x + 1 / y for x, y in zip(*long, strict=True))
    assert noise.scatter == pytest.approx(math.sqrt((5 / 7) ** 2 * (variance(logs(long)) - chance) + chance))
    assert pool_sampling_noise([([0.0] * 3, [0.0] * 3), many], step)[0].scatter == 0.0


def test_ratios_are_tested_on_logarithms() -> None:
    each, count = logs(FIRST), 4
    found = measure_difference(*FIRST, 0.001, NOISE)
    error = stdev(each) / math.sqrt(count)
    assert found.on_logs
    assert (found.mean, found.error, found.freedom) == pytest.approx((fmean(each), error, 3.0))
    assert found.typical == pytest.approx((0.31 * math.sqrt(2 / 3) / 2, 9.0))
    of_a, of_b = (variance([math.log(value) for value in side]) for side in FIRST)
    further = math.sqrt(error**2 + (of_a**2 + of_b**2) / 3)
    assert found.lognormal == pytest.approx((fmean(each) + (of_b - of_a) / 2, further))
    coarse = measure_difference(*FIRST, 3.0, INDEPENDENT)
    reading = 3 / math.sqrt(12) * math.sqrt(fmean(1 / x**2 + 1 / y**2 for x, y in zip(*FIRST, strict=True)))
    assert coarse.error == pytest.approx(reading / 2)


def test_values_with_a_zero_are_tested_on_differences() -> None:
    each = [y - x for x, y in zip(*NOUGHT, strict=True)]
    level = (fmean(NOUGHT[0]) + fmean(NOUGHT[1])) / 2
    found = measure_difference(*NOUGHT, 0.1, NOISE)
    assert not found.on_logs and found.lognormal is None
    assert (found.mean, found.error, found.freedom) == pytest.approx((fmean(each), stdev(each) / 2, 3.0))
    assert found.typical == pytest.approx((0.31 * math.sqrt(2 / 3) * level / 2, 9.0))
    assert measure_difference(*NOUGHT, 12.0, INDEPENDENT).error == pytest.approx(math.sqrt(2 / 12) * 12 / 2)


def test_the_interval_and_the_p_value_take_the_larger_error() -> None:
    plain = PairedTest(0.9, 0.2, 3.0, on_logs=False)
    assert plain.reach(LEVEL) == pytest.approx(t(0.95, 3) * 0.2)
    assert (plain.interval.low, plain.interval.high) == pytest.approx((0.9 - t(0.95, 3) * 0.2, 0.9 + t(0.95, 3) * 0.2))
    assert plain.p_value == pytest.approx(2 * stats.t.sf(4.5, 3))
    typical = PairedTest(0.9, 0.2, 3.0, on_logs=False, typical=(0.6, 8.0))
    assert typical.reach(LEVEL) == pytest.approx(t(0.95, 8) * 0.6)
    assert typical.p_value == pytest.approx(2 * stats.t.sf(1.5, 8))
    steady = PairedTest(0.9, 0.2, 3.0, on_logs=False, typical=(0.05, 8.0))
    assert (steady.reach(LEVEL), steady.p_value) == (plain.reach(LEVEL), plain.p_value)
    both = PairedTest(0.9, 0.2, 3.0, on_logs=True, lognormal=(0.7, 0.3))
    assert both.p_value == pytest.approx(2 * stats.t.sf(0.7 / 0.3, 3))
    assert (both.interval.low, both.interval.high) == pytest.approx(
        (0.7 - t(0.95, 3) * 0.3, max(0.7 + t(0.95, 3) * 0.3, 0.9 + t(0.95, 3) * 0.2))
    )
    assert PairedTest(0.9, 0.2, 3.0, on_logs=True, lognormal=(-0.1, 0.3)).p_value == 1.0
    assert (
        PairedTest(0.0, 0.0, 3.0, on_logs=False).p_value,
        PairedTest(0.0, 0.0, 3.0, on_logs=False).interval.method,
    ) == (1.0, "constant")


@given(
    a=st.lists(st.floats(0.5, 90.0), min_size=4, max_size=4, unique=True),
    b=st.lists(st.floats(0.5, 90.0), min_size=4, max_size=4, unique=True),
    scale=st.floats(0.01, 900.0),
)
@settings(max_examples=30, deadline=None)
def test_swapped_sides_turn_a_test_around_and_a_unit_does_not_change_a_ratio(
    a: list[float], b: list[float], scale: float
) -> None:
    noise = pool_noise([(a, b), FIRST, SECOND])
    there, back = measure_difference(a, b, 0.0, noise), measure_difference(b, a, 0.0, noise)
    scaled = measure_difference([scale * x for x in a], [scale * x for x in b], 0.0, noise)
    assert (back.mean, back.p_value) == pytest.approx((-there.mean, there.p_value), rel=1e-6, abs=1e-9)
    assert (back.interval.low, back.interval.high) == pytest.approx((-there.interval.high, -there.interval.low))
    if there.on_logs and scaled.on_logs:
        assert (scaled.mean, scaled.p_value) == pytest.approx((there.mean, there.p_value), rel=1e-6, abs=1e-9)
