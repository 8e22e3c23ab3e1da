# SPDX-License-Identifier: Apache-2.0
"""The order of blocks: balanced, randomised, the same by seed."""

from __future__ import annotations

from collections import Counter

import pytest

from powerprof.experiment.measure.order import Arm, block_order


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
