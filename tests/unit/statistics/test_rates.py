# SPDX-License-Identifier: Apache-2.0
"""Intervals of rates, pooled differences and proportions."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable

import numpy as np
import pytest

from powerprof.statistics.intervals import (
    BLOCKS,
    Interval,
    Proportion,
    difference_of_rates,
    pool_differences,
    proportion,
    rate_interval,
)

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


def test_of_a_part_of_all_samples_the_interval_is_the_parts() -> None:
    whole, half = proportion(40, 90), proportion(40, 90, of=180)
    assert half == pytest.approx(tuple(value / 2 for value in whole))


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
