# SPDX-License-Identifier: Apache-2.0
"""How long something takes, and how long it still takes."""

from __future__ import annotations

import time

import pytest

from powerprof.model.text import approximate_time, count_down


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "10 s"), (31, "40 s"), (89.9, "90 s"), (90, "2 min"), (5399, "90 min"), (9000, "2.5 h")]
)
def test_a_time_is_round(seconds: float, text: str) -> None:
    assert approximate_time(seconds) == f"about {text}"


def test_progress_counts_down_to_the_end_of_the_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    now, lines = [1000.0], list[str]()
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    say = count_down(lines.append, 300.0)
    for passed_s in (0.0, 150.0, 270.0, 400.0):
        now[0] = 1000.0 + passed_s
        say("window")
    assert lines == ["window (about 5 min left)", "window (about 2 min left)", "window (about 30 s left)", "window"]
