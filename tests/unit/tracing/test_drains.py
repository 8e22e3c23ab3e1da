# SPDX-License-Identifier: Apache-2.0
"""How soon the ring buffers are looked at again."""

from __future__ import annotations

import math

import pytest

from powerprof.tracing.pace import next_drain_s

MIB = 1 << 20


def test_a_buffer_is_drained_when_it_will_be_a_quarter_full() -> None:
    assert next_drain_s(2.0, [(0, 8 * MIB)], [(MIB, 8 * MIB)]) == pytest.approx(4.0)


def test_the_one_that_fills_first_decides() -> None:
    before, after = [(0, 8 * MIB), (0, 16 * MIB)], [(MIB, 8 * MIB), (16 * MIB, 16 * MIB)]
    assert next_drain_s(1.0, before, after) == pytest.approx(0.25)


def test_where_nothing_comes_there_is_no_hurry() -> None:
    assert next_drain_s(0.5, [(5, MIB)], [(5, MIB)]) == math.inf


def test_a_flood_is_not_polled_without_end() -> None:
    assert next_drain_s(0.5, [(0, 4096)], [(1 << 30, 4096)]) == pytest.approx(0.05)


def test_a_sample_that_was_thinned_out_meanwhile_is_no_flood() -> None:
    assert next_drain_s(0.5, [(10 * MIB, 8 * MIB)], [(6 * MIB, 8 * MIB)]) == math.inf
