# SPDX-License-Identifier: Apache-2.0
"""The highest rate that holds a limit."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest
from msgspec.structs import replace

from powerprof.cli.sweep import parse_limit
from powerprof.experiment.records import ConditionRecord
from powerprof.experiment.sweep_until import (
    Limit,
    Saturation,
    Trial,
    compare_rates,
    condition_rate,
    halve_rates,
    highest_rate,
    judge_trial,
)
from powerprof.report.saturation import answer_of
from powerprof.system.errors import UsageError
from tests.unit.experiment.builders import odd_block

P95 = Limit(metric="latency_p95_ms", at_most=5.0, unit="ms")
CONDITION = ConditionRecord(name="index", workload="city", title="", load={}, settings={}, work="1")


def window(rate_hz: float, number: int = 0, capacity_hz: float = 1000.0, noise: float = 0.0, seed: int = 0) -> Trial:
    """A window of an M/M/1 queue: 5 % of its queries take longer than ln 20 / (µ − λ)."""
    free = capacity_hz - rate_hz
    p95_ms = 1e3 * math.log(20) / free if free > 0 else 1e6
    p95_ms *= math.exp(random.Random(f"{seed} {number} {rate_hz}").gauss(0, noise))
    held = p95_ms <= P95.at_most
    return Trial(round=number, rate_hz=rate_hz, finished_hz=min(rate_hz, capacity_hz), value=p95_ms, held=held)


def test_the_interval_of_noisy_searches_holds_the_truth() -> None:
    """Of latencies that scatter by 20 % nine of ten intervals hold the rate at which half of the windows hold."""
    truth, within = 1000.0 - 1e3 * math.log(20) / 5.0, 0
    for seed in range(60):
        rounds = [
            halve_rates(lambda rate, number=number, seed=seed: window(rate, number, noise=0.2, seed=seed), 1000.0, 7)
            for number in range(6)
        ]
        found = condition_rate("index", CONDITION, 1000.0, rounds).rate_hz
        assert found is not None and found.low is not None and found.high is not None
        within += found.low - 4 <= truth <= found.high + 4  # half a step of the search
    assert within >= 54


def test_limits_that_no_rate_or_every_rate_holds() -> None:
    none = halve_rates(lambda rate: Trial(round=0, rate_hz=rate, finished_hz=rate, value=9.0, held=False), 100.0, 5)
    every = halve_rates(lambda rate: Trial(round=0, rate_hz=rate, finished_hz=rate, value=1.0, held=True), 100.0, 5)
    assert highest_rate(none, 100.0) is None
    low = condition_rate("index", CONDITION, 100.0, [none, none])
    high = condition_rate("index", CONDITION, 100.0, [every, every])
    assert (low.rate_hz, low.limited, high.limited) == (None, True, False)
    assert answer_of(_record(low)) == ("index exceeds 5 ms of p95 latency at all tried rates, in 2 of 2 rounds.")
    assert answer_of(_record(high)) == "index meets 5 ms of p95 latency even at full speed, 100 queries/s."


def test_few_queries_a_second_are_not_tried_twice() -> None:
    trials = halve_rates(lambda rate: Trial(round=0, rate_hz=rate, finished_hz=rate, value=1.0, held=rate <= 2), 4.0, 6)
    assert [trial.rate_hz for trial in trials] == [2.0, 3.0]
    assert highest_rate(trials, 4.0) == 2.5


def _record(found: object) -> Saturation:
    return Saturation(id=None, command="saturate", started_at="2026-01-01T00:00:00Z", limit=P95, a=found)  # type: ignore[arg-type]


def test_limits_are_parsed_in_any_unit() -> None:
    assert parse_limit("p95=5ms") == P95 == parse_limit("p95=0.005s") == parse_limit("p95=5000us")
    for text in ("p95=0ms", "p95=5", "p42=5ms", "cpu=0%", "cpu=100%", "cpu=", "", "p95=-1ms", "p95=٥ms"):
        with pytest.raises(UsageError):
            parse_limit(text)


LIMIT = Limit(metric="latency_p95_ms", at_most=5.0, unit="ms")


def trial(number: int, rate_hz: float, held: bool) -> Trial:
    return Trial(round=number, rate_hz=rate_hz, finished_hz=rate_hz, value=1.0, held=held)


@pytest.mark.parametrize(
    ("metric", "value"),
    [("latency_p50_ms", 1.1), ("latency_p95_ms", 2.9), ("latency_p99_ms", 7.3), ("c0_percent", 31.7)],
)
def test_a_trial_judges_the_limited_metric(metric: Any, value: float) -> None:
    block = replace(odd_block(), queries=230)
    for most, held in ((value + 0.01, True), (value - 0.01, False)):
        found = judge_trial(Limit(metric=metric, at_most=most, unit="ms"), block, 4, 100.0)
        assert (found.value, found.held, found.round, found.rate_hz) == (pytest.approx(value), held, 4, 100.0)
        assert found.finished_hz == pytest.approx(100.0)
    # Three deviations of a Poisson count, or a tenth: whichever permits more.
    for rate_hz, least in ((100.0, 100 - 3 * (100 / 2.3) ** 0.5), (1e6, 9e5)):
        for finished, held in ((least + 1, True), (least - 1, False)):
            own = replace(block, queries=round(finished * 2.3))
            assert judge_trial(LIMIT, own, 0, rate_hz).held is held
    unknown = judge_trial(LIMIT, replace(block, queries=None), 0, 100.0)
    assert (unknown.finished_hz, unknown.held) == (None, False)


@pytest.mark.parametrize("limit_hz", [0.5, 37.0, 640.0, 999.0])
def test_a_search_ends_between_the_last_rate_that_held_and_the_next(limit_hz: float) -> None:
    trials = halve_rates(lambda rate_hz: trial(0, rate_hz, rate_hz <= limit_hz), 1000.0, 7)
    found = highest_rate(trials, 1000.0)
    if limit_hz < 1:
        assert found is None
        return
    held = max(each.rate_hz for each in trials if each.held)
    failed = min([each.rate_hz for each in trials if not each.held] or [1000.0])
    assert found == (held + failed) / 2 and held <= limit_hz < failed + 1
    assert failed - held <= 1000 / 2**7 + 1


def test_a_condition_has_the_mean_rate_of_its_rounds() -> None:
    rounds = [
        [trial(0, 40.0, True), trial(0, 60.0, False)],
        [trial(1, 50.0, True), trial(1, 64.0, False), trial(1, 57.0, True)],
    ]
    found = condition_rate("index", CONDITION, 80.0, rounds)
    assert (found.values, found.capacity_hz, found.limited) == ([50.0, 60.5], 80.0, True)
    assert found.rate_hz is not None and found.rate_hz.mean == pytest.approx(55.25)
    assert found.resolution_hz == pytest.approx(80 / 2**3) and len(found.trials) == 5
    free = condition_rate("index", CONDITION, 80.0, [[trial(0, 40.0, True)], [trial(1, 60.0, False)]])
    assert (free.values, free.rate_hz) == ([60.0, None], None)
    assert not condition_rate("index", CONDITION, 4.0, [[trial(0, 3.0, True)]]).limited
    quicker = replace(found, values=[100.0, 110.0, 7.0])
    ratio, verdict = compare_rates(found, quicker, 1)
    assert ratio is not None and ratio.b_over_a == pytest.approx(105 / 55.25) and verdict == "inconclusive"
    three = [replace(found, values=values) for values in ([50.0, 51.0, 50.5], [99.0, 102.0, 100.5])]
    assert compare_rates(*three, 1)[1] == "b_higher" and compare_rates(*three[::-1], 1)[1] == "b_lower"  # type: ignore[misc]
    ratio, _ = compare_rates(*three, 1)  # type: ignore[misc]
    assert ratio is not None and ratio.ci95 is not None and ratio.ci95[0] < ratio.b_over_a < ratio.ci95[1]
    assert compare_rates(found, replace(found, values=[None, 60.0]), 1) == (None, None)


def test_rates_are_known_to_their_resolutions() -> None:
    """Rounds of one search end at the same rates. Capacities that differ by chance give each side its own rates."""
    side = condition_rate("index", CONDITION, 1000.0, [[window(500.0)]])
    alike = [replace(side, values=[rate] * 3, resolution_hz=16.0) for rate in (500.0, 510.0)]
    assert compare_rates(alike[0], alike[1], 1)[1] == "inconclusive"
    # The coarse resolution of a quick side is not that of a slow one.
    apart = [
        replace(side, values=[4000.0, 4100.0, 3900.0], resolution_hz=125.0),
        replace(side, values=[60.0, 62.0, 61.0], resolution_hz=2.0),
    ]
    assert compare_rates(apart[0], apart[1], 1)[1] == "b_lower"
    # Servers that were started once are judged like two runs.
    starts = [replace(side, values=[100.0 + rate, 101.0 + rate, 99.5 + rate], resolution_hz=0.1) for rate in (0, 10)]
    assert compare_rates(*starts, 1)[1] == "b_higher"
    ratio, verdict = compare_rates(*starts, 1, in_rounds=False)
    assert verdict == "inconclusive" and ratio is not None and ratio.ci95 is not None
    assert ratio.ci95[0] < 1 < ratio.ci95[1]
