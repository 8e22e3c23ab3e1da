# SPDX-License-Identifier: Apache-2.0
"""Counts of windows of which only slices were seen."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from powerprof.statistics.slices import SlicedCounts, bound_of_unseen
from powerprof.tracing.budget import Budget
from tests.programs.bounded_windows import QUERY_S, load_of, make_programs, simulate

WINDOWS = 100


def test_intervals_contain_the_truth_of_known_programs() -> None:
    """Periodic work at slice-like rates, bursts, rare wakers and storms, each next to a busy server."""
    held: dict[str, list[bool]] = {}
    for seed in range(WINDOWS):
        rng = random.Random(seed)
        length_s, budget = rng.choice([10.0, 20.0, 30.0, 60.0]), Budget(rng.choice([0.01, 0.02, 0.02, 0.05]))
        programs = make_programs(seed, length_s)
        load = load_of(programs, length_s)
        window = simulate(load, lambda at_s, load=load: 0.01 + load(at_s) * QUERY_S, budget, length_s, seed)  # type: ignore[misc]
        strata = window.controller.strata(length_s)

        starts, ends = np.array([(part.traced_from_s, part.traced_to_s) for part in strata]).T

        def count(times: np.ndarray, starts: np.ndarray = starts, ends: np.ndarray = ends) -> list[int]:  # type: ignore[type-arg]
            counted: list[int] = (np.searchsorted(times, ends) - np.searchsorted(times, starts)).tolist()
            return counted

        everything = np.sort(np.concatenate(list(programs.values())))
        counts = SlicedCounts(
            [part.weight for part in strata], (ends - starts).tolist(), count(everything), len(everything)
        )
        for name, times in programs.items():
            if sum(seen := count(times)):
                estimate = counts.estimate(seen)
                held.setdefault(name, []).append(estimate.low <= len(times) <= estimate.high)
    results = [contained for rows in held.values() for contained in rows]
    assert len(results) > 8 * WINDOWS
    assert sum(results) / len(results) >= 0.93
    assert all(sum(rows) / len(rows) >= 0.85 for rows in held.values())


@given(
    st.lists(st.tuples(st.floats(1.0, 60.0), st.integers(0, 2000), st.floats(0.0, 1.0)), min_size=1, max_size=30),
    st.integers(0, 10_000),
)
def test_the_parts_add_up_to_the_counter(slices: list[tuple[float, int, float]], unseen: int) -> None:
    weights, totals = [weight for weight, _, _ in slices], [total for _, total, _ in slices]
    whole = sum(totals) + unseen
    counts = SlicedCounts(weights, [0.3] * len(slices), totals, whole)
    kind = [round(total * share) for _, total, share in slices]
    others = [total - part for total, part in zip(totals, kind, strict=True)]
    mine, theirs = counts.estimate(kind), counts.estimate(others)
    for estimate, seen in ((mine, sum(kind)), (theirs, sum(others))):
        assert seen - 1e-6 <= estimate.low <= estimate.count + 1e-6
        assert estimate.count <= estimate.high + 1e-6
    if any(total and weight > 1.001 for weight, total, _ in slices):
        assert mine.count + theirs.count == pytest.approx(whole)
        assert mine.high <= sum(kind) + unseen + 1e-6


def test_a_window_without_slices_is_exact() -> None:
    counts = SlicedCounts([1.0, 1.0], [2.0, 3.0], [10, 20], 30)
    estimate = counts.estimate([4, 5])
    assert (estimate.count, estimate.low, estimate.high) == (9.0, 9.0, 9.0)
    assert counts.weights.tolist() == [1.0, 1.0]


def test_only_the_unseen_part_is_scaled() -> None:
    """A second was traced completely, with 1,000 exits; the slice of the rest saw 100 of 800."""
    counts = SlicedCounts([1.0, 10.0], [1.0, 0.3], [1000, 100], 1800)
    assert counts.weights.tolist() == pytest.approx([1.0, 8.0])
    assert counts.estimate([500, 10]).count == pytest.approx(580)


def test_bursts_have_wider_intervals_than_steady_work() -> None:
    weights, lengths_s, totals = [10.0] * 12, [0.3] * 12, [1000] * 12
    counts = SlicedCounts(weights, lengths_s, totals, 120_000)
    steady, bursts = counts.estimate([50] * 12), counts.estimate([600] + [0] * 11)
    assert steady.count == pytest.approx(bursts.count)
    assert bursts.high - bursts.low > 5 * (steady.high - steady.low)


def test_the_rule_of_three() -> None:
    assert bound_of_unseen(10.0) == pytest.approx(0.2996, abs=1e-4)
    assert bound_of_unseen(0.0) == math.inf
