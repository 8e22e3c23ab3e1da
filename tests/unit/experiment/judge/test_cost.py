# SPDX-License-Identifier: Apache-2.0
"""What an idle run may claim, on made-up hosts: quiet ones, drifting ones, and ones that wander."""

from __future__ import annotations

import random

import pytest

from powerprof.experiment.phases import judge_cost


def wandering(generator: random.Random, count: int, step: float, noise: float = 1.5) -> list[float]:
    """Windows of a host that does nothing else than be itself: its figure walks by `step` a window."""
    level, found = 40.0, []
    for _ in range(count):
        level += generator.gauss(0, step)
        found.append(level + generator.gauss(0, noise))
    return found


@pytest.mark.parametrize("step", [0.0, 0.5, 1.0, 3.0])
@pytest.mark.parametrize("repeat", [2, 3, 5])
def test_a_host_beside_itself_is_hardly_ever_said_to_cost(step: float, repeat: int) -> None:
    """No server was started: of 200 such runs at most 5 % may claim a cost. 18 of 200 is what 5 % gives once in 100."""
    generator = random.Random(f"{step} {repeat}")
    claimed = 0
    for _ in range(200):
        windows = wandering(generator, 3 * repeat + max(2, repeat // 2), step)
        before, measured, after = windows[:repeat], windows[2 * repeat : 3 * repeat], windows[3 * repeat :]
        claimed += judge_cost(before, measured, after) == "costs"
    assert claimed <= 10


def test_a_cost_is_found_where_there_is_one() -> None:
    generator = random.Random(5)
    found = 0
    for _ in range(100):
        before, after = (wandering(generator, count, 0.0) for count in (5, 2))
        measured = [value + 10.0 for value in wandering(generator, 5, 0.0)]
        found += judge_cost(before, measured, after) == "costs"
    assert found >= 90  # 10 wake-ups/s against a scatter of 1.5, of five windows that may be correlated


@pytest.mark.parametrize(
    ("before", "measured", "after", "said"),
    [
        ([40.0, 41.0, 40.5], [20.0, 21.0, 20.5], [40.0, 41.0], "nothing"),  # below zero: no server gives back
        ([40.0, 41.0, 40.5], [40.2, 41.1, 40.4], [40.0, 41.0], "nothing"),
        ([40.0, 41.0, 40.5], [60.0, 61.0, 60.5], [60.0, 61.0], "drift"),
        ([40.0, 41.0, 40.5], [60.0, 61.0, 60.5], [20.0, 21.0], "drift"),
        ([40.0, 41.0, 40.5], [60.0, 61.0, 60.5], [40.5, 41.5], "costs"),
        ([40.0, 41.0, 40.5], [60.0, 61.0, 60.5], [], "costs"),  # a given server: no baseline without it
        ([40.0], [60.0], [], "single"),
        ([], [60.0, 61.0], [], "single"),
    ],
)
def test_what_is_said(before: list[float], measured: list[float], after: list[float], said: str) -> None:
    assert judge_cost(before, measured, after) == said
