# SPDX-License-Identifier: Apache-2.0
"""The prediction of the savings of a cure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from powerprof.cure import prediction
from powerprof.cure.prediction import explain_no_trial, waits_by_wall_clock
from powerprof.cure.records import CurePrediction
from tests.unit.cure.test_judge import plan


@pytest.mark.parametrize(
    ("now", "then", "reason"),
    [
        (98.0, 18.0, None),
        (98.0, 97.1, "no_saving"),
        (98.0, 97.0, None),
        (2.0, 1.96, "no_saving"),
        (2.0, 1.94, None),
        (18.0, 98.0, "no_saving"),
    ],
)
def test_a_trial_needs_a_saving(now: float, then: float, reason: str | None) -> None:
    assert explain_no_trial(plan(), CurePrediction(now_hz=now, then_hz=then, is_bound=False)) == reason
    assert explain_no_trial(plan(), None) is None
    assert explain_no_trial(plan(before="ON", value="1"), None) == "same_value"


@pytest.mark.parametrize(
    ("text", "by_wall_clock"),
    [("202 0x7f 0x189 0x0", True), ("202 0x7f 0x89 0x0", False), ("7 0x7f 0x189 0x0", None), ("202 0x7f ? 0x0", None)],
)
def test_a_wait_by_the_wall_clock_has_its_flag(
    text: str,
    by_wall_clock: bool | None,
    fake_tree: Callable[[Mapping[str, str]], Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fake_tree({"proc/71/task/72/syscall": f"{text}\n"})
    monkeypatch.setattr(prediction.platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(prediction, "_MAX_READS", 2)
    assert waits_by_wall_clock(71, 72) is by_wall_clock
