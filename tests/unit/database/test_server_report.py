# SPDX-License-Identifier: Apache-2.0
"""Reports of servers about statements and threads."""

from __future__ import annotations

import pytest

from powerprof.database import server_report
from powerprof.database.base import StatementError
from powerprof.database.server_report import DIGEST_COUNTERS, Account, ServerReport
from tests.programs.answers import Answer, Answers

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
    return server_report.read_report(Answers(shown), running=running)


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


@pytest.mark.parametrize(("count", "hides"), [("3", True), ("0", False), (None, False)])
def test_a_running_statement_can_belong_to_a_call_if_the_server_executed_one(count: str | None, hides: bool) -> None:
    counters = [{"Variable_name": "Com_call_procedure", "Value": count}]
    shown = {"Com_call_procedure": counters, "performance_schema.threads WHERE": _THREADS}
    reports = [server_report.read_report(Answers(shown), running=running) for running in (True, False)]
    assert [report.may_hide_calls for report in reports] == [hides, False]
    assert server_report.merge_reports(*reports).may_hide_calls is hides


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
    merged = server_report.merge_reports(before, after)
    assert merged.digests == {
        ("s", "grown"): (3, 60, 1, 0, 1, 0, 1, 0),
        ("s", "reset"): (2, 9, 8, 7, 6, 5, 4, 3),
        ("s", "new"): grown,
    }
    assert merged.lost_digests_count == 5
    assert server_report.merge_reports(after, before).lost_digests_count == 70, "the table was emptied"
    assert merged.running == {501: "SELECT 1"}
    assert merged.prepared == {(501, 3): "of 41", (501, 4): "of 41"}
    assert merged.threads == {501: "a", 502: "b", 503: "c"}
    assert merged.connections == {501: 41, 502: 43, 503: 44}
    assert merged.accounts == {501: Account("app", "h"), 503: Account("app", "h"), 504: Account("late", None)}


def test_a_digest_that_only_changed_other_counters_was_not_called() -> None:
    before = ServerReport(digests={("s", "x"): (4, 1, 1, 1, 1, 1, 1, 1)})
    after = ServerReport(digests={("s", "x"): (4, 9, 9, 9, 9, 9, 9, 9)})
    assert server_report.merge_reports(before, after).digests == {}
