# SPDX-License-Identifier: Apache-2.0
"""The cost of an idle server and the differences between phases."""

from __future__ import annotations

import random
import warnings

import pytest
from scipy import stats

from powerprof.experiment.phases import difference, judge_cost
from powerprof.statistics.intervals import UNKNOWN_FACTORS


def wandering(generator: random.Random, count: int, step: float, noise: float = 1.5) -> list[float]:
    """Windows of a host that does nothing else than be itself: its figure walks by `step` a window."""
    level, found = 40.0, []
    for _ in range(count):
        level += generator.gauss(0, step)
        found.append(level + generator.gauss(0, noise))
    return found


@pytest.mark.parametrize("step", [0.0, 0.5, 1.0, 3.0])
@pytest.mark.parametrize("repeat", [2, 3, 5])
def test_a_host_compared_with_itself_rarely_has_a_cost(step: float, repeat: int) -> None:
    """No server was started: of 200 such runs at most 5 % may claim a cost. 18 of 200 is what 5 % gives once in 100."""
    generator = random.Random(f"{step} {repeat}")
    claimed = 0
    for _ in range(200):
        windows = wandering(generator, 3 * repeat + max(2, repeat // 2), step)
        before, measured, after = windows[:repeat], windows[2 * repeat : 3 * repeat], windows[3 * repeat :]
        claimed += judge_cost(before, measured, after) == "costs"
    assert claimed <= 10


def test_a_real_cost_is_found() -> None:
    generator = random.Random(5)
    found = 0
    for _ in range(100):
        before, after = (wandering(generator, count, 0.0) for count in (5, 2))
        measured = [value + 10.0 for value in wandering(generator, 5, 0.0)]
        found += judge_cost(before, measured, after) == "costs"
    assert found >= 90  # 10 wake-ups/s against a scatter of 1.5, of five windows that may be correlated


@pytest.mark.parametrize(
    ("before", "measured", "after", "said"),
    [
        ([40.0, 41.0, 40.5], [20.0, 21.0, 20.5], [40.0, 41.0], "nothing"),  # below zero: no server gives back
        ([40.0, 41.0, 40.5], [40.2, 41.1, 40.4], [40.0, 41.0], "nothing"),
        ([40.0, 41.0, 40.5], [60.0, 61.0, 60.5], [60.0, 61.0], "drift"),
        ([40.0, 41.0, 40.5], [60.0, 61.0, 60.5], [20.0, 21.0], "drift"),
        ([40.0, 41.0, 40.5], [60.0, 61.0, 60.5], [40.5, 41.5], "costs"),
        ([40.0, 41.0, 40.5], [60.0, 61.0, 60.5], [], "costs"),  # a given server: no baseline without it
        ([40.0], [60.0], [], "single"),
        ([], [60.0, 61.0], [], "single"),
    ],
)
def test_verdicts_on_a_cost(before: list[float], measured: list[float], after: list[float], said: str) -> None:
    assert judge_cost(before, measured, after) == said


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ([0.42, 0.44, 0.40, 0.47, 0.41], [0.63, 0.61, 0.70, 0.58, 0.66]),
        ([1.0, 2.0], [5.0, 5.5, 9.0]),
        ([38.1, 36.0, 41.2], [44.9, 44.8, 45.3, 60.0]),
    ],
)
def test_few_windows_in_a_row_cannot_show_their_correlation(before: list[float], after: list[float]) -> None:
    """The error of each mean, longer by what so few may hide, times Student's quantile for the smaller side."""
    found = difference(before, after)
    mean = sum(after) / len(after) - sum(before) / len(before)
    errors = [UNKNOWN_FACTORS[len(side)] * stats.sem(side) for side in (before, after)]
    reach = stats.t.ppf(0.975, min(len(before), len(after)) - 1) * (errors[0] ** 2 + errors[1] ** 2) ** 0.5
    assert (found.low, found.high) == pytest.approx((mean - reach, mean + reach))
    assert found.mean == pytest.approx(mean)


@pytest.mark.parametrize(
    ("before", "after"),
    [([100.0, 100.0], [100.0, 100.0 + 1e-13]), ([0.1, 0.1], [0.1, 0.1]), ([1e-200, 2e-200], [1e-200, 3e-200])],
)
def test_equal_windows_give_no_warning(before: list[float], after: list[float]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = difference(before, after)
    assert found.low is not None
    assert found.high is not None
    assert found.low <= found.mean <= found.high
    assert found.high - found.low < 1e-9


def test_one_window_has_no_interval() -> None:
    assert (difference([1.0], [2.0, 3.0]).low, difference([1.0, 2.0], [3.0]).high) == (None, None)
