# SPDX-License-Identifier: Apache-2.0
"""Plans are asserted row by row; settings are written as the server takes them."""

from __future__ import annotations

import pytest

from powerprof.experiment.bench_data import (
    PlanMismatch,
    check_plan,
    count_queries,
    count_rows,
    plan_text,
    subtract_counters,
)
from powerprof.experiment.bench_settings import _checked, find_global_change, literal
from powerprof.system.errors import UsageError
from powerprof.workloads.definition import Explain, PlanStep

REF = {"id": 1, "select_type": "SIMPLE", "table": "city", "type": "ref", "key": "name_btree", "rows": "5"}
SCAN = {"id": 1, "select_type": "SIMPLE", "table": "city", "type": "ALL", "key": None, "rows": "20395"}


def _wanted(**step: object) -> Explain:
    return Explain(statement="SELECT 1", plan=[PlanStep(table="city", **step)])  # type: ignore[arg-type]


def test_the_plan_that_is_wanted_passes() -> None:
    check_plan("index", _wanted(type=["ref"], key="name_btree"), [REF])
    check_plan("no-index", _wanted(type=["ALL", "index"], select_type=["SIMPLE"]), [SCAN])
    check_plan("any", Explain(statement="SELECT 1"), [SCAN])


@pytest.mark.parametrize("step", [{"type": ["ref"]}, {"key": "name_btree"}, {"select_type": ["PRIMARY"]}])
def test_another_plan_is_refused_with_what_there_is(step: dict[str, object]) -> None:
    with pytest.raises(PlanMismatch, match=r"found city ALL, 20,395 rows"):
        check_plan("index", _wanted(**step), [SCAN])


def test_a_plan_in_words() -> None:
    assert plan_text(REF) == "city ref on name_btree, 5 rows"


def test_the_servers_counts_leave_out_our_own() -> None:
    before = {"Questions": 10, "Connections": 3, "Handler_read_rnd_next": 100, "Handler_read_key": 1}
    after = {"Questions": 1015, "Connections": 7, "Handler_read_rnd_next": 600, "Handler_read_key": 2}
    moved = subtract_counters(before, after)
    assert count_queries(moved) == 1000  # less one reading and four COM_QUIT
    assert count_rows(moved) == 501


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (True, "ON"),
        (16, "16"),
        (0.5, "0.5"),
        ("it's", "'it''s'"),
        ("a\\b", "'a\\\\b'"),
        (None, "DEFAULT"),
        (b"ON", "'ON'"),
    ],
)
def test_values_are_written_for_set_global(value: object, text: str) -> None:
    assert literal(value) == text


def test_names_cannot_carry_sql() -> None:
    assert _checked("query-cache-size") == "query_cache_size"
    with pytest.raises(UsageError):
        _checked("x = 1; DROP TABLE t")


@pytest.mark.parametrize(
    "text",
    [
        "set a = 1, GLOBAL b = 2",
        "SET PERSIST x = 1",
        "SET PERSIST_ONLY x = 1",
        "RESET PERSIST",
        "SET @@GLOBAL . x := 1",
        "SET s = 'x, y', @@global.x = 1",
        "SET/**/GLOBAL/**/x = 1",
        "SET -- now\n GLOBAL # here\n x = 1",
        "/*!50000 SET GLOBAL x = 1 */",
        "SET /*M!100000 GLOBAL */ x = 1",
        "SET GLOBAL TRANSACTION ISOLATION LEVEL READ COMMITTED",
        "SET STATEMENT a = 1 FOR SET GLOBAL x = 1",
        "CREATE PROCEDURE p() BEGIN SET @@global.x = 1; END",
        "CREATE EVENT e ON SCHEDULE EVERY 1 DAY DO SET GLOBAL x = 1",
        "PREPARE p FROM 'SET GLOBAL x = 1'",
        'EXECUTE IMMEDIATE "SET GLOBAL x = 1"',
    ],
)
def test_sql_that_sets_a_global_variable(text: str) -> None:
    assert find_global_change(text) is not None


@pytest.mark.parametrize(
    "text",
    [
        "SELECT @@global.x",
        "SET @a = @@global.x, b = 2",
        "UPDATE t SET a = 1, global = 2",
        "INSERT INTO t VALUES ('set global warming')",
        "-- SET GLOBAL x = 1\nSELECT 1",
        "CREATE TABLE t (a CHAR(3) CHARACTER SET utf8, global INT)",
        "CREATE TABLE t (a SET('x'), global INT)",
    ],
)
def test_sql_that_sets_none(text: str) -> None:
    assert find_global_change(text) is None
