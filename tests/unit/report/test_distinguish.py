# SPDX-License-Identifier: Apache-2.0
"""Long texts that begin alike are told apart in narrow columns."""

from __future__ import annotations

import pytest

from powerprof.report.statement_tables import distinguishable

COLUMNS = "SELECT " + ", ".join(f"column_{number}" for number in range(400))


@pytest.mark.parametrize("room", [24, 30, 46, 120])
def test_two_that_differ_at_their_end_are_distinguishable(room: int) -> None:
    texts = [f"{COLUMNS} FROM orders", f"{COLUMNS} FROM invoices", "SELECT ?"]
    one, other, short = distinguishable(texts, ["aaaaaa", "bbbbbb", "cccccc"], room)
    assert one != other
    assert one.startswith("#aaaaaa SELECT")
    assert ("ord" in one, "inv" in other, short) == (True, True, "SELECT ?")
    assert max(map(len, (one, other))) <= room


def test_a_difference_in_the_middle_is_shown() -> None:
    texts = [f"{COLUMNS} FROM {table} WHERE {COLUMNS[7:]} = ?" for table in ("orders", "invoices", "refunds")]
    shown = distinguishable(texts, ["1", "2", "3"], 60)
    assert all(table in one for one, table in zip(shown, ("orders", "invoices", "refunds"), strict=True))
    assert max(map(len, shown)) <= 60


def test_one_text_in_two_schemas_has_two_ids() -> None:
    assert distinguishable(["SELECT ?"] * 2, ["1a", "2b"], 40) == ["#1a SELECT ?", "#2b SELECT ?"]


def test_what_differs_where_it_is_seen_is_cut_alone() -> None:
    assert distinguishable(["a" * 90, "b" * 90], ["1", "2"], 40) == ["a" * 39 + "…", "b" * 39 + "…"]
