# SPDX-License-Identifier: Apache-2.0
"""Statements, figures of answers, plans, and the two dialects."""

from __future__ import annotations

import json
import math
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from powerprof.database import sql
from powerprof.database.base import Limits, Login, StatementError
from powerprof.system.errors import PowerprofError
from tests.conftest import Tree
from tests.programs.answers import Answers


@pytest.mark.parametrize(
    ("value", "figure"),
    [
        (7, 7.0),
        ("12.5", 12.5),
        (Decimal("0.125"), 0.125),
        ("nan", None),
        ("inf", None),
        (-math.inf, None),
        ("x", None),
        ("", None),
        (None, None),
        (True, None),
        (b"7", None),
        (10**400, None),
        ("1" * 41, None),
    ],
)
def test_only_finite_numbers_are_figures(value: object, figure: float | None) -> None:
    assert sql.parse_number(value) == figure


@pytest.mark.parametrize(
    ("value", "count"), [(7, 7), ("7", 7), (Decimal(9), 9), (Decimal("NaN"), None), ("-7", None), (7.0, None)]
)
def test_only_whole_numbers_are_counts(value: object, count: int | None) -> None:
    assert sql.parse_count(value) == count


def test_rows_are_cut_to_the_columns_and_fewer_are_refused() -> None:
    answers = Answers({"wide": [(1, 2, 3), (4, 5, 6)]})
    assert sql.fetch_rows(answers, "SELECT wide", columns=2) == [(1, 2), (4, 5)]
    assert sql.fetch_scalar(answers, "SELECT wide") == 1
    assert sql.fetch_scalar(answers, "SELECT nothing") is None
    with pytest.raises(StatementError, match=r"SELECT failed .* with 3 columns, not 4"):
        sql.fetch_rows(answers, "SELECT wide", columns=4)


def test_a_later_statement_is_tried_after_a_syntax_error_alone() -> None:
    def ask(statement: str) -> str:
        if statement != "known":
            raise StatementError(statement, None, 1064 if statement == "unknown" else 1142)
        return "rows"

    assert sql.run_first_known(ask, "unknown", "known", "unknown") == "rows"
    assert sql.run_first_known(ask, "unknown", "unknown") is None
    with pytest.raises(StatementError, match="denied"):
        sql.run_first_known(ask, "unknown", "denied", "known")


def test_work_may_take_hours_and_the_usual_limit_returns() -> None:
    answers = Answers({"DROP": StatementError("denied", None, 1142)})
    sql.execute(answers, "CREATE", "INSERT")
    with pytest.raises(StatementError):
        sql.execute(answers, "CREATE", "DROP", "INSERT")
    assert answers.sent == ["CREATE", "INSERT", "CREATE", "DROP"]
    assert set(answers.limits_s) == {21600.0}
    assert answers.patience_s == 8.0


@pytest.mark.parametrize(
    ("timeout_s", "waiting_s", "patience_s"), [(8.0, 1e9, 8.0), (8.0, 3.0, 3.0), (0.2, 3.0, 1.0), (1e6, 1e9, 3600.0)]
)
def test_connecting_takes_at_most_the_shorter_limit(
    monkeypatch: pytest.MonkeyPatch, timeout_s: float, waiting_s: float, patience_s: float
) -> None:
    given_s: list[float] = []
    monkeypatch.setattr(sql, "_connect_mysql", lambda _login, patience_s, *_: given_s.append(patience_s))
    sql.connect(Login(user="u"), timeout_s=timeout_s, limits=Limits(waiting_s=waiting_s))
    assert given_s == [patience_s]


@pytest.mark.parametrize(
    ("login", "place"),
    [
        (Login(user="u"), {"host": "127.0.0.1", "port": 3306}),
        (Login(user="u", host="db", port=4001), {"host": "db", "port": 4001}),
        (Login(user="u", host="db", tls={"ca": "/ca"}), {"host": "db", "port": 3306, "ssl_ca": "/ca"}),
        (Login(user="u", socket=Path("/s")), {"unix_socket": "/s", "ssl_disabled": True}),
    ],
)
def test_a_server_is_at_its_socket_or_port(
    monkeypatch: pytest.MonkeyPatch, login: Login, place: dict[str, object]
) -> None:
    options: dict[str, object] = {}
    monkeypatch.setattr("powerprof.database.wire.BoundedConnection", lambda *_, **given: options.update(given))
    sql.connect(login, timeout_s=5.0, database="shop")
    usual = {"user": "u", "password": "", "database": "shop", "autocommit": True, "connect_timeout": 5.0}
    fixed = {"write_timeout": 30.0, "charset": "utf8mb4", "program_name": "powerprof"}
    assert options == {**usual, **fixed, **place}


_THREADS = [
    {"THREAD_OS_ID": 3, "NAME": "thread/sql/one", "PROCESSLIST_COMMAND": "Binlog Dump"},
    {"THREAD_OS_ID": 19, "NAME": "thread/sql/two", "PROCESSLIST_COMMAND": "Binlog Dump GTID"},
    {"THREAD_OS_ID": 20, "NAME": "thread/sql/three", "PROCESSLIST_COMMAND": "Query"},
    {"THREAD_OS_ID": 21, "NAME": None, "PROCESSLIST_COMMAND": None},
    {"THREAD_OS_ID": None, "NAME": "thread/sql/four", "PROCESSLIST_COMMAND": None},
]


def test_threads_of_a_container_have_the_hosts_numbers(fake_tree: Tree) -> None:
    answers = Answers({"performance_schema.threads": _THREADS})
    names = {3: "thread/sql/one (Binlog Dump)", 19: "thread/sql/two (Binlog Dump)", 20: "thread/sql/three"}
    assert sql.read_thread_names(answers, None) == names
    tree = {f"proc/4711/task/{outer}/status": f"NSpid:\t{outer}\t{inner}\n" for outer, inner in ((4711, 3), (4730, 19))}
    fake_tree(tree)
    inside = sql.read_thread_names(answers, 4711)
    assert inside == {4711: names[3], 4730: names[19], 20: names[20]}


@pytest.mark.parametrize(("number", "raised"), [(1142, False), (1999, False), (2000, True), (2013, True), (0, True)])
def test_names_that_the_server_refuses_are_unknown(number: int, raised: bool) -> None:
    answers = Answers({"threads": StatementError("reason", None, number)})
    if raised:
        with pytest.raises(StatementError, match="reason"):
            sql.read_thread_names(answers, None)
    else:
        assert sql.read_thread_names(answers, None) == {}


def test_room_of_each_product_is_most_per_user_and_present() -> None:
    mysql = Answers({"@@max_connections": [("151", 90)], "Threads_connected": [("Threads_connected", "48")]})
    assert sql.dialect_of(mysql).read_room(mysql) == (151, 90, 48)
    postgres = Answers({"max_connections": [("103", "5", "17")]}, "postgresql")
    assert sql.dialect_of(postgres).read_room(postgres) == (98, 0, 17)
    silent = Answers({})
    assert sql.dialect_of(silent).read_room(silent) == (0, 0, 1)


def test_counters_are_by_name_and_postgres_has_none() -> None:
    answers = Answers({"SHOW GLOBAL STATUS": [("Questions", "7001"), ("Handler_read_key", "5"), ("Com_commit", None)]})
    assert sql.dialect_of(answers).read_counters(answers) == {"Questions": 7001, "Handler_read_key": 5, "Com_commit": 0}
    assert "'Handler_read_rnd_next'" in answers.sent[0] and "'Qcache_hits'" in answers.sent[0]
    postgres = Answers({}, "postgresql")
    assert sql.dialect_of(postgres).read_counters(postgres) == {}


@pytest.mark.parametrize(("family", "own_key"), [("mysql", "information_schema.tables"), ("postgresql", "pg_tables")])
@pytest.mark.parametrize(("there", "own", "is_own"), [(True, True, True), (True, False, False), (False, False, None)])
def test_a_schema_is_powerprofs_by_its_mark(
    family: Any, own_key: str, there: bool, own: bool, is_own: bool | None
) -> None:
    answers = Answers({"schemata": [(1,)] * there, "pg_database": [("t",)] * there, own_key: [(1,)] * own}, family)
    server: Any = SimpleNamespace(connect=lambda **_: answers, login=Login(user="u", family=family))
    assert sql.dialect_of_server(server).is_own(server, "shop") is is_own


def test_a_marked_database_of_another_account_is_not_powerprofs() -> None:
    answers = Answers({"pg_database": [("f",)], "pg_tables": [(1,)]}, "postgresql")
    server: Any = SimpleNamespace(connect=lambda **_: answers, login=Login(user="u", family="postgresql"))
    assert sql.dialect_of_server(server).is_own(server, "shop") is False


def _plan(text: str | None) -> list[dict[str, Any]]:
    answers = Answers({"EXPLAIN (FORMAT JSON) SELECT": [(text,)]}, "postgresql")
    return sql.dialect_of(answers).explain(answers, "SELECT 1")


def test_a_plan_has_its_tables_and_a_bitmap_scan_its_index() -> None:
    costs = {"Startup Cost": 1.25, "Total Cost": 99.5, "Plan Width": 40}
    scan = {"Node Type": "Bitmap Heap Scan", "Relation Name": "city", "Plan Rows": 5, **costs}
    below = {"Node Type": "Bitmap Index Scan", "Index Name": "name_btree", "Plan Rows": 6, **costs}
    other = {"Node Type": "Seq Scan", "Relation Name": "country", "Plan Rows": 239, **costs}
    join = {"Node Type": "Hash Join", "Plans": [{**scan, "Plans": [below]}, {"Node Type": "Hash", "Plans": [other]}]}
    assert _plan(json.dumps([{"Plan": {"Node Type": "Aggregate", "Plan Rows": 1, "Plans": [join]}}])) == [
        {"table": "city", "type": "Bitmap Heap Scan", "key": "name_btree", "rows": 5, "extra": None},
        {"table": "country", "type": "Seq Scan", "key": None, "rows": 239, "extra": None},
    ]


@pytest.mark.parametrize("text", [None, "", "[]", "{}", "[1]", '[{"Plan": 1}]', "nonsense"])
def test_an_unreadable_plan_is_refused(text: str | None) -> None:
    with pytest.raises(PowerprofError, match="cannot read the plan"):
        _plan(text)


def test_a_plan_of_mysql_has_lower_case_names() -> None:
    answers = Answers({"EXPLAIN /*!50600 FORMAT=TRADITIONAL */ SELECT": [{"TABLE": "city", "type": "ALL", "ROWS": 5}]})
    assert sql.dialect_of(answers).explain(answers, "SELECT 1") == [{"table": "city", "type": "ALL", "rows": 5}]


@pytest.mark.parametrize(
    ("text", "version"),
    [("10.11.19-MariaDB-log", "MariaDB 10.11.19"), ("8.0.36", "MySQL 8.0.36"), ("5.5.5-10.4-mariadb", "MariaDB 5.5.5")],
)
def test_a_version_has_its_product(text: str, version: str) -> None:
    assert sql.read_version(Answers({"@@version": [(text,)]})) == version
    for odd in ([("none",)], [(None,)], [(8,)], []):
        with pytest.raises(PowerprofError, match="does not say its version"):
            sql.read_version(Answers({"@@version": odd}))
