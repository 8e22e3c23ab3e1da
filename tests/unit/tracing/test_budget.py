# SPDX-License-Identifier: Apache-2.0
"""A cost that holds: the controller of slices in simulated windows."""

from __future__ import annotations

import math
import random
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from powerprof.tracing.budget import EXCESS, LEAST_CPUS, Budget, Reading, SliceController, Stratum
from tests.programs import bounded_windows
from tests.programs.bounded_windows import EXIT_S, QUERY_S, find_worst_span, make_jumping_load, simulate

WINDOWS = 200


def test_no_ten_seconds_exceed_the_budget_by_more_than_a_quarter() -> None:
    worst = []
    for seed in range(WINDOWS):
        rng = random.Random(seed)
        length_s, budget = rng.choice([10.0, 20.0, 40.0, 60.0]), Budget(rng.choice([0.01, 0.02, 0.02, 0.05]))
        window = simulate(*make_jumping_load(rng, length_s), budget, length_s, seed)
        worst.append(find_worst_span(window, budget))
    assert max(worst) <= 1 + EXCESS


def test_a_load_below_the_budget_is_traced_completely() -> None:
    budget = Budget(0.02)
    rate_hz = 0.5 * budget.share * LEAST_CPUS / EXIT_S
    window = simulate(lambda at_s: rate_hz, lambda at_s: 0.01, budget, 30.0, 1)
    assert all(is_tracing for *_, is_tracing in window.moments)
    (stratum,) = window.controller.strata(30.0)
    assert (stratum.start_s, stratum.end_s, stratum.weight) == (0.0, 30.0, 1.0)


@pytest.mark.parametrize(("share", "least", "most"), [(0.01, 0.004, 0.012), (0.02, 0.012, 0.022)])
def test_a_constant_load_costs_most_of_the_budget(share: float, least: float, most: float) -> None:
    """12,000 exits and queries per second would cost 5.5 %."""
    window = simulate(lambda at_s: 12_000.0, lambda at_s: 12_000 * QUERY_S, Budget(share), 60.0, 3)
    _, spent_s, used_s, _ = window.moments[-1]
    assert least <= spent_s / used_s <= most


@pytest.mark.parametrize("seed", range(5))
def test_tracing_without_slices_begins_again_after_a_storm(seed: int) -> None:
    """At once if the ten seconds with the end of the storm have room for it, else after them."""
    window = simulate(
        lambda at_s: 15_000.0 if at_s < 10 else 100.0,
        lambda at_s: 15_000 * QUERY_S if at_s < 10 else 0.01,
        Budget(0.02),
        30.0,
        seed,
    )
    assert not all(is_tracing for at_s, *_, is_tracing in window.moments if at_s < 10)
    assert all(is_tracing for at_s, *_, is_tracing in window.moments if at_s > 20)


def test_a_storm_is_sliced_within_a_second() -> None:
    window = simulate(
        lambda at_s: 100.0 if at_s < 10 else 20_000.0, lambda at_s: 0.01 if at_s < 10 else 0.9, Budget(0.01), 20.0, 5
    )
    assert all(is_tracing for at_s, *_, is_tracing in window.moments if at_s < 10)
    assert not all(is_tracing for at_s, *_, is_tracing in window.moments if 10 < at_s < 11)


@given(st.integers(0, 1 << 30), st.sampled_from([8.0, 15.0, 40.0]), st.sampled_from([0.005, 0.01, 0.02]))
def test_strata_cover_the_window_without_overlap(seed: int, length_s: float, share: float) -> None:
    rng = random.Random(seed)
    window = simulate(*make_jumping_load(rng, length_s), Budget(share), length_s, seed)
    strata = window.controller.strata(length_s)
    assert strata[0].start_s == 0.0 and strata[-1].end_s == pytest.approx(length_s, abs=0.05)
    for earlier, later in pairwise(strata):
        assert earlier.end_s == later.start_s and earlier.traced_to_s <= later.traced_from_s
    assert all(
        stratum.start_s <= stratum.traced_from_s <= stratum.traced_to_s <= stratum.end_s + 1e-9 for stratum in strata
    )
    traced_s = sum(stratum.traced_to_s - stratum.traced_from_s for stratum in strata)
    on_s = sum(0.005 for *_, is_tracing in window.moments if is_tracing)
    assert traced_s == pytest.approx(on_s, abs=0.02 * (len(strata) + 1))


@pytest.mark.parametrize("period_s", [0.5, 1.0, 2.0, 3.0, 7.0])
def test_slices_meet_each_phase_of_periodic_work(period_s: float) -> None:
    """Otherwise work of that period would always or never be seen."""
    phases = []
    for seed in range(40):
        window = simulate(lambda at_s: 12_000.0, lambda at_s: 0.6, Budget(0.02), 60.0, seed)
        phases += [part.traced_from_s % period_s / period_s for part in window.controller.strata(60.0)[1:]]
    counts, _ = np.histogram(phases, bins=5, range=(0.0, 1.0))
    assert len(phases) > 500 and counts.min() > 0.75 * len(phases) / 5


def test_a_budget_that_allows_no_slice_detaches() -> None:
    """At 100,000 exits a second, for a target that uses nothing."""
    window = simulate(lambda at_s: 100_000.0, lambda at_s: 0.0, Budget(0.001), 20.0, 1)
    assert not window.moments[-1][3]
    assert [part.end_s for part in window.controller.strata(20.0)][-1] == 20.0


def test_the_weight_of_a_stratum() -> None:
    assert Stratum(2.0, 6.0, 3.0, 3.5).weight == 8.0


def test_the_first_look_is_early() -> None:
    controller = SliceController(Budget(0.02), 1)
    assert controller.next_look_s <= 0.25
    assert controller.look(Reading(0.25, 1e-5, 1e-5, 0.1, 50))


def test_the_simulated_wakings_are_within_the_window() -> None:
    for times in bounded_windows.make_programs(3, 20.0).values():
        assert times[0] >= 0 and times[-1] <= 20.0 and (times[1:] >= times[:-1]).all()


@pytest.mark.parametrize(("end_s", "kept_count"), [(60.0, 2), (math.inf, 0)])
def test_only_a_window_with_an_end_keeps_its_slices(end_s: float, kept_count: int) -> None:
    controller = SliceController(Budget(0.02), 1, end_s)
    for at_s in (1.0, 2.0, 3.0, 4.0):
        controller.look(Reading(at_s, 0.0, 0.0, 0.0, 0.0))
        controller.switched(Reading(at_s, 0.0, 0.0, 0.0, 0.0))
    assert len(controller._traced) == kept_count
