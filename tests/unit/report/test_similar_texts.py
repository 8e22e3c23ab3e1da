# SPDX-License-Identifier: Apache-2.0
"""Tests for similar texts in narrow columns."""

from __future__ import annotations

import pytest

from powerprof.report.similar_texts import distinguishable

COLUMNS = "SELECT " + ", ".join(f"column_{number}" for number in range(400))


@pytest.mark.parametrize("room", [24, 30, 46, 120])
def test_texts_that_differ_at_their_end_show_id_and_difference(room: int) -> None:
    texts = [f"{COLUMNS} FROM orders", f"{COLUMNS} FROM invoices", "SELECT ?"]
    first, second, short = distinguishable(texts, ["aaaaaa", "bbbbbb", "cccccc"], room)
    assert first.startswith("#aaaaaa SELECT")
    assert ("ord" in first, "inv" in second, short) == (True, True, "SELECT ?")
    assert max(len(first), len(second)) <= room


def test_difference_in_the_middle_is_shown() -> None:
    tables = ("orders", "invoices", "refunds")
    texts = [f"{COLUMNS} FROM {table} WHERE {COLUMNS[7:]} = ?" for table in tables]
    shown = distinguishable(texts, ["1", "2", "3"], 60)
    assert all(table in name for name, table in zip(shown, tables, strict=True))
    assert max(map(len, shown)) <= 60


@pytest.mark.parametrize(
    ("texts", "shown"),
    [(["SELECT ?"] * 2, ["#1 SELECT ?", "#2 SELECT ?"]), (["a" * 90, "b" * 90], ["a" * 39 + "…", "b" * 39 + "…"])],
)
def test_ids_are_shown_only_for_texts_that_look_alike(texts: list[str], shown: list[str]) -> None:
    assert distinguishable(texts, ["1", "2"], 40) == shown
