# SPDX-License-Identifier: Apache-2.0
"""The offered load and the order of blocks."""

from __future__ import annotations

from collections import Counter

import pytest
from msgspec.structs import replace

from powerprof.experiment.options import ExperimentOptions
from powerprof.experiment.plan import Arm, block_order, choose_offer, round_order
from powerprof.system.errors import PowerprofError, UsageError
from powerprof.workloads.catalogue import find_condition
from powerprof.workloads.reading import Case, resolve


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


OPTIONS = ExperimentOptions()


def _cases() -> list[Case]:
    return [resolve(*find_condition(name)) for name in ("index", "no-index")]


def test_the_slower_one_decides_the_rate() -> None:
    offer = choose_offer(None, [20_000.0, 300.0], _cases(), OPTIONS)
    assert (offer.design, offer.rate_hz, offer.queries) == ("rate", 120.0, None)


def test_the_workload_limits_the_rate() -> None:
    assert choose_offer(None, [20_000.0, 10_000.0], _cases(), OPTIONS).rate_hz == 200.0


def test_a_slow_condition_leads_to_equal_work_with_a_note() -> None:
    offer = choose_offer(None, [300.0, 2.0], _cases(), OPTIONS)
    assert offer.design == "work"
    assert offer.queries == 11  # 2/s × 6.4 s × 0.9
    assert "no-index does only 2 queries/s" in offer.notes[0]


def test_a_rate_that_cannot_be_kept_is_saturation() -> None:
    offer = choose_offer(None, [20_000.0, 300.0], _cases(), replace(OPTIONS, rate_hz=290.0))
    assert offer.design == "work"
    assert "no-index is saturated: it does 300 queries/s, 290 were to be offered" in offer.notes[0]
    with pytest.raises(PowerprofError, match="saturated"):
        choose_offer("rate", [20_000.0, 300.0], _cases(), replace(OPTIONS, rate_hz=290.0))


def test_a_given_rate_is_kept() -> None:
    assert choose_offer(None, [20_000.0, 300.0], _cases(), replace(OPTIONS, rate_hz=40.0)).rate_hz == 40.0


def test_equal_work_takes_the_requested_number() -> None:
    assert choose_offer("work", [20_000.0, 300.0], _cases(), replace(OPTIONS, queries=77)).queries == 77


@pytest.mark.parametrize(
    "wrong",
    [{"pairs": 0}, {"precision_percent": 0.0}, {"design": "work", "rate_hz": 5.0}, {"design": "rate", "queries": 5}],
)
def test_senseless_options_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(UsageError):
        ExperimentOptions(**wrong)  # type: ignore[arg-type]
