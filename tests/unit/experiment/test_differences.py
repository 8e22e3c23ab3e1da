# SPDX-License-Identifier: Apache-2.0
"""Differences of phases: an interval for two scatters, also where windows are nearly or wholly alike."""

from __future__ import annotations

import warnings

import pytest
from scipy import stats

from powerprof.experiment.phases import difference
from powerprof.statistics.intervals import UNKNOWN_FACTORS


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
def test_windows_that_are_alike_warn_nobody(before: list[float], after: list[float]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = difference(before, after)
    assert found.low is not None
    assert found.high is not None
    assert found.low <= found.mean <= found.high
    assert found.high - found.low < 1e-9


def test_one_window_has_no_interval() -> None:
    assert (difference([1.0], [2.0, 3.0]).low, difference([1.0, 2.0], [3.0]).high) == (None, None)
