# SPDX-License-Identifier: Apache-2.0
"""The offered rate is one that the slower condition keeps up with, or equal work is measured."""

from __future__ import annotations

from dataclasses import replace

import pytest

from powerprof.experiment.options import ExperimentOptions
from powerprof.experiment.plan import choose_offer
from powerprof.system.errors import PowerprofError, UsageError
from powerprof.workloads.catalogue import find_condition
from powerprof.workloads.reading import Case, resolve

OPTIONS = ExperimentOptions()


def _cases() -> list[Case]:
    return [resolve(*find_condition(name)) for name in ("index", "no-index")]


def test_the_slower_one_decides_the_rate() -> None:
    offer = choose_offer(None, [20_000.0, 300.0], _cases(), OPTIONS)
    assert (offer.design, offer.rate_hz, offer.queries) == ("rate", 120.0, None)


def test_the_workload_limits_the_rate() -> None:
    assert choose_offer(None, [20_000.0, 10_000.0], _cases(), OPTIONS).rate_hz == 200.0


def test_a_slow_condition_leads_to_equal_work_and_says_so() -> None:
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


def test_equal_work_takes_the_number_that_is_asked_for() -> None:
    assert choose_offer("work", [20_000.0, 300.0], _cases(), replace(OPTIONS, queries=77)).queries == 77


@pytest.mark.parametrize(
    "wrong",
    [{"pairs": 0}, {"precision_percent": 0.0}, {"design": "work", "rate_hz": 5.0}, {"design": "rate", "queries": 5}],
)
def test_senseless_options_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(UsageError):
        ExperimentOptions(**wrong)  # type: ignore[arg-type]
