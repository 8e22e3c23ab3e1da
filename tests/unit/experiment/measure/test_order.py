# SPDX-License-Identifier: Apache-2.0
"""The order of blocks: balanced, randomised, the same by seed."""

from __future__ import annotations

from collections import Counter

import pytest

from powerprof.experiment.plan import Arm, block_order, round_order


def flat(order: list[tuple[Arm, Arm]]) -> list[Arm]:
    return [arm for pair in order for arm in pair]


@pytest.mark.parametrize("pairs", [2, 4, 6, 10, 12, 40])
def test_blocks_are_abba_or_baab_and_balanced(pairs: int) -> None:
    for seed in range(20):
        order = "".join(flat(block_order(pairs, seed)))
        blocks = [order[start : start + 4] for start in range(0, len(order), 4)]
        counts = Counter(blocks)
        assert set(counts) <= {"abba", "baab"}
        assert abs(counts["abba"] - counts["baab"]) <= 1
        assert order.count("a") == order.count("b") == pairs


def test_an_odd_pair_is_still_a_pair() -> None:
    assert Counter(flat(block_order(11, 3))) == {"a": 11, "b": 11}


def test_the_seed_fixes_the_order_and_seeds_differ() -> None:
    assert block_order(12, 7) == block_order(12, 7)
    assert len({tuple(flat(block_order(12, seed))) for seed in range(30)}) > 5


def test_neither_order_is_always_first() -> None:
    assert {block_order(2, seed)[0] for seed in range(30)} == {("a", "b"), ("b", "a")}


def test_no_pairs_is_refused() -> None:
    with pytest.raises(ValueError, match="needs a pair"):
        block_order(0, 1)


@pytest.mark.parametrize("points", [1, 2, 3, 8, 11])
def test_every_point_is_in_every_round_and_a_linear_drift_cancels_over_two(points: int) -> None:
    for seed in range(20):
        orders = round_order(points, 6, seed)
        assert all(sorted(order) == list(range(points)) for order in orders)
        places = [sum(order.index(point) for order in orders) for point in range(points)]
        assert set(places) == {3 * (points - 1)}
        # Gone on with, a sweep has the order that it was begun with.
        assert round_order(points, 4, seed) == orders[:4]
    if points > 3:
        assert len({tuple(round_order(points, 1, seed)[0]) for seed in range(20)}) > 10
        assert orders[2] not in orders[:2]
