# SPDX-License-Identifier: Apache-2.0
"""Intervals of rates and shares: by hand, by SciPy, and by their coverage."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable
from statistics import stdev

import numpy as np
import pytest
from scipy import stats

from powerprof.statistics.counts import BLOCKS, Proportion, difference_of_rates, proportion, rate_interval
from powerprof.statistics.intervals import Interval
from powerprof.statistics.scatter import serial_factor


def t(level: float, freedom: float) -> float:
    return float(stats.t.ppf((1 + level) / 2, freedom))


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
