# SPDX-License-Identifier: Apache-2.0
"""Changes of the functions of a server, between conditions and between sweeps."""

from __future__ import annotations

import random

import pytest

from powerprof.attribution.profile import FunctionShare
from powerprof.experiment.records import Arm
from powerprof.experiment.verdict import (
    FunctionWindow,
    SampledFunction,
    SampledWindow,
    build_function_window,
    compare_functions,
    compare_sweep_functions,
    mean_shares,
)
from tests.unit.report.sample_records import on_cpu

_ARMS: tuple[Arm, Arm] = ("a", "b")


def _share(name: str, own: int, total: int, *, kernel: bool = False) -> FunctionShare:
    return FunctionShare(
        function=name,
        module="vmlinux" if kernel else "mariadbd",
        kernel=kernel,
        self_count=own,
        self_percent=0.0,
        low_percent=None,
        high_percent=None,
        self_ms=2.0 * own,
        total_count=total,
        total_percent=0.0,
    )


def _windows(draw: random.Random, faults: int) -> list[SampledWindow]:
    """Eight pairs of 2 s: `scan` is the same in both, `clear_page` is in B only."""
    found = []
    for _ in range(8):
        for arm in _ARMS:
            shares = [_share("scan", 100 + draw.randint(-8, 8), 300)]
            if arm == "b":
                shares.append(_share("clear_page", faults + draw.randint(-3, 3), faults, kernel=True))
            found.append(SampledWindow(arm, 2.0, shares))
    return found


def test_functions_of_one_condition_only_have_grown() -> None:
    found = compare_functions(_windows(random.Random(3), 50), seed=1)
    first, second = found.functions
    assert (first.function, first.kernel, first.verdict) == ("clear_page", True, "b_higher")
    # 50 samples of 2 ms in 2 s are 5 % of one CPU.
    assert first.a_percent == 0.0
    assert first.b_percent == pytest.approx(5.0, abs=0.15)
    assert first.ci95 is not None
    assert 4.5 < first.ci95[0] < first.b_minus_a_percent < first.ci95[1] < 5.5
    assert (second.function, second.verdict) == ("scan", "inconclusive")
    assert second.a_percent == pytest.approx(10.0, abs=0.5)
    assert second.a_total_percent == pytest.approx(30.0)
    assert found.windows_count == 8


def test_a_condition_compared_with_itself_has_no_changed_function() -> None:
    draw = random.Random(5)
    false = 0
    for _ in range(40):
        windows = [
            SampledWindow(arm, 2.0, [_share(f"f{n}", draw.randint(5, 15), 20) for n in range(20)])
            for _ in range(8)
            for arm in _ARMS
        ]
        false += any(one.verdict != "inconclusive" for one in compare_functions(windows, seed=1).functions)
    # The family errs in one of a hundred or so, and Student's is not exact for counts.
    assert false <= 2


def test_functions_with_too_few_samples_are_left_out() -> None:
    windows = [SampledWindow("a", 1.0, [_share("rare", 1, 1)]), SampledWindow("b", 1.0, [_share("rare", 2, 2)])]
    assert compare_functions(windows, seed=1).functions == []


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


def test_a_grown_function_is_found_with_its_difference() -> None:
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


def test_a_missing_function_counts_as_zero() -> None:
    (new,) = [
        one
        for one in compare_sweep_functions([(windows(0, scan=30.0), windows(10, scan=30.0, spin=4.0))], [], 1)
        if one.function == "spin"
    ]
    assert new.a_percent == 0 and new.verdict == "b_higher" and new.elsewhere_percent is None


def test_no_functions_without_samples_or_divergence() -> None:
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
