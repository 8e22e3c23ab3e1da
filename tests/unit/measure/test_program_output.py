# SPDX-License-Identifier: Apache-2.0
"""Numbers and steps of the recorded output of programs."""

from __future__ import annotations

import pytest

from powerprof.measure.program_output import median_step_s, parse_number


@pytest.mark.parametrize(
    ("times_s", "step_s"), [([], 0.0), ([7.0], 0.0), ([1.0, 4.0, 5.0, 7.5], 2.5), ([0.0, 9.0, 10.0, 12.0, 15.0], 3.0)]
)
def test_the_median_distance_of_times(times_s: list[float], step_s: float) -> None:
    assert median_step_s(times_s) == step_s


@pytest.mark.parametrize(
    ("word", "value"),
    [("12.5", 12.5), ("-3", None), ("101", None), ("nan", None), ("inf", None), ("x", None), ("0", 0.0)],
)
def test_numbers_within_their_limits(word: str, value: float | None) -> None:
    assert parse_number(word, 0.0, 100.0) == value
