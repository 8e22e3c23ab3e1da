# SPDX-License-Identifier: Apache-2.0
"""Which functions' shares grow where two sweeps part, against windows whose shares are known."""

from __future__ import annotations

import random

import pytest

from powerprof.experiment.verdict import (
    FunctionWindow,
    SampledFunction,
    build_function_window,
    compare_sweep_functions,
    mean_shares,
)
from tests.unit.report.sample_records import on_cpu


def window(seed: int, **percents: float) -> FunctionWindow:
    """A window in which these functions of the server ran, each with 0.3 points of chance."""
    chance = random.Random(seed)
    return FunctionWindow(
        window_s=1.5,
        samples_count=3000,
        functions=[
            SampledFunction(
                function=name, module="mariadbd", kernel=False, percent=p + chance.gauss(0, 0.3), total_percent=2 * p
            )
            for name, p in percents.items()
        ],
    )


def windows(first: int, **percents: float) -> list[FunctionWindow]:
    return [window(first + number, **percents) for number in range(5)]


def test_the_function_that_grew_is_found_and_by_how_much() -> None:
    few = (windows(0, lock=2.0, scan=30.0), windows(10, lock=2.0, scan=30.0))
    many = (windows(20, lock=5.0, scan=30.0), windows(30, lock=15.0, scan=30.0))
    more = (windows(40, lock=7.0, scan=30.0), windows(50, lock=21.0, scan=30.0))
    first, second = compare_sweep_functions([many, more], [few], 1)
    assert (first.function, first.verdict) == ("lock", "b_higher")
    assert (first.a_percent, first.b_percent) == pytest.approx((6.0, 18.0), abs=0.5)
    assert first.b_minus_a_percent == pytest.approx(12.0, abs=0.7)
    assert first.ci95 is not None and first.ci95[0] < 12.0 < first.ci95[1]
    assert first.elsewhere_percent == pytest.approx(0.0, abs=0.5)
    assert (first.a_total_percent, first.b_total_percent) == pytest.approx((12.0, 36.0))
    assert (second.function, second.verdict) == ("scan", "inconclusive")


def test_a_function_that_one_sweep_has_not_is_nought_there() -> None:
    (new,) = [
        one
        for one in compare_sweep_functions([(windows(0, scan=30.0), windows(10, scan=30.0, spin=4.0))], [], 1)
        if one.function == "spin"
    ]
    assert new.a_percent == 0 and new.verdict == "b_higher" and new.elsewhere_percent is None


def test_nothing_is_told_without_samples_or_without_parting() -> None:
    assert compare_sweep_functions([], [(windows(0, scan=1.0), windows(1, scan=1.0))], 1) == []
    assert compare_sweep_functions([([], windows(0, scan=1.0))], [], 1) == []


def test_a_window_keeps_shares_of_the_servers_samples() -> None:
    profile = on_cpu()
    kept = build_function_window(profile.functions, profile.window_s)
    assert kept.samples_count == sum(one.self_count for one in profile.functions)
    assert {one.function: one.percent for one in kept.functions} == {
        one.function: one.self_percent for one in profile.functions
    }
    largest, *_ = mean_shares([kept, kept]).items()
    assert largest[1] == max(one.self_percent for one in profile.functions)
