# SPDX-License-Identifier: Apache-2.0
"""Counters of pg_stat_statements."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
from hypothesis import given
from hypothesis import strategies as st

from powerprof.database import pg_stat_statements, sql
from powerprof.database.base import Login, StatementError
from powerprof.database.pg_stat_statements import CountedStatement, find_statistics_database, subtract_statistics
from powerprof.queries.pricing import add_statistics
from powerprof.queries.records import Statement
from tests.programs.answers import Answers

ONE, OTHER = ("shop", "SELECT c FROM t WHERE id = $1"), ("shop", "SELECT 1")


def test_only_what_was_executed_between_two_looks_is_counted() -> None:
    before = {ONE: CountedStatement(10, 100, 7), OTHER: CountedStatement(3, 3, 8)}
    after = {ONE: CountedStatement(14, 108, 7), OTHER: CountedStatement(3, 3, 8)}
    assert subtract_statistics(before, after) == {ONE: CountedStatement(4, 8, 7)}
    assert subtract_statistics({ONE: CountedStatement(10, 100, 7)}, {ONE: CountedStatement(2, 5, 7)}) == {
        ONE: CountedStatement(2, 5, 7)
    }, "it was reset"
    assert subtract_statistics({}, after)[OTHER] == CountedStatement(3, 3, 8)


def test_a_statement_is_known_by_its_text_in_its_database() -> None:
    rows = [Statement(text="SELECT c FROM t WHERE id=?", schema_name=schema, c0_s=1.0) for schema in ("shop", "other")]
    told = add_statistics(rows, {ONE: CountedStatement(4, 8, -(2**60))})
    assert [(one.rows_sent_per_call, one.query_id) for one in told] == [(2.0, str(-(2**60))), (None, None)]
    assert told[0].rows_examined_per_call is None


@pytest.mark.parametrize(
    ("settings", "triggers"),
    [(("on", "on"), "off"), (("on", "off"), None), ((None, "on"), None)],
    ids=["superuser", "other role", "before PostgreSQL 17"],
)
def test_event_triggers_are_off_where_the_server_lets_us(
    monkeypatch: pytest.MonkeyPatch, settings: tuple[str | None, str], triggers: str | None
) -> None:
    """An option that a server does not know, or does not let a role set, would end the connection."""
    connected: list[Login] = []

    def rows(_: object, statement: str, *, columns: int) -> list[tuple[str | None, ...]]:
        if statement == pg_stat_statements._SUPERUSER_DATABASES:
            return [("postgres",), ("shop",)]
        if statement == pg_stat_statements._EVENT_TRIGGERS:
            return [settings]
        return [("public",)] if connected[-1].database == "shop" else []

    monkeypatch.setattr(sql, "connect", lambda login, **_: connected.append(login) or nullcontext())
    monkeypatch.setattr(sql, "fetch_rows", rows)
    found = find_statistics_database(Login(user="root", family="postgresql"), ["shop"])
    assert found.to_fields() == connected[-1].to_fields()
    assert [login.database for login in connected] == ["postgres", "shop"]
    options = found.session_options or ""
    assert ("event_triggers=off" in options) == (triggers == "off")
    assert triggers is None or "search_path= " in options


def test_statistics_of_a_statement_are_summed_over_its_users() -> None:
    select = "SELECT c FROM t WHERE id = $1"
    rows = [("shop", select, "-77", "30", "400"), ("shop", select, None, "7", "5"), ("shop", None, "9", "1", "0")]
    answers = Answers({"extname": [("public",)], "calls": rows}, "postgresql")
    assert pg_stat_statements.read_statistics(answers) == {
        ("shop", select): CountedStatement(37, 405, -77),
        ("shop", ""): CountedStatement(1, 0, 9),
    }
    assert pg_stat_statements.read_statistics(Answers({})) == {}
    refused = Answers({"extname": [("public",)], "calls": StatementError("not loaded", None, 1)})
    assert pg_stat_statements.read_statistics(refused) == {}


_COUNTS = st.tuples(st.integers(0, 50), st.integers(0, 500))


@given(st.dictionaries(st.sampled_from("abcdef"), st.tuples(_COUNTS, _COUNTS), min_size=1))
def test_statistics_before_and_between_add_up(drawn: dict[str, tuple[tuple[int, int], tuple[int, int]]]) -> None:
    before = {("shop", text): CountedStatement(*first, 7) for text, (first, _) in drawn.items() if first[0]}
    after = {
        ("shop", text): CountedStatement(first[0] + more[0], first[1] * (first[0] > 0) + more[1], 7)
        for text, (first, more) in drawn.items()
    }
    between = subtract_statistics(before, after)
    called = {("shop", text): more for text, (_, more) in drawn.items() if more[0]}
    assert {name: (counted.calls, counted.rows) for name, counted in between.items()} == called
