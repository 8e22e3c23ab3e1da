# SPDX-License-Identifier: Apache-2.0
"""The offered load, the order of blocks, and the duration of experiments."""

from __future__ import annotations

from collections import Counter

import pytest
from msgspec.structs import replace

from powerprof.experiment import compare, sweep
from powerprof.experiment.options import ExperimentOptions
from powerprof.experiment.plan import Arm, Offer, block_order, choose_offer, offer_share, round_order
from powerprof.experiment.records import ConditionRecord
from powerprof.experiment.session import Session
from powerprof.system.errors import PowerprofError, UsageError
from powerprof.workloads.catalogue import find_condition
from powerprof.workloads.reading import Case, resolve
from tests.unit.experiment.builders import odd_pairs


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


CONDITION = ConditionRecord(name="index", workload="city", title="", load={}, settings={}, work="w")


def cases(*names: str) -> list[Case]:
    return [resolve(*find_condition(name)) for name in names]


def test_the_offer_follows_the_slower_condition_wherever_it_is() -> None:
    for capacities in ([20_000.0, 300.0], [300.0, 20_000.0]):
        offer = choose_offer(None, capacities, cases("index", "no-index"), ExperimentOptions())
        assert (offer.rate_hz, offer.easy_rate_hz, offer.capacities_hz) == (120.0, 120.0, tuple(capacities))
    work = choose_offer("work", [90.0, 40.0], cases("index", "no-index"), ExperimentOptions(window_s=5.0))
    assert (work.design, work.queries, work.rate_hz, work.easy_rate_hz) == ("work", 180, None, pytest.approx(16.0))
    limited = choose_offer(None, [290.0, 300.0], cases("index", "no-index"), ExperimentOptions(rate_hz=246.0))
    assert (limited.design, limited.rate_hz) == ("rate", 240.0)
    assert (
        choose_offer(None, [290.0, 300.0], cases("index", "no-index"), ExperimentOptions(rate_hz=247.0)).design
        == "work"
    )
    assert (offer_share(777.0, 30.0).rate_hz, offer_share(777.0, 30.0).capacities_hz) == (230.0, (777.0,))
    assert [offer_share(capacity, 50.0).rate_hz for capacity in (1.0, 15.0, 2470.0)] == [1.0, 8.0, 1200.0]


def test_an_experiment_takes_its_windows_and_what_is_around_them() -> None:
    options = ExperimentOptions(pairs=7, window_s=5.0, warm_up_pairs=2, baseline_windows=3, attribute_s=11.0)
    # 2 × 9 windows of 5 + 1 s, six of 4 s, and 10 s with 2 × (2 + 11) s.
    assert options.seconds(2) == pytest.approx(18 * 6.0 + 6 * 4.0 + 10.0 + 26.0)
    assert replace(options, control=True).seconds(2) == pytest.approx(options.seconds(2) + 12 * 6.0)
    assert replace(options, control=True, pairs=30).seconds(1) == pytest.approx(62 * 6.0 + 24.0 + 10.0 + 13.0)
    assert options.command_seconds(2) == pytest.approx(2 * 7 * 5.0 + 2 * 3 * 4.0)
    assert (options.most_pairs, replace(options, precision_percent=2.0).most_pairs) == (7, 28)
    short = replace(options, window_s=1.2)
    assert (options.calibrate_s, options.baseline_s, short.calibrate_s, short.baseline_s) == (2.0, 4.0, 1.0, 1.2)
    traced = replace(options, attribute_s=2.5, on_cpu=True)
    # Points and windows without a server of 5 + 1 s; 2.5 + 3.5 s of traces; 12 s of start.
    assert sweep.estimate_seconds(4, traced, baseline=True) == pytest.approx(7 * 5 * 6.0 + 7 * 4 * 6.0 + 12.0)
    assert sweep.estimate_seconds(4, replace(options, attribute_s=None), baseline=False) == pytest.approx(
        7 * 4 * 6.0 + 12.0
    )


def test_a_window_of_equal_work_lasts_as_long_as_the_slower_condition() -> None:
    horizon = compare._PairRun._horizon
    offer = Offer("work", None, 600, (40.0, 90.0), ())
    assert horizon(None, offer) == pytest.approx(1.1 * 600 / 40)  # type: ignore[arg-type]
    assert horizon(None, replace(offer, capacities_hz=(90.0, 40.0))) == pytest.approx(16.5)  # type: ignore[arg-type]
    for other in (replace(offer, design="rate"), replace(offer, queries=None), replace(offer, capacities_hz=(None,))):
        assert horizon(None, other) is None  # type: ignore[arg-type]


def test_alternating_windows_of_a_are_no_control() -> None:
    blocks = [replace(block, attempts_count=1) for block in odd_pairs(6)]
    collected = Session((CONDITION, CONDITION), "c0_percent", ExperimentOptions(), "", blocks=blocks)
    metrics = compare.judge_metrics(compare.pair_figures(collected.pairs, collected.baseline), "c0_percent", 1)
    control = compare._control(collected, metrics)
    assert control is not None and control.pairs_count == 3
    assert compare._control(replace(collected, turn_s=0.05), metrics) is None
    assert (collected.order, len(collected.pairs)) == (["a", "b"] * 6, 6)
