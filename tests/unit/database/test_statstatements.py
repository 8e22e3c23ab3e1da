# SPDX-License-Identifier: Apache-2.0
"""What pg_stat_statements counted between two looks, and whose it is."""

from __future__ import annotations

from powerprof.database.clients.statstatements import CountedStatement, since
from powerprof.queries.records import Statement
from powerprof.queries.shares import with_statistics

ONE, OTHER = ("shop", "SELECT c FROM t WHERE id = $1"), ("shop", "SELECT 1")


def test_only_what_was_executed_between_two_looks_is_counted() -> None:
    before = {ONE: CountedStatement(10, 100, 7), OTHER: CountedStatement(3, 3, 8)}
    after = {ONE: CountedStatement(14, 108, 7), OTHER: CountedStatement(3, 3, 8)}
    assert since(before, after) == {ONE: CountedStatement(4, 8, 7)}
    assert since({ONE: CountedStatement(10, 100, 7)}, {ONE: CountedStatement(2, 5, 7)}) == {
        ONE: CountedStatement(2, 5, 7)
    }, "it was reset"
    assert since({}, after)[OTHER] == CountedStatement(3, 3, 8)


def test_a_statement_is_known_by_its_text_in_its_database() -> None:
    rows = [
        Statement(text="SELECT c FROM t WHERE id=?", schema_name=schema, c0_s=1.0, began_before=before)
        for schema, before in (("shop", False), ("other", False), ("shop", True))
    ]
    told = with_statistics(rows, {ONE: CountedStatement(4, 8, -(2**60))})
    assert [(one.rows_sent_per_call, one.query_id) for one in told] == [
        (2.0, str(-(2**60))),
        (None, None),
        (None, None),
    ]
    assert told[0].rows_examined_per_call is None
