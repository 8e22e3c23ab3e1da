# SPDX-License-Identifier: Apache-2.0
"""Reports of servers: pg_stat_statements, and SHOW SLAVE STATUS with the words of each release."""

from __future__ import annotations

from contextlib import nullcontext

import pytest

from powerprof.database import performance, sql
from powerprof.database.base import Login
from powerprof.database.performance import CountedStatement, find_statistics_database, parse_status, subtract_statistics
from powerprof.queries.pricing import add_statistics
from powerprof.queries.records import Statement

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
    rows = [
        Statement(text="SELECT c FROM t WHERE id=?", schema_name=schema, c0_s=1.0, began_before=before)
        for schema, before in (("shop", False), ("other", False), ("shop", True))
    ]
    told = add_statistics(rows, {ONE: CountedStatement(4, 8, -(2**60))})
    assert [(one.rows_sent_per_call, one.query_id) for one in told] == [
        (2.0, str(-(2**60))),
        (None, None),
        (None, None),
    ]
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
        if statement == performance._SUPERUSER_DATABASES:
            return [("postgres",), ("shop",)]
        if statement == performance._EVENT_TRIGGERS:
            return [settings]
        return [("public",)] if connected[-1].database == "shop" else []

    monkeypatch.setattr(sql, "connect", lambda login, **_: connected.append(login) or nullcontext())
    monkeypatch.setattr(sql, "fetch_rows", rows)
    found = find_statistics_database(Login(user="root", family="postgresql"), ["shop"])
    assert found is not None
    assert found.to_fields() == connected[-1].to_fields()
    assert [login.database for login in connected] == ["postgres", "shop"]
    options = found.session_options or ""
    assert ("event_triggers=off" in options) == (triggers == "off")
    assert triggers is None or "search_path= " in options


_MYSQL_5_5 = {
    "Slave_IO_State": "Waiting to reconnect after a failed master event read",
    "Master_Host": "127.0.0.1",
    "Master_User": "repl",
    "Master_Port": 4000,
    "Connect_Retry": 60,
    "Master_Log_File": "binlog.000001",
    "Read_Master_Log_Pos": 107,
    "Relay_Log_Space": 539,
    "Slave_IO_Running": "Connecting",
    "Slave_SQL_Running": "Yes",
    "Exec_Master_Log_Pos": 107,
    "Seconds_Behind_Master": None,
    "Last_IO_Errno": 1236,
    "Last_IO_Error": "Got fatal error 1236",
    "Last_SQL_Errno": 0,
    "Last_SQL_Error": "",
    "Replicate_Ignore_Server_Ids": "",
    "Master_Server_Id": 1,
}


def test_mysql_5_5() -> None:
    status = parse_status(_MYSQL_5_5)
    assert (status.channel, status.source_host, status.source_port) == ("", "127.0.0.1", 4000)
    assert status.source_server_id == 1
    assert (status.io_running, status.sql_running, status.seconds_behind) == ("Connecting", True, None)
    assert (status.last_io_error_number, status.last_io_error) == (1236, "Got fatal error 1236")
    assert (status.last_sql_error_number, status.last_sql_error) == (0, None)
    assert (status.relay_log_bytes, status.read_position_bytes, status.connect_retry_s) == (539, 107, 60)
    assert status.ignored_server_ids == ()


def test_new_words_mean_the_same() -> None:
    renamed = {
        name.replace("Slave", "Replica").replace("Master", "Source"): value for name, value in _MYSQL_5_5.items()
    }
    assert parse_status({**renamed, "Channel_Name": ""}) == parse_status(_MYSQL_5_5)


def test_mariadb_has_named_channels() -> None:
    status = parse_status({**_MYSQL_5_5, "Connection_name": "left", "Replicate_Ignore_Server_Ids": "99, 7"})
    assert status.channel == "left"
    assert status.ignored_server_ids == (99, 7)


@pytest.mark.parametrize("row", [{}, {"Seconds_Behind_Master": "x", "Replicate_Ignore_Server_Ids": "a,²,5"}])
def test_what_is_not_there_is_unknown(row: dict[str, object]) -> None:
    status = parse_status(row)
    assert status.sql_running is None
    assert status.seconds_behind is None
    assert status.relay_log_bytes is None
    assert status.ignored_server_ids == ((5,) if row else ())
