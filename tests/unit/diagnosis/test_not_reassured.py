# SPDX-License-Identifier: Apache-2.0
"""Servers that wake little and are not well: dead replication, replicas that are refused, pollers of tables, events."""

from __future__ import annotations

import time
from typing import Any

import msgspec
import pytest

from powerprof.diagnosis.collect import summarise_log
from powerprof.diagnosis.diagnose import diagnose, list_coverage
from powerprof.diagnosis.evidence import (
    DUMPS,
    DeniedAccount,
    DiagnosedServer,
    Diagnosis,
    Evidence,
    Finding,
    LogSummary,
    ReplicationChannel,
    ScheduledEvent,
    ThreadCpu,
)
from powerprof.report.diagnosis import render_terminal
from powerprof.statements.text import normalise_replication_error
from tests.unit.diagnosis.test_rules import channel, client, counted, evidence, row

DUPLICATE = (
    "Error 'Duplicate entry '5' for key 'PRIMARY'' on query. Default database: 'd'. "
    "Query: 'INSERT INTO t VALUES (5, 'card-4111')'"
)
DEAD: dict[str, Any] = {
    "Slave_SQL_Running": "No",
    "Last_SQL_Errno": 1062,
    "Last_SQL_Error": DUPLICATE,
    "Master_Host": "primary",
    "Master_Port": 3306,
}


def faults(here: Evidence) -> list[Finding]:
    return [one for one in diagnose(here) if one.severity == "fault"]


def replica(*looks: ReplicationChannel, **more: Any) -> Evidence:
    return evidence(channels_before=[looks[0]], channels_after=[looks[1]], channels_seen=list(looks[2:]), **more)


def test_a_dead_sql_thread_is_a_fault() -> None:
    (fault,) = faults(replica(*[channel(7, **DEAD)] * 5))
    assert fault.rule == "replication_stopped"
    assert fault.text.startswith("The SQL thread of this replica (source primary:3306) stops with error 1062: nothing")
    assert fault.evidence[0] == "Error on query: INSERT INTO t VALUES (?, …) (SHOW SLAVE STATUS has the whole message)"
    assert "Seconds_Behind_Master is NULL in 5 of 5 looks" in fault.evidence


def test_a_dead_sql_thread_that_is_started_again_and_again_is_a_fault() -> None:
    alive = channel(7, Seconds_Behind_Master=0)
    looks = [alive, alive, alive, channel(7, **DEAD), alive]
    (fault,) = faults(replica(*looks, **counted(Com_start_slave=30)))
    assert "START SLAVE is issued 3.0 times/s, and it stops again each time" in fault.text
    assert any("it hides the error" in line for line in fault.remedy)


def test_an_error_that_only_the_log_shows_counts_while_the_thread_is_off() -> None:
    log = LogSummary(
        span_s=60.0, sql_error=normalise_replication_error(DUPLICATE), sql_errors_count=4, sql_error_last_s=1.0
    )
    off = channel(7, Slave_SQL_Running="No")
    alive = channel(7, Seconds_Behind_Master=0)
    assert [one.rule for one in faults(replica(alive, off, log=log))] == ["replication_stopped"]
    assert faults(replica(alive, alive, log=log)) == []  # it was mended


@pytest.mark.parametrize(
    ("row_", "severity", "words"),
    [
        ({"Slave_SQL_Running": "No"}, "fault", "while its I/O thread reads on"),
        ({"Slave_SQL_Running": "No", "Slave_IO_Running": "No"}, "note", "is stopped: both of its threads are off"),
        (
            {"Slave_IO_Running": "No", "Last_IO_Errno": 1236, "Last_IO_Error": "could not find next log"},
            "fault",
            "has stopped with error 1236",
        ),
    ],
)
def test_threads_that_are_off(row_: dict[str, Any], severity: str, words: str) -> None:
    found = [one for one in diagnose(replica(*[channel(7, **row_)] * 3)) if one.rule == "replication_stopped"]
    assert [(one.severity, words in one.text) for one in found] == [(severity, True)]


def log_of(*lines_: str) -> LogSummary:
    stamp = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(time.time() - 2))
    return summarise_log("\n".join(f"{stamp} 12 {line}" for line in lines_))


FAILED = "[ERROR] [MY-010584] [Repl] Replica SQL for channel 'a': Could not execute Write_rows event on table d.t"


def test_words_of_both_servers_logs() -> None:
    denied = "[Warning] Access denied for user 'repl'@'10.0.0.9' (using password: YES)"
    log = log_of(*[denied] * 3, f"[ERROR] Slave SQL: {DUPLICATE} Gtid 0-1-5", FAILED)
    assert log.denied == {"repl@10.0.0.9": 3}
    assert log.sql_errors_count == 2
    assert (log.sql_error or "").startswith("Could not execute Write_rows event")


def test_a_replica_that_is_refused_is_named_at_its_source() -> None:
    log = log_of(*["[Warning] Access denied for user 'repl'@'10.0.0.9' (using password: YES)"] * 3)
    here = evidence(log=log, replica_accounts=["repl@%"], **counted(Aborted_connects=10, Connections=10))
    (fault,) = faults(here)
    assert fault.rule == "replica_refused"
    assert fault.text.startswith("A replica tries to log in as repl@10.0.0.9 1.0 times/s and is refused")
    assert fault.rate_hz == 1.0
    # Once a minute, and nothing in the window: the log alone tells.
    (fault,) = faults(evidence(log=log, replica_accounts=["repl@%"], **counted(Aborted_connects=0)))
    assert fault.rule == "replica_refused"
    # Somebody else.
    (fault,) = faults(evidence(log=log, replica_accounts=["other@%"], **counted(Aborted_connects=10)))
    assert fault.text == "A client (repl@10.0.0.9) fails to log in 1.0 times/s and tries again."


def refused(account: str, count: int = 30, window_count: int = 3, last_s: float = 1.0) -> DeniedAccount:
    return DeniedAccount(account=account, count=count, window_count=window_count, last_s=last_s, span_s=29.0)


def test_mysql_counts_what_it_refuses_by_account() -> None:
    """Its error log has none of it by default."""
    here = evidence(denied=[refused("repl@10.0.0.9")], replica_accounts=["repl@%"], **counted(Aborted_connects=10))
    (fault,) = faults(here)
    assert fault.rule == "replica_refused"
    assert fault.text.startswith("A replica tries to log in as repl@10.0.0.9 0.30 times/s and is refused")
    # Once a minute: none in the window.
    seldom = refused("repl@10.0.0.9", 4, 0, 59.0)
    (fault,) = faults(evidence(denied=[seldom], replica_accounts=["repl@%"], **counted(Aborted_connects=0)))
    assert fault.rule == "replica_refused"
    assert fault.rate_hz == pytest.approx(3 / 29)
    # Mended, or once.
    for gone in (refused("repl@10.0.0.9", last_s=200.0, window_count=0), refused("repl@h", 1, 1)):
        assert not faults(evidence(denied=[gone], replica_accounts=["repl@%"], **counted(Aborted_connects=0)))
    # Somebody else, alone and with a replica.
    (fault,) = faults(evidence(denied=[refused("app@h")], replica_accounts=["repl@%"], **counted(Aborted_connects=10)))
    assert fault.text == "A client (app@h) fails to log in 1.0 times/s and tries again."
    both = evidence(
        denied=[refused("app@h"), refused("repl@h")], replica_accounts=["repl@%"], **counted(Aborted_connects=10)
    )
    assert [one.rule for one in faults(both)] == ["replica_refused", "client_reconnect_loop"]


def test_a_mysql_of_today_reads_its_own_words() -> None:
    here = replica(*[channel(7, **{"Slave_SQL_Running": "No"})] * 3)
    for version, word, other in (("MySQL 9.7.4", "REPLICA", "SLAVE"), ("MariaDB 11.8.2", "SLAVE", "REPLICA")):
        (found,) = [
            one for one in diagnose(msgspec.structs.replace(here, version=version)) if one.rule == "replication_stopped"
        ]
        assert f"START {word} SQL_THREAD" in found.remedy[0]
        assert other not in " ".join([found.text, *found.evidence, *found.remedy])


def test_where_no_log_tells_a_replica_is_said_to_be_possible() -> None:
    (fault,) = faults(evidence(replica_accounts=["repl@%"], **counted(Aborted_connects=10)))
    assert fault.text == "A client, perhaps a replica, fails to log in 1.0 times/s and tries again."
    dump = client(4, "Binlog Dump", user="repl")
    (fault,) = faults(
        evidence(replica_accounts=["repl@%"], clients_before=[dump], samples=[[dump]], **counted(Aborted_connects=10))
    )
    assert fault.text.startswith("A client fails to log in")


def test_replicas_that_come_back_are_counted_by_performance_schema() -> None:
    (fault,) = faults(evidence(**counted(**{DUMPS: 10})))
    assert fault.text.startswith("A replica begins to read this server's binary log 1.0 times/s")
    assert faults(evidence(**counted(**{DUMPS: 1}))) == []


def poller(**more: int) -> Evidence:
    moved = {
        "Com_select": 194,
        "Select_scan": 194,
        "Handler_read_rnd_next": 194 * 2000,
        "Rows_sent": 0,
        "Com_update": 0,
    }
    return evidence(
        samples=[[client(3), client(9, user="worker", tid=77)]],
        clients_before=[client(3), client(9, user="worker", tid=77)],
        wakeups=[row(None, 12.0, origin="other_process", tid=77, wakings_hz=19.4)],
        **counted(**{**moved, **more}),
    )


def test_a_poller_of_a_job_table_is_named() -> None:
    (fault,) = faults(poller())
    assert fault.rule == "table_poller"
    assert fault.text.startswith("worker@10.0.0.7 reads a whole table 19.4 times/s")
    assert "2,000 rows read for each" in fault.evidence[0]
    assert fault.rate_hz == pytest.approx(19.4)


@pytest.mark.parametrize("work", [{"Rows_sent": 5000}, {"Com_update": 150}, {"Com_select": 4000}, {"Select_scan": 8}])
def test_work_is_no_poller(work: dict[str, int]) -> None:
    assert faults(poller(**work)) == []


def test_what_clients_send_is_noted_however_little() -> None:
    assert "client_work" in [one.rule for one in diagnose(evidence(**counted(Questions=190)))]


def event(last: str) -> ScheduledEvent:
    return ScheduledEvent(name="d.burn", interval_s=60.0, enabled=True, last_executed=last)


def test_an_event_that_uses_cpu_is_named() -> None:
    here = evidence(
        events=[event("10:00:00")], events_after=[event("10:01:00")], cpu_percent=43.0, ended_cpu_percent=42.0
    )
    (fault,) = faults(here)
    assert (fault.rule, fault.text) == ("event_cpu", "The event d.burn uses 42 % of a CPU.")
    idle = evidence(
        events=[event("10:00:00")], events_after=[event("10:01:00")], cpu_percent=0.2, ended_cpu_percent=0.1
    )
    assert faults(idle) == []


def test_connections_that_ended_are_no_events() -> None:
    here = evidence(
        events=[event("10:00:00")],
        events_after=[event("10:01:00")],
        cpu_percent=43.0,
        ended_cpu_percent=42.0,
        **counted(Connections=500, Questions=9000),
    )
    assert "event_cpu" not in [one.rule for one in faults(here)]


def test_an_event_that_runs_on_is_known_by_its_worker() -> None:
    worker = ThreadCpu(tid=9, comm="ib_ev", name="thread/sql/event_worker", percent=99.0)
    (fault,) = faults(evidence(events=[event("10:00:00")], cpu_percent=99.5, threads_cpu=[worker]))
    assert fault.text == "The event d.burn uses 99 % of a CPU."


def test_eight_io_threads_are_one_fault_with_their_settings() -> None:
    rows = [row("thread/innodb/io_read_thread", 2.0, tid=n) for n in range(4)]
    rows += [row("thread/innodb/io_write_thread", 2.0, tid=n) for n in range(4, 8)]
    variables = {"innodb_use_native_aio": "ON", "innodb_read_io_threads": "4", "innodb_write_io_threads": "4"}
    (fault,) = faults(evidence(wakeups=rows, variables=variables))
    assert fault.text.startswith("8 threads (innodb/io_read_thread, innodb/io_write_thread)")
    assert fault.rate_hz == pytest.approx(16.0)
    assert fault.remedy == [
        "innodb_read_io_threads=1 after a restart (it is 4)",
        "innodb_write_io_threads=1 after a restart (it is 4)",
    ]
    assert faults(evidence(wakeups=rows[:3])) == []


def said(here: Evidence) -> str:
    seen = list_coverage(here)
    server = DiagnosedServer(pid=1, version="MariaDB", address=None)
    record = Diagnosis(
        id=None,
        started_at="2026-01-01T00:00:00Z",
        server=server,
        findings=diagnose(here),
        evidence=here,
        looked_at=seen.examined,
        not_looked_at=seen.not_examined,
    )
    return " ".join(" ".join(render_terminal(record, 400)).split())


def test_nothing_is_called_well_that_was_not_looked_at() -> None:
    blind = said(evidence(asked=False, exits_hz=2.0, traced_s=5.0))
    assert blind.startswith("No fault was found: it woke a CPU 2.0 times/s.")
    assert "Not looked at: what the server says (no account): replication, clients, events, settings" in blind
    by_status = said(evidence(variables={"performance_schema": "OFF"}, **counted(Questions=0)))
    assert by_status.startswith("No fault was found by its status; its wake-ups were not looked at.")
    assert "replication (none)" in by_status
    assert "statements by connection and their texts (performance_schema is off)" in by_status
    assert "It used 97 % of one CPU." in said(evidence(exits_hz=2.0, cpu_percent=97.0))
