# SPDX-License-Identifier: Apache-2.0
"""How often the intervals hold the truth, and how often a report of nothing has a false word, by simulation.

    .venv/bin/python -m pytest -m soak -s tests/soak/test_coverage.py

`-s` prints the tables of docs/design/experiments.md. POWERPROF_TRIALS: of each cell, 2,000 else.
"""

from __future__ import annotations

import math
import os

import pytest

from powerprof.statistics import intervals
from tests.unit.statistics.coverage import ROWS, TRIALS, coverage, false_words

pytestmark = pytest.mark.soak

TRIALS_COUNT = int(os.environ.get("POWERPROF_TRIALS", "2000"))
# Ten pairs show too little of how they are correlated, and pairs that are measured in turn are not taken to be so.
_HARD = "pairs, AR(0.5)"


def _three_deviations(share: float) -> float:
    return 3 * math.sqrt(share * (1 - share) / TRIALS_COUNT)


@pytest.fixture(autouse=True)
def fewer_resamples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(intervals, "RESAMPLES", 599)


@pytest.mark.parametrize("name", TRIALS)
def test_intervals_hold_the_truth(name: str) -> None:
    shares = {count: coverage(name, count, TRIALS_COUNT) for count in TRIALS[name][1]}
    print(f"| {name} | " + ", ".join(f"{count}: {share:.3f}" for count, share in shares.items()) + " |")
    wanted = 0.90 if name == _HARD else 0.93
    assert min(shares.values()) >= wanted - _three_deviations(wanted), shares


@pytest.mark.parametrize("paired", [True, False])
@pytest.mark.parametrize("kind", ROWS)
def test_a_report_of_nothing_has_a_false_word_in_one_of_twenty(kind: str, paired: bool) -> None:
    trials = TRIALS_COUNT // 4
    shares = {count: false_words(kind, count, trials, paired=paired) for count in (3, 5, 10)}
    each = ", ".join(f"{count}: {share:.3f}" for count, share in shares.items())
    print(f"| {kind}, {'pairs' if paired else 'apart'} | {each} |")
    assert max(shares.values()) <= 0.05 + 2 * _three_deviations(0.05), shares
