# SPDX-License-Identifier: Apache-2.0
"""Intervals of a monitor of which only pieces were traced."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from powerprof.tracing.idle_data import CAUSE, CPU_TOTAL, RUN_TIME, RunTimes
from powerprof.tracing.pieces import Piece, sum_pieces

S = 1_000_000_000


def _piece(from_s: float, to_s: float, counts: dict[int, int]) -> Piece:
    causes = np.zeros(len(counts), dtype=CAUSE)
    causes["next_tid"], causes["count"] = list(counts), list(counts.values())
    causes["idle_ns"] = 10 * causes["count"]
    totals = np.zeros(2, dtype=CPU_TOTAL)
    totals["count"][0][1] = causes["count"].sum()
    ran = np.zeros(1, dtype=RUN_TIME)
    ran["tid"], ran["pid"], ran["ns"] = 7, 7, S // 100
    return Piece(round(from_s * S), round(to_s * S), causes, totals, RunTimes(ran, 5, 0))


def test_a_piece_stands_for_the_time_around_it() -> None:
    pieces = [_piece(1.0, 1.5, {1: 10, 2: 30}), _piece(4.5, 5.0, {1: 50})]
    whole = sum_pieces(pieces, 0, 6 * S, None)
    # The bound between both is at 3 s, so each stands for six times its length.
    counts = dict(zip(whole.causes["next_tid"].tolist(), whole.causes["count"].tolist(), strict=True))
    assert counts == {1: 360, 2: 180}
    assert int(whole.totals["count"].sum()) == 540 and whole.traced_share == pytest.approx(1 / 6)
    assert whole.ran.threads["ns"].tolist() == [12 * S // 100] and whole.ran.others_ns == 60


def test_the_kernels_count_scales_the_unseen_part() -> None:
    pieces = [_piece(0.0, 1.0, {1: 100}), _piece(2.0, 2.5, {1: 20, 2: 20})]
    whole = sum_pieces(pieces, 0, 3 * S, 340)
    assert int(whole.causes["count"].sum()) == pytest.approx(340, abs=2)
    assert whole.causes["idle_ns"].sum() == pytest.approx(3400, rel=0.02)


@given(
    st.lists(st.tuples(st.floats(0.05, 0.9), st.dictionaries(st.integers(1, 5), st.integers(1, 500))), min_size=1),
    st.integers(0, 100_000),
)
def test_rows_never_lose_what_was_seen(parts: list[tuple[float, dict[int, int]]], unseen: int) -> None:
    pieces = [_piece(number, number + length_s, counts) for number, (length_s, counts) in enumerate(parts)]
    seen = sum(sum(counts.values()) for _, counts in parts)
    whole = sum_pieces(pieces, 0, len(parts) * S, seen + unseen)
    assert int(whole.causes["count"].sum()) >= seen
    if seen:
        rows = sum(len(counts) for _, counts in parts)
        assert abs(int(whole.causes["count"].sum()) - seen - unseen) <= rows
    assert 0 < whole.traced_share <= 1
