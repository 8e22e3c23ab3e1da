# SPDX-License-Identifier: Apache-2.0
"""Rates of counted events: the intervals cover what they promise, for timers, for chance and for bursts."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from powerprof.statistics.intervals import Interval
from powerprof.statistics.rates import BLOCKS, difference_of_rates, rate_interval

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


def test_two_equal_rates_are_told_apart_in_one_of_twenty_at_most() -> None:
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


def test_nothing_counted_is_below_what_poisson_allows() -> None:
    interval = rate_interval(0, [0.0] * BLOCKS, 16.0)
    assert interval.low == 0.0
    assert interval.high == pytest.approx(3.689 / 16, rel=1e-3)
