# SPDX-License-Identifier: Apache-2.0
"""One unknown model for two loads: the interval of a difference or ratio is that of the pairs which are possible."""

from __future__ import annotations

import math
import random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from powerprof.energy.families import find_kind, shipped_models
from powerprof.energy.model import bound_ratio, choose_model, estimate_active_share
from powerprof.energy.models_file import CpuIdentity, bound_over_range, find_corners
from powerprof.model.records import EstimateRange

MILAN = CpuIdentity("AuthenticAMD", 25, 1, 1)
SPAN = choose_model(shipped_models(), MILAN, cpu_model="EPYC 7763").span(2)


def possible(span: EstimateRange, trials: int = 4000) -> list[tuple[float, float]]:
    """Pairs drawn at random from all that is possible."""
    rng = random.Random(7)
    assert span.odds_low is not None and span.odds_high is not None
    drawn = [
        (
            rng.uniform(span.idle_low_watts, span.idle_high_watts),
            rng.uniform(span.slope_low_watts, span.slope_high_watts),
        )
        for _ in range(trials)
    ]
    return [(idle, slope) for idle, slope in drawn if span.odds_low <= idle / slope <= span.odds_high]


@pytest.mark.parametrize(("before", "after"), [(0.0, 0.1), (0.02, 0.5), (0.9, 0.1)])
def test_the_corners_hold_every_possible_pair(before: float, after: float) -> None:
    pairs = possible(SPAN)
    assert len(pairs) > 1000
    for of in (
        lambda idle, slope: idle + slope * after,
        lambda idle, slope: slope * (after - before),
        lambda idle, slope: (idle + slope * after) / (idle + slope * before),
        # Joules of a query where B did half as much in the same time.
        lambda idle, slope: (idle + slope * after) / 50 - (idle + slope * before) / 100,
    ):
        low, high = bound_over_range(SPAN, of)
        values = [of(idle, slope) for idle, slope in pairs]
        assert low - 1e-9 <= min(values) and max(values) <= high + 1e-9
        # And no more than that: the ends are nearly reached.
        assert max(values) - min(values) > 0.85 * (high - low)


def test_a_ratio_is_known_better_than_the_watts() -> None:
    a, b = (SPAN.idle_watts + SPAN.slope_watts * share for share in (0.05, 0.2))
    found = bound_ratio(a, b, SPAN)
    assert found is not None
    low, high = found
    assert low < b / a < high
    watts = [bound_over_range(SPAN, lambda idle, slope, share=share: idle + slope * share) for share in (0.05, 0.2)]
    apart = (watts[1][1] / watts[0][0]) / (watts[1][0] / watts[0][1])
    # By the ends of both for themselves it would lie within a factor of ten; by one model for both within two.
    assert apart > 10
    assert high / low < 1.6


def test_without_an_interval_of_the_ratio_the_box_is_left() -> None:
    old = msgspec.structs.replace(SPAN, odds_low=None, odds_high=None)
    assert len(find_corners(old)) == 4
    assert len(find_corners(SPAN)) > 4


@given(low=st.floats(1e-6, 1e6), factor=st.floats(1, 1e6))
def test_any_interval_leaves_corners(low: float, factor: float) -> None:
    span = msgspec.structs.replace(SPAN, odds_low=low, odds_high=low * factor)
    found = find_corners(span)
    assert found
    assert all(math.isfinite(value) for pair in found for value in pair)


def test_the_share_above_idle_has_one_model_too() -> None:
    chosen = choose_model(shipped_models(), MILAN, cpu_model="EPYC 7763")
    typical, low, high = estimate_active_share(chosen, 20.0)
    assert low < typical < high
    model = chosen.model
    assert model.odds_range is not None
    assert (low, high) == (
        pytest.approx(0.2 / (0.2 + model.odds_range[1]), rel=0.01),
        pytest.approx(0.2 / (0.2 + model.odds_range[0]), rel=0.01),
    )
    assert find_kind("7763").model().idle_watts == model.idle_watts
