# SPDX-License-Identifier: Apache-2.0
"""Functions that grew or shrank over repeated windows."""

from __future__ import annotations

import random

import pytest

from powerprof.attribution.profile import FunctionShare
from powerprof.experiment.records import Arm
from powerprof.experiment.verdict import SampledWindow, compare_functions

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


def test_what_one_condition_only_runs_has_grown_and_what_both_run_has_not() -> None:
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


def test_a_condition_with_itself_has_changed_nowhere() -> None:
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
