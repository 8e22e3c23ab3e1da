# SPDX-License-Identifier: Apache-2.0
"""Generic plans of PostgreSQL: parameters, the objects that a statement uses, and the steps of a plan."""

from __future__ import annotations

import json
from contextlib import nullcontext
from typing import Any

import pytest

from powerprof.database import sql
from powerprof.database.base import ExplainedStep, Login, StatementError
from powerprof.database.plans import explain
from powerprof.database.postgres_plans import judge_objects, number_parameters, read_steps
from powerprof.model.statement_strings import replace_strings
from tests.programs.answers import Answers


@pytest.mark.parametrize(
    ("text", "numbered", "count"),
    [
        ("SELECT 1", "SELECT 1", 0),
        ("SELECT $2 WHERE a = 'x'", "SELECT $2 WHERE a = $3", 3),
        ("SELECT E'a\\'b', N'c', U&'d', $q$e$q$", "SELECT $1, $2, $3, $4", 4),
        ("SELECT a - interval '1 day', date  '2024-01-01'", "SELECT a - CAST($1 AS interval), CAST($2 AS date)", 2),
        ("SELECT \"it's '0'\" FROM t WHERE b = 's' -- it's", "SELECT \"it's '0'\" FROM t WHERE b = $1  ", 1),
    ],
)
def test_each_string_is_a_parameter(text: str, numbered: str, count: int) -> None:
    assert number_parameters(replace_strings(text, "postgresql")) == (numbered, count)


_TABLE = ("pg_class", "shop", "orders", "r", "f", "700", None)
_FUNCTION = ("pg_proc", "eve", "mark", None, None, None)


def test_own_objects_are_planned() -> None:
    rows = [
        _TABLE,
        ("pg_class", "shop", "orders_pkey", "i", "f", "90", None),
        (*_FUNCTION, "t"),
        ("pg_type", *[None] * 6),
    ]
    assert judge_objects(rows) == {("shop", "orders"): 700, ("shop", "orders_pkey"): 90}
    assert judge_objects([(*_TABLE[:5], "-1", None)]) == {("shop", "orders"): -1}


@pytest.mark.parametrize(
    ("rows", "reason"),
    [
        ([(*_FUNCTION, "f")], "planning could execute eve.mark, a function of another account"),
        ([(*_FUNCTION, None)], "planning could execute eve.mark"),
        ([("pg_class", "shop", "seen", "v", "f", "0", None)], "it reads a view"),
        ([("pg_class", "shop", "far", "f", "f", "0", None)], "it reads a foreign table"),
        ([("pg_class", "shop", "orders", "p", "t", "0", None)], "row security protects its table"),
        ([("pg_foreign_server", *[None] * 6)], "it uses an object of pg_foreign_server"),
        ([_TABLE] * 5001, "it uses more than 5,000 objects"),
    ],
)
def test_objects_that_could_execute_code_are_refused(rows: list[tuple[Any, ...]], reason: str) -> None:
    with pytest.raises(StatementError, match=reason):
        judge_objects(rows)


_SCAN = {"Node Type": "Seq Scan", "Relation Name": "orders", "Schema": "shop", "Plan Rows": 70, "Filter": "(c = 's3c')"}


def _plan(*nodes: dict[str, Any]) -> str:
    """The plan whose first node is outermost."""
    inner: dict[str, Any] | None = None
    for node in reversed(nodes):
        inner = {**node, **({"Plans": [inner]} if inner else {})}
    return json.dumps([{"Plan": inner}])


@pytest.mark.parametrize(("limit", "word"), [(70 * 72, "Sort"), (70 * 72 - 1, "Sort on disk")])
def test_a_sort_beyond_the_memory_is_on_disk(limit: int, word: str) -> None:
    sort = {"Node Type": "Sort", "Plan Rows": 70, "Plan Width": 41}
    answer = _plan({"Node Type": "Limit"}, sort, _SCAN)
    assert read_steps(answer, {("shop", "orders"): 700}, limit) == [
        ExplainedStep("orders", "Seq Scan", None, 700, f"Filter; {word}")
    ]
    assert read_steps(answer, {}, limit)[0].rows == 70


def test_a_sort_above_a_join_is_of_no_table() -> None:
    index = {"Node Type": "Index Scan", "Relation Name": "items", "Index Name": "items_pkey", "Plan Rows": 3}
    join = {"Node Type": "Nested Loop", "Plans": [_SCAN, index]}
    sorted_join = {"Node Type": "Sort", "Plan Rows": 9, "Plan Width": 8, "Plans": [join]}
    assert read_steps(json.dumps([{"Plan": sorted_join}]), {("shop", "items"): 50}, 1 << 20) == [
        ExplainedStep("orders", "Seq Scan", None, 70, "Filter"),
        ExplainedStep("items", "Index Scan", "items_pkey", 3, None),
    ]


@pytest.mark.parametrize("answer", [None, "", "[]", "{}", '[{"Plan": 1}]'])
def test_another_answer_is_refused(answer: str | None) -> None:
    with pytest.raises(StatementError, match="the server answers with no plan"):
        read_steps(answer, {}, 0)


def _explain(monkeypatch: pytest.MonkeyPatch, version: str, **others: Any) -> Answers:
    given = {
        "RECURSIVE": [_TABLE],
        "search_path='": [('search_path="$user", "a""b", Public',)],
        "work_mem": [("4096",)],
    }
    state = [(version, others.pop("standby", "f"))]
    answers = Answers(
        {
            "pg_is_in_recovery": state,
            "pg_has_role": [(others.pop("reads", "t"),)],
            **others,
            **given,
            "EXPLAIN": [(_plan(_SCAN),)],
        },
        "postgresql",
    )
    monkeypatch.setattr(sql, "connect", lambda *_, **__: nullcontext(answers))
    login = Login(user="r", family="postgresql")
    (step,) = explain(login, "SELECT '0', $1 FROM orders;", "shop", "eve")
    assert step.rows == 700
    return answers


@pytest.mark.parametrize(
    ("version", "explained"),
    [
        ("159999", "EXPLAIN (VERBOSE, FORMAT JSON) EXECUTE powerprof_explained(NULL, NULL)"),
        ("160000", "EXPLAIN (GENERIC_PLAN, VERBOSE, FORMAT JSON) SELECT $2, $1 FROM orders"),
    ],
)
def test_the_plan_is_generic_and_rolled_back(monkeypatch: pytest.MonkeyPatch, version: str, explained: str) -> None:
    sent = _explain(monkeypatch, version).sent
    assert sent[-1] == "ROLLBACK" and sent[-2] == explained
    assert 'SET LOCAL search_path TO pg_catalog, "eve", "a""b", "public", pg_temp' in sent
    assert sent.index("SET TRANSACTION READ ONLY") > next(at for at, text in enumerate(sent) if "RECURSIVE" in text)
    assert any("EXISTS (\nSELECT NULL, NULL FROM orders\n)" in text for text in sent)


@pytest.mark.parametrize(
    ("others", "reason"),
    [
        ({"standby": "t"}, "a standby cannot show"),
        ({"reads": "f"}, "the account may do more than SELECT in its database"),
        ({"evtenabled": [("1",)]}, "event triggers of its database would execute code"),
        ({"CREATE TEMP": StatementError('CREATE failed (relation "s3c" [42P01])', None, 1)}, "its tables are not in"),
        ({"CREATE TEMP": StatementError("CREATE failed ('s3c' [22012])", None, 1)}, "refused it, error 22012"),
    ],
)
def test_a_refusal_has_its_reason_without_the_text(
    monkeypatch: pytest.MonkeyPatch, others: dict[str, Any], reason: str
) -> None:
    with pytest.raises(StatementError, match=reason) as refused:
        _explain(monkeypatch, "150000", **others)
    assert "s3c" not in refused.value.message
