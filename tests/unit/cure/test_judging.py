# SPDX-License-Identifier: Apache-2.0
"""Verdicts on the windows of a cure: a real difference is claimed, and an unchanged setting is not."""

from __future__ import annotations

import random

import pytest

from powerprof.cure.judge import judge_blocks
from powerprof.cure.records import Arm, CureBlock
from powerprof.experiment.claims import metric_named
from powerprof.experiment.plan import block_order
from powerprof.model.records import EnergyReading, Window

_NAMES: dict[str, Arm] = {"a": "before", "b": "cured"}
_WINDOW_S = 5.0


def blocks(generator: random.Random, before_hz: float, cured_hz: float, pairs: int = 4) -> list[CureBlock]:
    """Return windows of a thread with a rate that drifts and wanders; the idle exits of the host scatter more."""
    made = []
    level, drift = 1.0, generator.gauss(0, 0.01)
    for pair, arms in enumerate(block_order(pairs, generator.randrange(1 << 30))):
        for arm in arms:
            level += drift + generator.gauss(0, 0.005)
            rate = (before_hz if _NAMES[arm] == "before" else cured_hz) * level
            count = max(0, round(generator.gauss(rate * _WINDOW_S, (rate * _WINDOW_S) ** 0.5 / 3)))
            window = Window(
                started_at="2026-01-01T00:00:00.000Z",
                window_s=_WINDOW_S,
                cpus=2,
                c0_percent=5 + generator.gauss(0, 1),
                idle_percent=95.0,
                wakeups_hz=300 * level + generator.gauss(0, 30),
                states=[],
                energy=[
                    EnergyReading(source="rapl", domain="package-0", kind="measured", joules=50.0, watts=10 + level)
                ],
            )
            made.append(
                CureBlock(
                    pair=pair,
                    arm=_NAMES[arm],
                    window=window,
                    counted_s=_WINDOW_S,
                    thread_wakings_count=count,
                    target_wakings_count=count + 100,
                    traced_wakings_count=count,
                    traced_s=_WINDOW_S,
                )
            )
    return made


def test_claim_a_saving_with_its_interval() -> None:
    metrics = judge_blocks(blocks(random.Random(1), 98.0, 18.0), "thread_wakings_hz", 1)
    first = metrics[0]
    assert first.name == "thread_wakings_hz"
    assert first.verdict == "b_lower"
    assert first.difference.b_minus_a == pytest.approx(-80, rel=0.1)  # the level drifts
    low, high = first.difference.ci95 or (0.0, 0.0)
    assert low <= (first.difference.b_minus_a or 0.0) <= high < 0
    assert high - low < 20
    watts = metric_named(metrics, "watts")
    assert watts is not None
    assert (watts.kind, watts.source) == ("measured", "rapl")


@pytest.mark.parametrize("pairs", [3, 4])
def test_claim_no_change_of_an_unchanged_setting(pairs: int) -> None:
    generator = random.Random(pairs)
    tried = [judge_blocks(blocks(generator, 98.0, 98.0, pairs), "thread_wakings_hz", 1) for _ in range(60)]
    claimed = [any(metric.verdict != "inconclusive" for metric in metrics) for metrics in tried]
    assert not any(claimed[:20])
    assert sum(claimed) <= 2  # 1.5 % of 60 is one


def test_widen_intervals_of_constant_counts_by_one_count() -> None:
    generator = random.Random(0)
    still = [
        CureBlock(
            pair=pair,
            arm=arm,
            window=blocks(generator, 1.0, 1.0, 1)[0].window,
            counted_s=_WINDOW_S,
            thread_wakings_count=500 if arm == "before" else cured,
            target_wakings_count=0,
        )
        for cured in (100,)
        for pair in range(3)
        for arm in ("before", "cured")
    ]
    first = judge_blocks(still, "thread_wakings_hz", 1)[0]
    assert first.verdict == "b_lower"
    low, high = first.difference.ci95 or (0.0, 0.0)
    assert 0.2 <= high - low <= 1.5  # The other rows scatter.


def test_judge_complete_pairs_only() -> None:
    assert judge_blocks(blocks(random.Random(0), 9.0, 3.0)[:1], "thread_wakings_hz", 1) == []
