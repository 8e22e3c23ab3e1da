# SPDX-License-Identifier: Apache-2.0
"""A statement is its text in its schema: in the rows of a window, and in two windows."""

from __future__ import annotations

from collections import Counter

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from powerprof.database.server_report import Account, ServerReport
from powerprof.model.statements import make_key
from powerprof.queries.comparison import compare_queries
from powerprof.queries.join import join_trace, make_row_id
from powerprof.queries.records import Queries, Statement
from powerprof.queries.same_statements import pair_statements
from powerprof.tracing.bpf.shared_numbers import OpenStatement
from powerprof.tracing.captures import RecordedText, StatementUse, ThreadUse
from tests.unit.queries.sample import MS, trace
from tests.unit.queries.test_report import record

_TEXTS = ("SELECT a FROM t", "select A from T", "SELECT b FROM t WHERE id=1", "SELECT b FROM t WHERE id=2", "COMMIT")
_SCHEMAS = (None, "shop", "mall")


def window(*statements: Statement) -> Queries:
    return msgspec.structs.replace(record(), statements=list(statements))


def row(text: str, schema: str | None, c0_s: float = 1.0) -> Statement:
    return Statement(text=text, id=make_row_id(make_key(text), schema), schema_name=schema, c0_s=c0_s)


uses = st.lists(
    st.tuples(
        st.integers(0, len(_TEXTS) - 1),
        st.integers(1, 6),
        st.booleans(),
        st.booleans(),
        st.integers(0, 900),
        st.integers(0, 5),
    ),
    max_size=12,
)


@settings(deadline=None)
@given(drawn=uses, schemas=st.lists(st.sampled_from(_SCHEMAS), min_size=6, max_size=6))
def test_law_of_rows(drawn: list[tuple[int, int, bool, bool, int, int]], schemas: list[str | None]) -> None:
    """Joining uses to rows keeps the sums, and the ends of the window make no row."""
    found = [
        StatementUse(1000 + text, tid, 1, ms * MS, ms * MS, woken, 0, int(is_open), began_before=before)
        for text, tid, before, is_open, ms, woken in drawn
    ]
    spent = Counter[int]()
    for use in found:
        spent[use.tid] += use.cpu_ns
    threads = [ThreadUse(tid, "mysqld", spent[tid] + MS, 0, 1, 0, open=OpenStatement.FOUND) for tid in sorted(spent)]
    texts = [RecordedText(1000 + at, 3, len(text), text.encode()) for at, text in enumerate(_TEXTS)]
    known = ServerReport(
        schemas={tid: schema for tid, schema in enumerate(schemas, start=1) if schema is not None},
        threads=dict.fromkeys(range(1, 7), "thread/sql/one_connection"),
        accounts=dict.fromkeys(range(1, 7), Account("app", None)),  # none was gone when the server was queried
    )
    parts = join_trace(trace(uses=found, texts=texts, threads=threads, latencies={}), known)
    rows = {(make_key(one.text), one.schema_name): one for one in parts.statements}
    assert len(rows) == len(parts.statements) == len({one.id for one in parts.statements})
    assert set(rows) == {(make_key(_TEXTS[text]), schemas[tid - 1]) for text, tid, *_ in drawn}
    assert all(one.id == make_row_id(*key) for key, one in rows.items())
    assert sum(one.c0_s for one in rows.values()) == pytest.approx(sum(use.cpu_ns for use in found) / 1e9)
    assert sum(one.calls_count or 0 for one in rows.values()) == len(found)
    assert sum(one.began_before_count for one in rows.values()) == sum(use.began_before for use in found)
    assert sum(one.unfinished_count for one in rows.values()) == sum(use.open_count for use in found)
    assert sum(one.wakeups_count or 0 for one in rows.values()) == sum(use.wakeups for use in found)
    assert parts.connections.c0_s == pytest.approx(len(threads) * MS / 1e9)
    for key, one in rows.items():
        whole = [
            use.cpu_ns
            for (text, tid, *_), use in zip(drawn, found, strict=True)
            if (make_key(_TEXTS[text]), schemas[tid - 1]) == key and not use.began_before and not use.open_count
        ]
        begun, ended = ((one.calls_count or 0) - edge for edge in (one.began_before_count, one.unfinished_count))
        assert one.calls_hz == (None if begun == ended == 0 else pytest.approx((begun + ended) / 2 / 2.0))
        expected = sum(whole) / len(whole) / 1e6 if whole else None
        assert one.c0_ms_per_call == (None if expected is None else pytest.approx(expected))


_ROWS = st.lists(st.tuples(st.sampled_from(_TEXTS), st.sampled_from(_SCHEMAS)), max_size=8).map(
    lambda drawn: list({(make_key(text), schema): row(text, schema) for text, schema in drawn}.values())
)


@given(before=_ROWS, after=_ROWS)
def test_law_of_pairs(before: list[Statement], after: list[Statement]) -> None:
    """Each row of both windows is in one pair, of one text; equal ids are a pair."""
    pairs = pair_statements(window(*before), window(*after))
    assert [one.id for one, _ in pairs if one is not None] == [one.id for one in before]
    assert sorted(one.id for _, one in pairs if one is not None) == sorted(one.id for one in after)
    for one, other in pairs:
        if one is not None and other is not None:
            assert make_key(one.text) == make_key(other.text)
            assert one.id == other.id or None in (one.schema_name, other.schema_name)
    paired = {(one.id, other.id) for one, other in pairs if one is not None and other is not None}
    assert {(one.id, one.id) for one in before if one.id in {other.id for other in after}} <= paired
    assert all(
        one is not None and other is not None for one, other in pair_statements(window(*before), window(*before))
    )


def test_a_row_without_a_schema_is_the_only_other_row_of_its_text() -> None:
    """Short connections are gone before the server is queried."""
    gone, known = row("SELECT 1", None), row("SELECT 1", "shop")
    (change,) = compare_queries(window(gone), window(known), "").statements
    assert (change.became, change.schema_name) == ("unknown", "shop")
    both = compare_queries(window(gone), window(known, row("SELECT 1", "mall")), "")
    assert sorted(change.became for change in both.statements) == ["gone", "new", "new"]


def test_a_text_with_other_letters_is_the_same_statement() -> None:
    (change,) = compare_queries(
        window(row("select A from T", "shop")), window(row("SELECT a FROM t", "shop")), ""
    ).statements
    assert change.became == "unknown"
