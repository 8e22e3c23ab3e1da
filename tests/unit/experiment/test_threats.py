# SPDX-License-Identifier: Apache-2.0
"""The uncertainty of the energy model in estimated differences."""

from __future__ import annotations

import msgspec
import pytest

from powerprof.experiment.metrics import mean_baseline, pair_figures
from powerprof.experiment.records import Block, Metric, list_pairs
from powerprof.experiment.threats import apply_other_models
from powerprof.experiment.verdict import judge_metrics
from powerprof.model.records import EnergyReading, EstimateRange
from tests.unit.experiment import builders

# Two CPUs: 1 W idle (0.5 to 4), 4 W more when both run (half to twice as much).
SPAN = EstimateRange(
    idle_watts=1.0, idle_low_watts=0.5, idle_high_watts=4.0, slope_watts=4.0, slope_low_watts=2.0, slope_high_watts=8.0
)


def blocks(queries_b: int = 100) -> list[Block]:
    """A runs 10 %, B 20 % of the time, with a little noise."""
    found = []
    for pair in range(10):
        for arm, c0, queries in (("a", 10.0, 100), ("b", 20.0, queries_b)):
            share = (c0 + 0.1 * (pair % 3)) / 100
            watts = SPAN.idle_watts + SPAN.slope_watts * share
            reading = EnergyReading(
                source="model", domain="cpus", kind="estimated", joules=2 * watts, watts=watts, range=SPAN
            )
            window = msgspec.structs.replace(builders.window(100 * share, watts=None), energy=[reading])
            found.append(builders.block(pair, "a" if arm == "a" else "b", queries=queries, one=window))
    return found


def both(measured: list[Block], name: str) -> tuple[Metric, Metric]:
    baseline = mean_baseline([], measured)
    pairs = list_pairs(measured)
    each = pair_figures(pairs, baseline)
    sampled = judge_metrics(each, "watts", 1)
    by_model = [pair_figures(*model) for model in apply_other_models(pairs, baseline)]
    widened = judge_metrics(each, "watts", 1, by_model=by_model)
    before, after = (next(m for m in metrics if m.name == name) for metrics in (sampled, widened))
    return before, after


@pytest.mark.parametrize(("name", "factor"), [("watts", 1.0), ("joules_per_query", 0.02)])
def test_between_equal_work_only_the_slope_is_uncertain(name: str, factor: float) -> None:
    sampled, widened = both(blocks(), name)
    # 10 % of 4 W; half to twice as much by the slope, and not the eightfold that the idle watts are in doubt.
    assert widened.difference.b_minus_a == pytest.approx(0.4 * factor)
    assert sampled.difference.ci95 == widened.difference.sampling_ci95
    assert widened.difference.ci95 == (pytest.approx(0.2 * factor, rel=0.01), pytest.approx(0.8 * factor, rel=0.01))
    assert (sampled.verdict, widened.verdict) == ("b_higher", "b_higher")


def test_between_unequal_work_the_idle_watts_do_not_cancel() -> None:
    # B did half as much in the same time: its share of the idle watts is twice A's, and that is anybody's guess.
    sampled, widened = both(blocks(queries_b=50), "joules_per_query")
    assert sampled.difference.ci95 is not None and widened.difference.ci95 is not None
    low, high = widened.difference.ci95
    assert low < 0.5 * sampled.difference.ci95[0] or high > 2 * sampled.difference.ci95[1]


def test_a_detectable_difference_exceeds_the_uncertainty_of_the_model() -> None:
    sampled, widened = both(blocks(queries_b=108), "joules_per_query")
    assert widened.verdict == "inconclusive"
    assert widened.difference.ci95 is not None and widened.a.mean
    assert sampled.minimum_detectable_percent is not None and widened.minimum_detectable_percent is not None
    reach = 100 * max(map(abs, widened.difference.ci95)) / widened.a.mean
    assert widened.minimum_detectable_percent > sampled.minimum_detectable_percent
    # From the mean to the end of the interval, and what the sample itself needs beyond its own.
    assert widened.minimum_detectable_percent > 0.5 * reach


def test_measured_metrics_are_left_alone() -> None:
    sampled, widened = both(blocks(), "c0_percent")
    assert sampled == widened
