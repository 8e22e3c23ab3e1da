# SPDX-License-Identifier: Apache-2.0
"""Sampled shares: their intervals are Wilson's, and hold the percentage that stands beside them."""

from __future__ import annotations

import itertools
import random

import pytest

from powerprof.statistics.rates import Proportion, proportion


def test_the_interval_is_wilsons() -> None:
    # Figures by Newcombe (1998), table I: 81/263 and 0/20.
    assert proportion(81, 263)[1:] == pytest.approx((25.53, 36.62), abs=0.01)
    assert proportion(0, 20) == pytest.approx((0.0, 0.0, 16.11), abs=0.01)
    assert proportion(0, 0) == (0.0, 0.0, 100.0)


def test_of_a_part_of_all_samples_the_interval_is_the_parts() -> None:
    whole, half = proportion(40, 90), proportion(40, 90, of=180)
    assert half == pytest.approx(tuple(value / 2 for value in whole))


def holds(share: Proportion) -> bool:
    return 0 <= share.low_percent <= share.percent <= share.high_percent <= 100


def test_the_interval_holds_its_share_to_the_last_bit() -> None:
    small = [(count, whole, of) for of in range(1, 40) for whole in range(1, of + 1) for count in range(whole + 1)]
    draw = random.Random(3)
    large = []
    for _ in range(20_000):
        of = draw.randint(1, 10**9)
        whole = draw.randint(1, of)
        large.append((draw.choice((0, 1, whole - 1, whole, draw.randint(0, whole))), whole, of))
    broken = [draw for draw in itertools.chain(small, large) if not holds(proportion(*draw))]
    assert broken == []
