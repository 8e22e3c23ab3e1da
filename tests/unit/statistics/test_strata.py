# SPDX-License-Identifier: Apache-2.0
"""What two conditions have in common over several settings."""

from __future__ import annotations

import random

import pytest

from powerprof.statistics.rates import pool_differences


def test_settings_of_different_size_count_alike() -> None:
    found = pool_differences([([10.0, 10.0, 10.0], [30.0, 30.0, 30.0]), ([1000.0, 1000.0], [3000.0, 3000.0])])
    assert found is not None
    assert found.percent == pytest.approx(100.0)
    # No window scatters: they are known to the step that they show, 20 and 2000.
    assert found.interval is not None and found.interval.low < 100.0 < found.interval.high
    assert found.p_value is not None and 0.0 < found.p_value < 0.05


def test_from_nothing_to_something_is_known() -> None:
    found = pool_differences([([0.0, 0.0, 0.0], [5.0, 6.0, 7.0]), ([0.0, 0.0], [0.0, 0.0])])
    assert found is not None
    assert found.percent == pytest.approx(100.0)  # 200 at one of two settings
    assert found.interval is not None
    assert found.interval.low > 0


def test_one_window_a_setting_gives_no_interval_and_none_no_answer() -> None:
    found = pool_differences([([1.0], [2.0])])
    assert found is not None
    assert found.interval is None
    assert found.p_value is None
    assert pool_differences([([], [1.0])]) is None


def test_its_interval_holds_what_is_true_as_often_as_it_says() -> None:
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
