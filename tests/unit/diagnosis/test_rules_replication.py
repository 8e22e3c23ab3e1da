# SPDX-License-Identifier: Apache-2.0
"""The rules on replication: faults of sources and replicas are found, healthy ones have no findings."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from powerprof.diagnosis.diagnose import diagnose
from powerprof.diagnosis.evidence import Evidence, LoggedEvent, LogSummary, ReplicaHost, ReplicationChannel
from powerprof.diagnosis.rules_replication import find_duplicate_id_on_replica, find_orphan_event, find_role
from powerprof.model.statements import normalise, normalise_replication_error
from tests.unit.diagnosis.examples import channel, client, counted, evidence, fault_rules, faults, read_recorded


@pytest.mark.parametrize(("changes", "findings"), [(0, 0), (2, 0), (5, 1), (3000, 1)])
def test_relay_logs_that_change_with_nothing_to_read_are_reconnects(changes: int, findings: int) -> None:
    here = evidence(channels_before=[channel(10)], channels_after=[channel(10 + changes)])
    assert len(find_duplicate_id_on_replica(here)) == findings


def test_relay_logs_that_change_by_size_are_normal() -> None:
    here = evidence(channels_before=[channel(10)], channels_after=[channel(60, read=500 + 50 * (1 << 20))])
    assert diagnose(here) == []


@pytest.mark.parametrize(("last_s", "rules"), [(30.0, ["duplicate_server_id"]), (500.0, [])])
def test_old_log_messages_are_ignored(last_s: float, rules: list[str]) -> None:
    log = LogSummary(span_s=600.0, same_id_count=4, same_id_last_s=last_s)
    here = evidence(channels_before=[channel(10)], channels_after=[channel(10)], log=log)
    assert [finding.rule for finding in diagnose(here)] == rules


def test_source_with_two_replicas_of_one_id_is_a_fault() -> None:
    here = evidence(
        samples=[[client(100 + 9 * number, "Binlog Dump")] for number in range(8)],
        samples_span_s=0.3,
        replicas=[ReplicaHost(server_id=2, host=f"replica-{number}", port=3306) for number in (1, 2)],
        **counted(Connections=6000, Com_show_variables=6000, Com_admin_commands=6000),
    )
    (fault,) = diagnose(here)
    assert (fault.rule, fault.rate_hz) == ("duplicate_server_id", 600.0)
    assert "lists server id 2 alternately as replica-1:3306 and replica-2:3306" in " ".join(fault.evidence)


def test_source_with_many_steady_replicas_is_healthy() -> None:
    dumps = [client(number, "Binlog Dump") for number in range(1, 9)]
    hosts = [ReplicaHost(server_id=number, host=f"replica-{number}", port=3306) for number in range(1, 9)]
    log = LogSummary(span_s=600.0, dump_starts={str(number): 1 for number in range(1, 9)}, dump_last_s={"1": 5.0})
    assert diagnose(evidence(clients_before=dumps, samples=[dumps] * 8, replicas=hosts, log=log)) == []


def test_recorded_5_5_9_reconnects_with_rate_and_waiting_function() -> None:
    (fault,) = faults(read_recorded("mysql-5.5.9-duplicate-id-replica"))
    assert fault.text.startswith("Another replica of its source has its server id, 2: each pushes the other out, ")
    assert fault.rate_hz is not None
    assert fault.rate_hz > 50
    assert any("handle_slave_io" in frame for frame in fault.stack)
    assert "SET GLOBAL server_id" in fault.remedy[0]


def test_recorded_mariadb_with_a_duplicate_id_backs_off() -> None:
    (fault,) = faults(read_recorded("mariadb-duplicate-id-replica-2"))
    assert fault.text.endswith("It backs off between attempts.")
    assert "evicted" in fault.evidence[0]


def loop(server_id: int, *, gtid: bool) -> list[LoggedEvent]:
    first = {"kind": "Gtid", "info": f"BEGIN GTID 0-{server_id}-9"} if gtid else {"kind": "Query", "info": "BEGIN"}
    events = []
    for number in range(50):
        events += [
            LoggedEvent(server_id=server_id, **first),
            LoggedEvent(server_id=server_id, kind="Query", info="use `shop`; UPDATE t SET n=n+1"),
            LoggedEvent(server_id=server_id, kind="Xid", info=f"COMMIT /* xid={number} */"),
        ]
    return events


RING: dict[str, Any] = {
    "channels_before": [channel(1)],
    "channels_after": [channel(1)],
    "variables": {"server_id": "2"},
    "replicas": [ReplicaHost(server_id=1, host="node-1", port=3306)],
}


@pytest.mark.parametrize("gtid", [True, False])
def test_repeated_event_of_a_server_outside_the_ring_is_an_orphan(gtid: bool) -> None:
    (fault,) = find_orphan_event(evidence(**RING, logged=loop(99, gtid=gtid), **counted(Binlog_commits=12_730)))
    assert fault.rate_hz == 1273.0
    assert "IGNORE_SERVER_IDS=(99)" in fault.remedy[0]


def test_recorded_orphan_is_named_with_its_statement() -> None:
    (fault,) = faults(read_recorded("mariadb-orphan-event"))
    assert "server id 99, which no server of the ring has" in fault.text
    assert "IGNORE_SERVER_IDS=(99)" in fault.remedy[0]
    assert "GTID 0-99-" in fault.evidence[0]
    assert "UPDATE" in fault.evidence[0]


def test_repeated_statement_of_the_other_primary_is_not_an_orphan() -> None:
    assert find_orphan_event(evidence(**RING, logged=loop(1, gtid=False))) == []
    moving = [LoggedEvent(server_id=1, kind="Gtid", info=f"BEGIN GTID 0-1-{number}") for number in range(100)]
    assert find_orphan_event(evidence(**RING, logged=moving)) == []


def test_statements_with_different_values_are_not_an_orphan() -> None:
    event = LoggedEvent(server_id=99, kind="Query", info=normalise("UPDATE t SET n = 'x' WHERE id = 1"))
    moving = [msgspec.structs.replace(event, text_number=number) for number in range(100)]
    assert find_orphan_event(evidence(**RING, logged=moving)) == []
    (fault,) = find_orphan_event(evidence(**RING, logged=[msgspec.structs.replace(event, text_number=0)] * 50))
    assert "UPDATE t SET n = ? WHERE id = ?" in fault.evidence[0]


def test_replica_without_replicas_is_not_in_a_ring() -> None:
    assert find_orphan_event(evidence(**{**RING, "replicas": []}, logged=loop(99, gtid=True))) == []


@pytest.mark.parametrize(
    ("name", "stack", "role"),
    [
        ("thread/sql/slave_io", [], "replica I/O thread"),
        (None, ["poll", "read_event", "handle_slave_io"], "replica I/O thread"),
        (None, ["exec_relay_log_event", "handle_slave_sql"], "replica SQL thread"),
        ("thread/sql/one_connection (Binlog Dump)", [], "dump thread"),
        ("thread/sql/one_connection", ["poll", "do_command"], None),
    ],
)
def test_replication_threads_are_known_by_name_or_function(
    name: str | None, stack: list[str], role: str | None
) -> None:
    assert find_role(name, stack) == role


def test_refused_replica_reports_its_source_and_error() -> None:
    row = {
        "Slave_IO_Running": "Connecting",
        "Last_IO_Error": "Access denied",
        "Last_IO_Errno": 1045,
        "Master_Host": "db1",
        "Master_Port": 3306,
    }
    (fault,) = diagnose(evidence(channels_before=[channel(3, **row)], channels_after=[channel(3, **row)]))
    assert fault.rule == "reconnect_loop"
    assert "db1:3306" in fault.text
    assert "Access denied" in fault.evidence


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
ALIVE = channel(7, Seconds_Behind_Master=0)


def replica(*looks: ReplicationChannel, **fields: Any) -> Evidence:
    return evidence(channels_before=[looks[0]], channels_after=[looks[1]], channels_seen=list(looks[2:]), **fields)


def test_dead_sql_thread_is_a_fault() -> None:
    (fault,) = faults(replica(*[channel(7, **DEAD)] * 5))
    assert fault.rule == "replication_stopped"
    assert fault.text.startswith(
        "The SQL thread of this replica (source primary:3306) stops with error 1062: it applies"
    )
    assert fault.evidence[0] == "Error on query: INSERT INTO t VALUES (?, …) (SHOW SLAVE STATUS has the whole message)"
    assert "Seconds_Behind_Master is NULL in 5 of 5 samples" in fault.evidence


def test_dead_sql_thread_with_repeated_restarts_is_a_fault() -> None:
    looks = [ALIVE, ALIVE, ALIVE, channel(7, **DEAD), ALIVE]
    (fault,) = faults(replica(*looks, **counted(Com_start_slave=30)))
    assert "START SLAVE is issued 3.0 times/s, and the thread stops again each time" in fault.text
    assert any("it only hides the error" in line for line in fault.remedy)


def test_error_in_the_log_counts_while_the_thread_is_off() -> None:
    log = LogSummary(
        span_s=60.0, sql_error=normalise_replication_error(DUPLICATE), sql_errors_count=4, sql_error_last_s=1.0
    )
    assert fault_rules(replica(ALIVE, channel(7, Slave_SQL_Running="No"), log=log)) == ["replication_stopped"]
    assert fault_rules(replica(ALIVE, ALIVE, log=log)) == []


@pytest.mark.parametrize(
    ("row", "severity", "words"),
    [
        ({"Slave_SQL_Running": "No"}, "fault", "but its I/O thread still reads"),
        ({"Slave_SQL_Running": "No", "Slave_IO_Running": "No"}, "note", "is stopped: both of its threads are off"),
        (
            {"Slave_IO_Running": "No", "Last_IO_Errno": 1236, "Last_IO_Error": "could not find next log"},
            "fault",
            "has stopped with error 1236",
        ),
    ],
)
def test_stopped_threads_are_reported(row: dict[str, Any], severity: str, words: str) -> None:
    findings = [one for one in diagnose(replica(*[channel(7, **row)] * 3)) if one.rule == "replication_stopped"]
    assert [(one.severity, words in one.text) for one in findings] == [(severity, True)]


@pytest.mark.parametrize(
    ("version", "word", "other"), [("MySQL 9.7.4", "REPLICA", "SLAVE"), ("MariaDB 11.8.2", "SLAVE", "REPLICA")]
)
def test_statements_follow_the_terms_of_the_release(version: str, word: str, other: str) -> None:
    here = replica(*[channel(7, Slave_SQL_Running="No")] * 3, version=version)
    (finding,) = [one for one in diagnose(here) if one.rule == "replication_stopped"]
    assert f"START {word} SQL_THREAD" in finding.remedy[0]
    assert other not in " ".join([finding.text, *finding.evidence, *finding.remedy])
