# SPDX-License-Identifier: Apache-2.0
"""How often the intervals hold the truth, and how often a report of nothing has a false word, by simulation.

    .venv/bin/python -m pytest -m soak -s tests/soak/test_coverage.py

`-s` prints the tables of docs/dev/experiments.md. POWERPROF_TRIALS: of each cell, 2,000 else.
"""

from __future__ import annotations

import math
import os

import pytest

from powerprof.statistics import intervals
from tests.unit.statistics.coverage import DRIFTS, ROWS, TRIALS, coverage, false_words, told_apart

pytestmark = pytest.mark.soak

TRIALS_COUNT = int(os.environ.get("POWERPROF_TRIALS", "2000"))


def _three_deviations(share: float) -> float:
    return 3 * math.sqrt(share * (1 - share) / TRIALS_COUNT)


@pytest.fixture(autouse=True)
def fewer_resamples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(intervals, "RESAMPLES", 599)


@pytest.mark.parametrize("name", TRIALS)
def test_intervals_hold_the_truth(name: str) -> None:
    shares = {count: coverage(name, count, TRIALS_COUNT) for count in TRIALS[name][1]}
    print(f"| {name} | " + ", ".join(f"{count}: {share:.3f}" for count, share in shares.items()) + " |")
    assert min(shares.values()) >= 0.93 - _three_deviations(0.93), shares


@pytest.mark.parametrize(("kind", "paired"), [(kind, paired) for kind, (_, ways) in ROWS.items() for paired in ways])
def test_a_report_of_nothing_has_a_false_word_in_one_of_twenty(kind: str, paired: bool) -> None:
    trials = TRIALS_COUNT // 2
    shares = {count: false_words(kind, count, trials, paired=paired) for count in (3, 5, 10)}
    each = ", ".join(f"{count}: {share:.3f}" for count, share in shares.items())
    print(f"| {kind}, {'pairs' if paired else 'apart'} | {each} |")
    assert max(shares.values()) <= 0.05 + math.sqrt(2) * _three_deviations(0.05), shares


@pytest.mark.parametrize("drift", DRIFTS)
def test_eight_equal_points_of_a_sweep_are_told_apart_in_one_of_twenty(drift: str) -> None:
    shares = {rounds: told_apart(drift, rounds, TRIALS_COUNT // 2) for rounds in (3, 5)}
    unequal = told_apart(drift, 5, TRIALS_COUNT // 2, scatters=(0.01,) * 4 + (0.1,) * 4)
    print(f"| {drift} | {shares[3]:.3f} | {shares[5]:.3f} | {unequal:.3f} |")
    assert max(*shares.values(), unequal) <= 0.05 + math.sqrt(2) * _three_deviations(0.05), shares
