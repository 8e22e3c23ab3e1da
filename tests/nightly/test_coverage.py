# SPDX-License-Identifier: Apache-2.0
"""How often the intervals hold the truth, and how often a report of nothing has a false word, by simulation.

    .venv/bin/python -m pytest -m nightly -s tests/nightly/test_coverage.py

`-s` prints the tables of docs/dev/experiments.md. POWERPROF_TRIALS: of each cell, 2,000 else.
"""

from __future__ import annotations

import math
import os
from itertools import pairwise

import pytest

from powerprof.statistics import intervals
from tests.unit.statistics.coverage import (
    COLUMNS,
    COUNTS,
    DRIFTS,
    EFFECTS,
    POWERS,
    ROWS,
    TRIALS,
    coverage,
    false_words,
    power,
    report_coverage,
    starts_told_apart,
    told_apart,
)
from tests.unit.statistics.function_noise import KINDS, judge_tables

TRIALS_COUNT = int(os.environ.get("POWERPROF_TRIALS", "2000"))


def _three_deviations(share: float) -> float:
    return 3 * math.sqrt(share * (1 - share) / TRIALS_COUNT)


@pytest.fixture(autouse=True)
def fewer_resamples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(intervals, "RESAMPLES", 599)


@pytest.fixture
def without_bootstrap(monkeypatch: pytest.MonkeyPatch) -> None:
    """Skip the bootstrap of the columns: it takes no part in verdicts."""
    monkeypatch.setattr(intervals, "_bca", lambda values, seed: None)


@pytest.mark.parametrize("name", TRIALS)
def test_intervals_hold_the_truth(name: str) -> None:
    shares = {count: coverage(name, count, TRIALS_COUNT) for count in TRIALS[name][1]}
    print(f"| {name} | " + ", ".join(f"{count}: {share:.3f}" for count, share in shares.items()) + " |")
    assert min(shares.values()) >= 0.93 - _three_deviations(0.93), shares


# The share of reports with a false word: shared and independent noise, then the limits of docs/dev/experiments.md.
LIMITS = {"sides AR(0.5)": 0.04, "sides AR(0.8)": 0.08, "sides AR(0.9)": 0.11, "runs, level 4": 0.6}


@pytest.mark.usefixtures("without_bootstrap")
@pytest.mark.parametrize(("kind", "paired"), [(kind, paired) for kind, (_, ways) in ROWS.items() for paired in ways])
def test_a_report_of_nothing_has_a_false_word_in_one_of_forty(kind: str, paired: bool) -> None:
    trials = TRIALS_COUNT // 2
    shares = [false_words(kind, count, trials, paired=paired) for count in COUNTS]
    print(f"| {kind}, {'pairs' if paired else 'apart'} | {' | '.join(f'{share:.3f}' for share in shares)} |")
    most = LIMITS.get(kind, 0.025)
    assert max(shares) <= most + math.sqrt(2) * _three_deviations(most), shares


@pytest.mark.usefixtures("without_bootstrap")
@pytest.mark.parametrize("kind", ["normal", "one window in twenty disturbed"])
def test_typical_verdicts_are_false_in_one_of_forty_and_found_with_more_pairs(kind: str) -> None:
    counts = (6, 7, 8, 10, 14, 20)
    false = [false_words(kind, count, TRIALS_COUNT) for count in counts]
    found = [power(kind, 1.3, count, TRIALS_COUNT // 2) for count in counts]
    for what, shares in (("false", false), ("1.3 times is found", found)):
        print(f"| {kind}, {what} | {' | '.join(f'{share:.3f}' for share in shares)} |")
    assert max(false) <= 0.025 + _three_deviations(0.025), false
    assert all(later >= earlier - 0.05 for earlier, later in pairwise(found)), found
    assert found[-1] >= 0.85


@pytest.mark.usefixtures("without_bootstrap")
@pytest.mark.parametrize("kind", POWERS)
@pytest.mark.parametrize("headline", [True, False])
def test_more_pairs_never_lose_an_effect(kind: str, headline: bool) -> None:
    for effect in EFFECTS:
        shares = [power(kind, effect, count, TRIALS_COUNT // 5, headline=headline) for count in COUNTS]
        row = "headline" if headline else "a row"
        print(f"| {kind}, {effect:g} times, {row} | {' | '.join(f'{share:.2f}' for share in shares)} |")
        assert all(later >= earlier - 0.05 for earlier, later in pairwise(shares)), shares


@pytest.mark.parametrize("kind", COLUMNS)
def test_the_intervals_of_a_column_hold_its_mean(kind: str) -> None:
    shares = [report_coverage(kind, COLUMNS[kind], count, TRIALS_COUNT // 20) for count in COUNTS]
    print(f"| {kind} | {' | '.join(f'{share:.3f}' for share in shares)} |")
    assert min(shares) >= (0.83 if kind == "host AR(0.9)" else 0.90), shares


@pytest.mark.usefixtures("without_bootstrap")
@pytest.mark.parametrize("kind", KINDS)
def test_a_table_of_equal_functions_has_a_false_word_in_one_of_a_hundred(kind: str) -> None:
    tables, most = TRIALS_COUNT // 10, 0.03 if kind == "two modes of the server" else 0.01
    shares = [judge_tables(kind, pairs, tables).false for pairs in (3, 4, 6, 10)]
    found = [judge_tables(kind, pairs, tables, effect=3.0, seed=9).found for pairs in (4, 6, 10)]
    print(f"| {kind} | {' | '.join(f'{share:.3f}' for share in shares)} | {' | '.join(f'{s:.2f}' for s in found)} |")
    assert max(shares) <= most + 3 * math.sqrt(most / tables), shares


@pytest.mark.parametrize("drift", DRIFTS)
def test_eight_equal_points_of_a_sweep_are_told_apart_in_one_of_forty(drift: str) -> None:
    shares = {rounds: told_apart(drift, rounds, TRIALS_COUNT // 2) for rounds in (3, 5)}
    unequal = told_apart(drift, 5, TRIALS_COUNT // 2, scatters=(0.01,) * 4 + (0.1,) * 4)
    print(f"| {drift} | {shares[3]:.3f} | {shares[5]:.3f} | {unequal:.3f} |")
    assert max(*shares.values(), unequal) <= 0.025 + math.sqrt(2) * _three_deviations(0.025), shares


@pytest.mark.parametrize("points", [2, 8])
def test_starts_that_differ_are_no_difference_of_points(points: int) -> None:
    for repeated in (False, True):
        shares = [
            starts_told_apart(count, TRIALS_COUNT, starts=count if repeated else 1, points=points)
            for count in (3, 5, 6, 10, 20)
        ]
        print(f"| {points} points, {'a start per round' if repeated else 'one start'} | {shares} |")
        assert max(shares) <= 0.025 + _three_deviations(0.025), shares
