# SPDX-License-Identifier: Apache-2.0
"""The estimate's intervals hold what was left out: each result of a kind, and each kind of a generation."""

from __future__ import annotations

from tools.bench import estimate


def test_a_kind_that_was_left_out_of_its_generation() -> None:
    rows = estimate.new_kinds()
    assert len(rows) == 16
    assert {row.name: row.least for row in rows if row.least < estimate.WANTED_PERCENT} == {}


def test_a_result_that_was_left_out_of_its_kind() -> None:
    rows = estimate.known_kinds()
    assert sum(row.results for row in rows) == 706
    assert {row.name: row.least for row in rows if row.least < estimate.WANTED_PERCENT} == {}
