# SPDX-License-Identifier: Apache-2.0
"""Reports of servers: pg_stat_statements, and SHOW SLAVE STATUS with the words of each release."""

from __future__ import annotations

import re
from contextlib import nullcontext

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from powerprof.database import performance, sql
from powerprof.database.base import Login, StatementError
from powerprof.database.performance import (
    DIGEST_COUNTERS,
    Account,
    CountedStatement,
    ServerReport,
    find_statistics_database,
    parse_status,
    subtract_statistics,
)
from powerprof.queries.pricing import add_statistics
from powerprof.queries.records import Statement
from powerprof.system.errors import PowerprofError
from tests.programs.answers import Answer, Answers

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
    assert found.to_fields() == connected[-1].to_fields()
    assert [login.database for login in connected] == ["postgres", "shop"]
    options = found.session_options or ""
    assert ("event_triggers=off" in options) == (triggers == "off")
    assert triggers is None or "search_path= " in options


@pytest.mark.parametrize("row", [{}, {"Seconds_Behind_Master": "x", "Replicate_Ignore_Server_Ids": "a,²,5"}])
def test_what_is_not_there_is_unknown(row: dict[str, object]) -> None:
    status = parse_status(row)
    assert status.sql_running is None
    assert status.seconds_behind is None
    assert status.relay_log_bytes is None
    assert status.ignored_server_ids == ((5,) if row else ())


# A status row in which every figure is another one.
_STATUS = {
    "Connection_name": "left",
    "Slave_IO_State": "Waiting for master to send event",
    "Master_Host": "10.0.0.7",
    "Master_Port": 4001,
    "Connect_Retry": 11,
    "Master_Log_File": "binlog.000009",
    "Read_Master_Log_Pos": 5007,
    "Relay_Log_File": "relay.000003",
    "Relay_Log_Pos": 4711,
    "Relay_Master_Log_File": "binlog.000008",
    "Slave_IO_Running": "Yes",
    "Slave_SQL_Running": "No",
    "Exec_Master_Log_Pos": 3001,
    "Relay_Log_Space": 90210,
    "Seconds_Behind_Master": 77,
    "Last_IO_Errno": 1236,
    "Last_IO_Error": "fatal",
    "Last_SQL_Errno": 1062,
    "Last_SQL_Error": "Duplicate entry",
    "Replicate_Ignore_Server_Ids": "5, 6 7",
    "Master_Server_Id": 31,
}


def test_each_figure_of_a_status_is_of_its_own_column() -> None:
    renamed = {
        re.sub("Slave", "Replica", name).replace("Master", "Source"): value
        for name, value in _STATUS.items()
        if name != "Connection_name"
    }
    for row in (_STATUS, {**renamed, "Channel_Name": "left"}):
        status = parse_status(row)
        assert (status.channel, status.source_host, status.source_port) == ("left", "10.0.0.7", 4001)
        assert (status.io_running, status.sql_running, status.source_server_id) == ("Yes", False, 31)
        assert (status.seconds_behind, status.connect_retry_s, status.relay_log_bytes) == (77, 11, 90210)
        assert (status.read_position_bytes, status.executed_position_bytes) == (5007, 3001)
        assert (status.source_log_file, status.executed_log_file) == ("binlog.000009", "binlog.000008")
        assert (status.last_io_error_number, status.last_sql_error_number) == (1236, 1062)
        assert (status.last_io_error, status.io_state) == ("fatal", "Waiting for master to send event")
        assert status.ignored_server_ids == (5, 6, 7)


@pytest.mark.parametrize("name", [name for name in _STATUS if name != "Relay_Log_File" and name != "Relay_Log_Pos"])
def test_a_column_without_a_value_is_unknown_and_changes_no_other_field(name: str) -> None:
    full = msgspec.structs.asdict(parse_status(_STATUS))
    changed = msgspec.structs.asdict(parse_status({**_STATUS, name: None}))
    (field,) = [field for field, value in full.items() if changed[field] != value]
    assert changed[field] in (None, "", ())


def test_the_first_statement_that_the_server_knows_shows_replication() -> None:
    unknown = StatementError("syntax", None, 1064)
    connection = Answers({"SHOW ALL SLAVES": unknown, "SHOW REPLICA": unknown, "SHOW SLAVE": [_STATUS]})
    assert [status.connect_retry_s for status in performance.read_replication_status(connection)] == [11]
    assert performance.read_replication_status(Answers({})) == []
    with pytest.raises(PowerprofError, match="no statement that shows replication"):
        performance.read_replication_status(Answers({"SHOW": unknown}))
    with pytest.raises(StatementError, match="denied"):
        performance.read_replication_status(Answers({"SHOW": StatementError("denied", None, 1227)}))


def test_statistics_of_a_statement_are_summed_over_its_users() -> None:
    select = "SELECT c FROM t WHERE id = $1"
    rows = [("shop", select, "-77", "30", "400"), ("shop", select, None, "7", "5"), ("shop", None, "9", "1", "0")]
    answers = Answers({"extname": [("public",)], "calls": rows}, "postgresql")
    assert performance.read_statistics(answers) == {
        ("shop", select): CountedStatement(37, 405, -77),
        ("shop", ""): CountedStatement(1, 0, 9),
    }
    assert performance.read_statistics(Answers({})) == {}
    refused = Answers({"extname": [("public",)], "calls": StatementError("not loaded", None, 1)})
    assert performance.read_statistics(refused) == {}


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


# A thread of a pool, a sleeping connection, a replica's feed, and a thread of the server.
_WORKING = {
    "THREAD_OS_ID": 501,
    "NAME": "thread/sql/one_connection",
    "PROCESSLIST_COMMAND": "Query",
    "PROCESSLIST_DB": "shop",
    "PROCESSLIST_INFO": "SELECT 1",
    "PROCESSLIST_ID": 41,
    "PROCESSLIST_USER": "app",
    "PROCESSLIST_HOST": "10.0.0.7:5541",
}
_THREADS = [
    _WORKING,
    {**_WORKING, "THREAD_OS_ID": 502, "PROCESSLIST_COMMAND": "Sleep", "PROCESSLIST_INFO": "last", "PROCESSLIST_ID": 42},
    {**_WORKING, "THREAD_OS_ID": 503, "PROCESSLIST_COMMAND": "Binlog Dump", "PROCESSLIST_INFO": None},
    {"THREAD_OS_ID": 504, "NAME": "thread/innodb/io"},
    {"THREAD_OS_ID": None, "NAME": "thread/sql/main"},
]
_DIGEST = {
    "SCHEMA_NAME": "shop",
    "DIGEST_TEXT": "SELECT ?",
    "COUNT_STAR": 10,
    "SUM_ROWS_EXAMINED": 200,
    "SUM_ROWS_SENT": 30,
    "SUM_ROWS_AFFECTED": 4,
    "SUM_CREATED_TMP_TABLES": 5,
    "SUM_CREATED_TMP_DISK_TABLES": 2,
    "SUM_SELECT_SCAN": 7,
    "SUM_ERRORS": 1,
}
_PREPARED = {"THREAD_OS_ID": 501, "STATEMENT_ID": 3, "SQL_TEXT": "SELECT ?"}


def _report(running: bool = True, **answers: Answer) -> ServerReport:
    keys = {"threads": "performance_schema.threads WHERE", "digests": "by_digest", "prepared": "prepared_statements"}
    shown = {keys.get(name, name): rows for name, rows in answers.items()}
    return performance.read_report(Answers(shown), running=running)


def test_a_report_has_the_work_and_client_of_each_thread() -> None:
    report = _report(threads=_THREADS, digests=[_DIGEST], prepared=[_PREPARED])
    names = {501: "thread/sql/one_connection", 504: "thread/innodb/io"}
    feed = {503: "thread/sql/one_connection (Binlog Dump)"}
    assert report.threads == {**names, 502: names[501], **feed}
    assert report.running == {501: "SELECT 1"}
    assert report.schemas == dict.fromkeys((501, 502, 503), "shop")
    assert report.connections == {501: 41, 502: 42, 503: 41}
    assert report.accounts == dict.fromkeys((501, 502, 503), Account("app", "10.0.0.7"))
    assert report.prepared == {(501, 3): "SELECT ?"}
    assert _report(False, threads=_THREADS).running == {}


@pytest.mark.parametrize(
    ("host", "place"),
    [("db.example:5541", "db.example"), ("db.example", "db.example"), ("fe80::7", "fe80::7"), ("", None), (None, None)],
)
def test_a_client_has_no_port(host: str | None, place: str | None) -> None:
    report = _report(threads=[{**_WORKING, "PROCESSLIST_HOST": host}])
    assert report.accounts == {501: Account("app", place)}


def test_without_threads_the_list_of_processes_has_the_work() -> None:
    working = {"TID": 601, "COMMAND": "Query", "DB": "shop", "INFO": "SELECT 2", "USER": "app", "HOST": "h:9"}
    rows = [working, {**working, "TID": 602, "COMMAND": "Sleep", "INFO": "last"}, {**working, "TID": 0}]
    rows.append({**working, "TID": 603, "HOST": "2001:db8::7:5541"})
    refused = StatementError("denied", None, 1142)
    for running in (True, False):
        report = _report(running, threads=refused, PROCESSLIST=rows)
        assert report.threads == {}
        assert report.running == (dict.fromkeys((601, 603), "SELECT 2") if running else {})
        assert report.accounts == {**dict.fromkeys((601, 602), Account("app", "h")), 603: Account("app", "2001:db8::7")}
    for number in (2000, 2013, 0):
        with pytest.raises(StatementError, match="lost"):
            _report(threads=StatementError("lost", None, number))


def test_digests_have_their_counters_in_order_and_are_summed() -> None:
    lost = {**_DIGEST, "SCHEMA_NAME": None, "DIGEST_TEXT": None, "COUNT_STAR": 70}
    report = _report(digests=[_DIGEST, {**_DIGEST, "SUM_ROWS_SENT": None}, lost])
    (counters,) = (dict(zip(DIGEST_COUNTERS, counts, strict=True)) for counts in report.digests.values())
    named = {"calls": 20, "examined": 400, "sent": 30, "affected": 8, "tmp": 10, "tmp_disk": 4}
    assert counters == {**named, "scans": 14, "errors": 2}
    assert list(report.digests) == [("shop", "SELECT ?")]
    assert list(_report(digests=[{**_DIGEST, "SCHEMA_NAME": None}]).digests) == [(None, "SELECT ?")]
    assert (report.has_digests, report.lost_digests_count) == (True, 70)


def test_a_prepared_statement_with_two_texts_is_neither() -> None:
    """A thread of a pool has several clients, which number their statements alike."""
    other = {**_PREPARED, "SQL_TEXT": "DELETE"}
    report = _report(threads=_THREADS, prepared=[_PREPARED, other, _PREPARED, {**_PREPARED, "STATEMENT_ID": 4}])
    assert report.prepared == {(501, 4): "SELECT ?"}


def test_two_reports_are_their_difference() -> None:
    counts = (10, 200, 30, 4, 5, 2, 7, 1)
    before = ServerReport(
        threads={501: "a", 502: "b"},
        running={501: "SELECT 1"},
        prepared={(501, 3): "of 41", (502, 3): "of 42"},
        digests={("s", "grown"): counts, ("s", "reset"): counts, ("s", "same"): counts},
        connections={501: 41, 502: 42},
        accounts={501: Account("app", "h"), 502: Account("app", None), 503: Account("app", "h")},
        lost_digests_count=70,
    )
    grown = (13, 260, 31, 4, 6, 2, 8, 1)
    after = ServerReport(
        threads={501: "a", 503: "c"},
        running={503: "SELECT 3"},
        prepared={(501, 4): "of 41", (502, 4): "of 43", (503, 3): "of 44"},
        digests={
            ("s", "grown"): grown,
            ("s", "reset"): (2, 9, 8, 7, 6, 5, 4, 3),
            ("s", "same"): counts,
            ("s", "new"): grown,
        },
        connections={501: 41, 502: 43, 503: 44},
        accounts={501: Account("app", "h"), 502: Account("other", None), 504: Account("late", None)},
        lost_digests_count=75,
    )
    merged = performance.merge_reports(before, after)
    assert merged.digests == {
        ("s", "grown"): (3, 60, 1, 0, 1, 0, 1, 0),
        ("s", "reset"): (2, 9, 8, 7, 6, 5, 4, 3),
        ("s", "new"): grown,
    }
    assert merged.lost_digests_count == 5
    assert performance.merge_reports(after, before).lost_digests_count == 70, "the table was emptied"
    assert merged.running == {501: "SELECT 1"}
    assert merged.prepared == {(501, 3): "of 41", (501, 4): "of 41"}
    assert merged.threads == {501: "a", 502: "b", 503: "c"}
    assert merged.connections == {501: 41, 502: 43, 503: 44}
    assert merged.accounts == {501: Account("app", "h"), 503: Account("app", "h"), 504: Account("late", None)}


def test_a_digest_that_only_changed_other_counters_was_not_called() -> None:
    before = ServerReport(digests={("s", "x"): (4, 1, 1, 1, 1, 1, 1, 1)})
    after = ServerReport(digests={("s", "x"): (4, 9, 9, 9, 9, 9, 9, 9)})
    assert performance.merge_reports(before, after).digests == {}
