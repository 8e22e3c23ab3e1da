# SPDX-License-Identifier: Apache-2.0
"""The answers of a server as evidence: units, columns, and the parts that it refuses."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from powerprof.database.base import StatementError
from powerprof.diagnosis import server_queries
from powerprof.diagnosis.evidence import DUMPS, Client, DeniedAccount
from powerprof.diagnosis.server_queries import RawClient, count_hidden, read_raw_clients, select_clients
from powerprof.model.statements import NO_TEXT
from tests.unit.diagnosis.recorded_server import RecordedServer

EVENTS = ("EVENT_SCHEMA", "EVENT_NAME", "INTERVAL_VALUE", "INTERVAL_FIELD", "STATUS", "LAST_EXECUTED")


def test_events_have_their_interval_in_seconds() -> None:
    rows = [
        ("shop", "a", "3", "SECOND", "ENABLED", "2026-01-01 10:00:00"),
        ("shop", "b", "7", "MINUTE", "ENABLED", None),
        ("shop", "c", 5, "HOUR", "DISABLED", None),
        ("shop", "d", "2", "DAY", "SLAVESIDE_DISABLED", None),
        ("shop", "e\x1b[2J", "2", "WEEK", "ENABLED", None),
        ("shop", "f", "1", "MONTH", "ENABLED", None),
        ("shop", "g", "'1:30'", "MINUTE", "ENABLED", None),
    ]
    events = server_queries.read_events(RecordedServer().set("information_schema.events", (EVENTS, rows)))
    assert [(one.name, one.interval_s, one.enabled) for one in events] == [
        ("shop.a", 3.0, True),
        ("shop.b", 420.0, True),
        ("shop.c", 18_000.0, False),
        ("shop.d", 172_800.0, False),
        ("shop.e?[2J", 1_209_600.0, True),
    ]
    assert (events[0].last_executed, events[1].last_executed) == ("2026-01-01 10:00:00", None)
    assert (events[4].database, events[4].event) == ("shop", "e\x1b[2J")


PROCESSES = ("ID", "USER", "HOST", "COMMAND", "TIME", "STATE", "TIME_MS", "TID", "QUERY_ID", "INFO")


def test_a_client_has_its_time_in_seconds_by_the_finer_count() -> None:
    text = "SELECT * FROM t WHERE a = 'secret'"
    rows = [
        (7, "app", "h:1", "Query", 9, "Sending data", Decimal("1234.5"), 1007, 88, text),
        (8, "app", "h:2", "Sleep", 31, None, None, None, None, None),
    ]
    raw = read_raw_clients(RecordedServer().set("information_schema.processlist", (PROCESSES, rows)))
    assert raw[0][1] == text
    first, second = select_clients(raw, ())
    assert (first.time_s, first.tid, first.query_id, first.state) == (1.2345, 1007, 88, "Sending data")
    assert first.statement == "SELECT * FROM t WHERE a = ?"
    assert (second.time_s, second.tid, second.query_id, second.state, second.statement) == (31.0, None, None, "", "")


def test_releases_without_the_finer_columns_have_a_list_of_processes() -> None:
    server = RecordedServer().set("TIME_MS", 1054)
    server.set("information_schema.processlist", (PROCESSES[:6], [(7, "app", "h:1", "Query", 9, "x")]))
    assert [(client.id, client.time_s) for client, _ in read_raw_clients(server)] == [(7, 9.0)]
    oldest = RecordedServer().set("information_schema", 1109)
    oldest.set("SHOW PROCESSLIST", (("Id", "User", "Host", "Command", "Time"), [(5, "app", "h:1", "Sleep", 4)]))
    assert [(client.id, client.time_s) for client, _ in read_raw_clients(oldest)] == [(5, 4.0)]
    with pytest.raises(StatementError):
        read_raw_clients(RecordedServer().set("information_schema", 1227))


def test_of_many_clients_the_replicas_the_newest_and_the_latest_active_stay() -> None:
    def raw(number: int, command: str, time_s: float | None) -> RawClient:
        client = Client(id=number, user="u", host="h", command=command, time_s=time_s, state="", statement=NO_TEXT)
        return client, ""

    entries = [raw(number, "Sleep", float(number)) for number in range(10, 400)]
    entries += [raw(1, "Binlog Dump GTID", 9999.0), raw(900, "Sleep", 8888.0), raw(3, "Query", None)]
    ids = [client.id for client in select_clients(entries, {11, 12})]
    assert len(ids) == 300
    assert ids[:4] == [1, 900, 3, 10]
    assert ids[4:] == list(range(13, 309))
    few = [raw(2, "Sleep", 5.0), raw(1, "Sleep", 1.0)]
    assert [client.id for client in select_clients(few, ())] == [2, 1]


def test_refused_logins_have_their_count_age_and_span() -> None:
    names = ("USER", "HOST", "n", "last", "span")
    rows = [
        ("repl", "10.0.0.9", Decimal(31), 7, 290),
        ("app", None, "4", -2, None),
        ("none", "h", 0, 1, 1),
        ("x" * 300, "h", 2, 1, 5),
    ]
    denied = server_queries.read_denied_accounts(RecordedServer().set("events_errors_summary", (names, rows)))
    assert [(one.account[:20], one.count, one.window_count, one.last_s, one.span_s) for one in denied] == [
        ("repl@10.0.0.9", 31, 0, 7.0, 290.0),
        ("app@", 4, 0, 0.0, 0.0),
        ("x" * 20, 2, 0, 1.0, 5.0),
    ]
    assert len(denied[2].account) == 102
    assert server_queries.read_denied_accounts(RecordedServer().set("events_errors_summary", 1142)) == []


def test_refused_logins_in_the_window_are_the_increase() -> None:
    def entry(account: str, count: int) -> DeniedAccount:
        return DeniedAccount(account=account, count=count, window_count=0, last_s=2.0, span_s=60.0)

    found = server_queries.count_denied_in_window(
        [entry("a@h", 30), entry("reset@h", 50), entry("gone@h", 5)],
        [entry("a@h", 34), entry("reset@h", 3), entry("new@h", 2), entry("same@h", 0)],
    )
    assert {one.account: one.window_count for one in found} == {"a@h": 4, "reset@h": 0, "new@h": 2, "same@h": 0}
    assert [one.count for one in found] == [34, 3, 2, 0]


def test_counters_are_read_with_the_dumps_of_performance_schema() -> None:
    rows = [("Com_select", "12"), ("Questions", 99), ("Slave_running", "ON")]
    server = RecordedServer().set("events_statements_summary_global", (("n",), [(Decimal(7),)]))
    server.set("SHOW GLOBAL STATUS", (("Variable_name", "Value"), rows))
    assert server_queries.read_counters(server) == {"Com_select": 12, "Questions": 99, DUMPS: 7}
    # Without performance_schema the count is unknown, not 0.
    server.set("events_statements_summary_global", 1146)
    assert server_queries.read_counters(server) == {"Com_select": 12, "Questions": 99}
    assert DUMPS not in server_queries.read_counters(
        server.set("events_statements_summary_global", (("n",), [(None,)]))
    )


def test_statements_of_connections_have_the_names_of_the_counters() -> None:
    rows = [
        (7, "statement/sql/show_status", 30),
        (7, "statement/com/Ping", "4"),
        (8, "statement/sql/select", 5),
        (None, "statement/sql/select", 9),
        (9, "statement/sql/select", None),
    ]
    server = RecordedServer().set("summary_by_thread", (("a", "b", "c"), rows))
    assert server_queries.read_statements_by_connection(server) == {
        7: {"Com_show_status": 30, "Com_admin_commands": 4},
        8: {"Com_select": 5},
    }


def test_channels_have_their_relay_log_in_the_words_of_each_release() -> None:
    names = ("Connection_name", "Relay_Log_File", "Read_Master_Log_Pos", "Master_Server_Id", "Seconds_Behind_Master")
    server = RecordedServer().set("SHOW ALL SLAVES STATUS", (names, [("east", "relay.000042", 733, 3, 17)]))
    (channel,) = server_queries.read_channels(server)
    assert (channel.relay_log_file, channel.status.channel) == ("relay.000042", "east")
    assert (channel.status.read_position_bytes, channel.status.seconds_behind) == (733, 17)
    assert channel.status.source_server_id == 3
    newer = RecordedServer().set("SHOW ALL SLAVES STATUS", 1064)
    newer.set("SHOW REPLICA STATUS", (("Channel_Name", "Relay_Log_File", "Source_Server_Id"), [("", "", 9)]))
    (channel,) = server_queries.read_channels(newer)
    assert (channel.relay_log_file, channel.status.source_server_id) == (None, 9)


def test_replicas_are_listed_in_the_words_of_each_release() -> None:
    names = ("Server_id", "Host", "Port", "Master_id")
    old = RecordedServer().set("SHOW SLAVE HOSTS", (names, [(2, "r2", 3307, 1), (5, None, "3306", 1)]))
    assert [(one.server_id, one.host, one.port) for one in server_queries.read_replicas(old)] == [
        (2, "r2", 3307),
        (5, "", 3306),
    ]
    new = RecordedServer().set("SHOW SLAVE HOSTS", 1064)
    new.set("SHOW REPLICAS", (("Server_Id", "Host", "Port", "Source_Id"), [(8, "r8", 3308, 1)]))
    assert [(one.server_id, one.port) for one in server_queries.read_replicas(new)] == [(8, 3308)]
    assert server_queries.read_replicas(RecordedServer().set("SHOW", 1064)) == []


def test_events_of_the_binary_log_have_one_number_for_equal_texts() -> None:
    names = ("Log_name", "Pos", "Event_type", "Server_id", "End_log_pos", "Info")
    rows = [
        ("b.1", 4, "Query", 99, 50, "UPDATE t SET a = 1"),
        ("b.1", 50, "Query", 99, 90, "UPDATE t SET a = 2"),
        ("b.1", 90, "Gtid", 3, 99, "BEGIN GTID 0-3-7"),
        ("b.1", 99, "Query", 99, 140, "UPDATE t SET a = 1"),
    ]
    server = RecordedServer().set("SHOW BINLOG EVENTS", (names, rows))
    logged = server_queries.read_binlog_events(server, ("b.000001", 733))
    assert server.statements == ["SHOW BINLOG EVENTS IN 'b.000001' FROM 733 LIMIT 200"]
    assert [(one.server_id, one.kind, one.text_number) for one in logged] == [
        (99, "Query", 0),
        (99, "Query", 1),
        (3, "Gtid", 2),
        (99, "Query", 0),
    ]
    assert [one.info for one in logged][1:3] == ["UPDATE t SET a = ?", "GTID 0-3-7"]
    assert server_queries.read_binlog_events(server, ("b.1'; DROP", 4)) == []


def test_the_end_of_the_binary_log_is_file_and_position() -> None:
    status = (("File", "Position", "Binlog_Do_DB"), [("b.000007", "4711", "")])
    assert server_queries.read_binlog_end(RecordedServer().set("SHOW MASTER STATUS", status)) == ("b.000007", 4711)
    newer = RecordedServer().set("SHOW MASTER STATUS", 1064).set("SHOW BINARY LOG STATUS", status)
    assert server_queries.read_binlog_end(newer) == ("b.000007", 4711)
    none: tuple[tuple[str, ...], list[Any]] = (status[0], [])
    assert server_queries.read_binlog_end(RecordedServer().set("SHOW MASTER STATUS", none)) is None


def test_threads_of_connections_have_the_numbers_of_this_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [(7, 21), (8, 22), (9, None), (None, 23), (10, 77)]
    server = RecordedServer().set("THREAD_OS_ID", (("PROCESSLIST_ID", "THREAD_OS_ID"), rows))
    monkeypatch.setenv("POWERPROF_PROCFS", str(tmp_path))
    assert server_queries.read_connection_threads(server, None) == {7: 21, 8: 22, 10: 77}
    for outer, inner in ((4711, 21), (4712, 22)):
        status = tmp_path / f"4711/task/{outer}/status"
        status.parent.mkdir(parents=True)
        status.write_text(f"Name:\tx\nNSpid:\t{outer}\t{inner}\n")
    assert server_queries.read_connection_threads(server, 4711) == {7: 4711, 8: 4712, 10: 77}


def test_accounts_of_replicas_and_instances_are_read() -> None:
    server = RecordedServer().set("USER_PRIVILEGES", (("GRANTEE",), [("'repl'@'%'",), ("'r'@'10.0.0.9'",)]))
    assert server_queries.read_replica_accounts(server) == ["repl@%", "r@10.0.0.9"]
    locks = RecordedServer().set("IS_USED_LOCK", (tuple("abcdefghijklmnop"), [(None, 31, "32", *[None] * 13)]))
    locks.set("SUBSTRING_INDEX(USER()", (("ID",), [(30,), ("31",), (32,)]))
    assert server_queries.read_instances(locks) == {31, 32}
    # Another account has taken one of the locks, or hides all connections.
    locks.set("SUBSTRING_INDEX(USER()", (("ID",), [(30,), ("32",)]))
    assert server_queries.read_instances(locks) == {32}
    locks.set("SUBSTRING_INDEX(USER()", 1227)
    assert server_queries.read_instances(locks) == set()
    free = RecordedServer().set("GET_LOCK", [(("l",), [(0,)]), (("l",), [(1,)])])
    server_queries.mark_connection(free)
    assert len(free.statements) == 2


def test_a_refusal_is_noted_and_a_lost_connection_is_raised() -> None:
    refused: dict[str, str] = {}
    server = RecordedServer().set("SHOW MASTER STATUS", 1227)
    read = lambda: server_queries.read_binlog_end(server)  # noqa: E731
    assert server_queries.query_or_default(read, None, "the binary log", refused) is None
    assert list(refused) == ["the binary log"]
    for lost in (2006, 2013):
        server.set("SHOW MASTER STATUS", lost)
        with pytest.raises(StatementError):
            server_queries.query_or_default(read, None, "the binary log", refused)


def raw(*entries: tuple[int, str, str]) -> list[RawClient]:
    return [
        (Client(id=number, user=user, host="h", command=command, time_s=0.0, state="", statement=NO_TEXT), "")
        for number, user, command in entries
    ]


@pytest.mark.parametrize(
    ("rows", "connected", "hidden"),
    [
        (raw((7, "me", "Query")), 14, 13),
        (raw((7, "me", "Query"), (8, "me", "Sleep")), 14, 12),
        (raw((7, "me", "Query")), 1, 0),
        (raw((7, "me", "Query")), 0, 0),
        (raw((7, "me", "Query"), (8, "app", "Sleep")), 14, 0),
        (raw((7, "me", "Query"), (2, "system user", "Daemon")), 14, 0),
        (raw((7, "me", "Query")), None, None),
        (raw((8, "me", "Query")), 14, None),
        ([], 14, None),
    ],
)
def test_connections_that_the_account_may_not_see(
    rows: list[RawClient], connected: int | None, hidden: int | None
) -> None:
    assert count_hidden(rows, 7, connected) == hidden


def test_connections_of_all_instances_are_no_clients() -> None:
    rows = raw((7, "root", "Query"), (8, "root", "Sleep"), (9, "root", "Sleep"), (10, "app", "Sleep"))
    assert [client.id for client in select_clients(rows, {7, 8, 9})] == [10]
    assert len(server_queries._LOCKS) == len(set(server_queries._LOCKS)) == 16
