# SPDX-License-Identifier: Apache-2.0
"""Pieces of time with a power that rises or falls evenly: their parts add up."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest

from powerprof.measure.energy_series import _make_uniform, _Piece


@pytest.mark.parametrize("seed", range(10))
def test_the_parts_of_a_piece_add_up_to_its_joules(seed: int) -> None:
    draw = random.Random(seed)
    start_s, length_s, first, last = draw.uniform(0, 9), draw.uniform(0.1, 5), draw.uniform(0, 99), draw.uniform(0, 99)
    piece = _Piece(start_s, start_s + length_s, (first + last) / 2 * length_s, first, last, True)
    cuts = sorted([start_s - 1, start_s + length_s + 1, *(draw.uniform(start_s, start_s + length_s) for _ in range(5))])
    parts = [piece.within(begin, end) for begin, end in pairwise(cuts)]
    assert sum(parts) == pytest.approx(piece.joules)
    assert piece.watts == pytest.approx((piece.first_watts + piece.last_watts) / 2)
    short = piece.within(start_s, start_s + 1e-6 * length_s) / (1e-6 * length_s)
    assert short == pytest.approx(piece.first_watts, rel=1e-3, abs=1e-3)
    even = _make_uniform(start_s, start_s + length_s, piece.joules)
    assert even.first_watts == even.last_watts == even.watts == pytest.approx(piece.watts)
