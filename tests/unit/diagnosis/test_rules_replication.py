# SPDX-License-Identifier: Apache-2.0
"""The rules on replication: faults of sources and replicas are found, healthy ones have no findings."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from powerprof.diagnosis.diagnose import diagnose
from powerprof.diagnosis.evidence import Evidence, LoggedEvent, LogSummary, ReplicaHost, ReplicationChannel
from powerprof.diagnosis.rules_replication import (
    compute_reconnects_hz,
    compute_source_churn_hz,
    count_dump_changes,
    find_duplicate_id_on_replica,
    find_duplicate_id_on_source,
    find_orphan_event,
    find_reconnect_loop,
    find_role,
)
from powerprof.diagnosis.wording import format_seconds
from powerprof.model.statements import normalise, normalise_replication_error
from tests.unit.diagnosis.examples import channel, client, counted, evidence, fault_rules, faults, read_recorded
from tests.unit.diagnosis.examples import row as thread_row


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


@given(st.integers(0, 40), st.integers(0, 40), st.integers(0, 1 << 20), st.floats(1.0, 60.0))
def test_reconnects_are_those_of_the_channel_with_most(east: int, west: int, read: int, window_s: float) -> None:
    """A channel that reads more than 16 KiB per change of its relay log changes it by size."""
    before = [channel(10, Connection_name="east"), channel(70, Connection_name="west")]
    after = [channel(10 + east, Connection_name="east"), channel(70 + west, read=500 + read, Connection_name="west")]
    here = evidence(channels_before=before, channels_after=after, window_s=window_s, traced_s=window_s / 2)
    most = max(east, west if read <= west * (16 << 10) else 0)
    assert compute_reconnects_hz(here) == pytest.approx(most / window_s if most >= 3 else 0.0)


def test_relay_logs_that_are_no_reconnects() -> None:
    def hertz(before: ReplicationChannel, after: ReplicationChannel) -> float | None:
        return compute_reconnects_hz(evidence(channels_before=[before], channels_after=[after]))

    assert (hertz(channel(10), channel(15)), hertz(channel(10), channel(12))) == (0.5, 0.0)
    # RESET SLAVE begins with the first file again.
    assert hertz(channel(90), channel(2)) == 0.0
    # Another file of the source, or an unknown position.
    assert hertz(channel(10), channel(99, Master_Log_File="binlog.000002")) == 0.0
    assert hertz(channel(10), channel(99, Read_Master_Log_Pos=None)) == 0.0
    assert hertz(channel(10, Connection_name="a"), channel(99, Connection_name="b")) is None
    unnamed = ReplicationChannel(status=channel(1).status, relay_log_file=None)
    assert hertz(unnamed, channel(10)) is None
    assert (
        compute_reconnects_hz(evidence(channels_before=[channel(1)], channels_after=[channel(9)], window_s=0)) is None
    )


DUMP = "Binlog Dump GTID"


@pytest.mark.parametrize(
    ("samples", "changes"),
    [
        ([], 0),
        ([[7], [7], [7]], 0),
        ([[], [7], [7]], 0),  # a replica that connects once
        ([[7], [7], []], 0),  # and one that leaves
        ([[7], [8], [8]], 1),
        ([[7, 2], [8, 2], [9, 2]], 2),
        ([[7, 2], [7, 2, 3], [7, 2, 3]], 0),
        ([[], [], []], 0),
    ],
)
def test_a_dump_thread_was_replaced_if_another_one_has_its_place(samples: list[list[int]], changes: int) -> None:
    here = evidence(
        samples=[[*(client(id, DUMP) for id in ids), client(90 + at)] for at, ids in enumerate(samples)],
        **counted(Connections=400),
    )
    assert count_dump_changes(here) == changes
    assert compute_source_churn_hz(here) == (40.0 if changes >= 2 else 0.0)


@pytest.mark.parametrize(
    ("starts", "span_s", "last_s", "churn_hz", "rules"),
    [
        (5, 10.0, 100.0, 4.0, ["duplicate_server_id"]),  # twice per second
        (5, 10.1, 100.0, 0.0, ["duplicate_server_id"]),
        (3, 540.0, 119.0, 0.0, ["duplicate_server_id"]),  # every 180 s
        (3, 541.0, 119.0, 0.0, []),
        (2, 540.0, 119.0, 0.0, []),
        (5, 10.0, 120.0, 0.0, []),  # the fault was fixed
        (900, 450.0, 3.0, 4.0, ["duplicate_server_id"]),
    ],
)
def test_starts_in_the_log_are_judged_by_their_rate_and_age(
    starts: int, span_s: float, last_s: float, churn_hz: float, rules: list[str]
) -> None:
    log = LogSummary(span_s=span_s, dump_starts={"4": starts, "9": 1}, dump_last_s={"4": last_s, "9": 1.0})
    here = evidence(log=log, **counted(Connections=40))
    assert compute_source_churn_hz(here) == churn_hz
    assert fault_rules(here) == rules
    if rules:
        (fault,) = find_duplicate_id_on_source(here)
        assert f"server id 4 began to read {starts} times" in fault.evidence[-1]
        assert fault.rate_hz == (churn_hz or None)
        # A low rate is no proof of two replicas.
        assert fault.text.startswith("Two replicas" if churn_hz else "A replica with server id 4 keeps coming back")
    assert fault_rules(evidence(log=msgspec.structs.replace(log, dump_last_s={}))) == []


def test_a_host_that_is_listed_twice_shares_its_id_with_no_other() -> None:
    def hosts(*names: str) -> list[ReplicaHost]:
        return [ReplicaHost(server_id=2, host=name, port=3306) for name in names]

    assert find_duplicate_id_on_source(evidence(replicas=hosts("a", "a"))) == []
    other = ReplicaHost(server_id=3, host="b", port=3306)
    assert find_duplicate_id_on_source(evidence(replicas=[*hosts("a"), other])) == []
    (fault,) = find_duplicate_id_on_source(evidence(replicas=[*hosts("a", "b"), other]))
    assert fault.evidence == ["SHOW SLAVE HOSTS lists server id 2 alternately as a:3306 and b:3306"]
    assert fault.rate_hz is None
    # The replaced threads are counted within the samples.
    ids = [[7], [8], [9]]
    churned = evidence(
        replicas=hosts("a", ""),
        samples=[[client(id, DUMP) for id in sample] for sample in ids],
        samples_span_s=0.31,
        **counted(Connections=57),
    )
    (fault,) = find_duplicate_id_on_source(churned)
    assert fault.evidence[0] == "2 dump threads were replaced within 0.3 s, 5.7 connections/s are made"
    assert "(no report_host):3306" in fault.evidence[1]
    assert fault.rate_hz == pytest.approx(5.7)


@pytest.mark.parametrize(
    ("retry_s", "last_s", "asked", "count"),
    [(20, 70.0, True, 1), (20, 70.1, True, 0), (None, 190.0, True, 1), (None, 190.1, True, 0)],
)
def test_an_eviction_is_recent_for_three_retries(retry_s: int | None, last_s: float, asked: bool, count: int) -> None:
    log = LogSummary(span_s=600.0, same_id_count=4, same_id_last_s=last_s)
    looks = [channel(10, Connect_Retry=retry_s)]
    here = evidence(channels_before=looks, channels_after=looks, log=log, asked=asked, variables={"server_id": "23"})
    found = find_duplicate_id_on_replica(here)
    assert len(found) == count
    if count:
        assert (
            f"evicted 4 times by a replica with the same id, last {format_seconds(last_s)} ago"
            in (found[0].evidence[0])
        )
        assert "has its server id, 23:" in found[0].text


def test_evictions_are_named_with_their_rate_and_the_exits_of_the_thread() -> None:
    rows = [
        thread_row("thread/sql/slave_io", 2.25, stack=["poll", "handle_slave_io"], wakings_hz=90.0),
        thread_row("thread/sql/slave_io", 1.5, stack=["nanosleep", "try_to_reconnect"]),
        thread_row("thread/sql/slave_sql", 70.0),
    ]
    here = evidence(channels_before=[channel(10)], channels_after=[channel(22)], wakeups=rows, window_s=8.0)
    (fault,) = find_duplicate_id_on_replica(here)
    assert fault.rate_hz == 1.5
    assert "changed 1.5 times/s, as at every reconnect" in fault.evidence[0]
    assert fault.evidence[1] == "its I/O thread ends 3.8 idle periods/s"
    assert fault.stack == ["nanosleep", "try_to_reconnect"]
    # Without a server that answers, the log alone shows it.
    log = LogSummary(span_s=600.0, same_id_count=4, same_id_last_s=9.0)
    assert len(find_duplicate_id_on_replica(evidence(log=log, asked=False))) == 1
    assert find_duplicate_id_on_replica(evidence(log=log, asked=True)) == []


LOST = "Waiting to reconnect after a failed master event read"


@pytest.mark.parametrize(
    ("before", "after", "count"),
    [
        ({"Slave_IO_State": LOST}, {"Slave_IO_State": LOST}, 1),
        ({}, {"Slave_IO_State": LOST}, 0),  # it lost its source once
        ({"Slave_IO_State": LOST}, {}, 0),
        ({}, {"Slave_IO_Running": "Connecting", "Last_IO_Error": "Access denied"}, 1),
        ({}, {"Slave_IO_Running": "Connecting"}, 0),
    ],
)
def test_a_source_is_lost_if_it_is_away_at_both_ends(before: dict[str, str], after: dict[str, str], count: int) -> None:
    where = {"Master_Host": "db1", "Master_Port": 3307, "Connect_Retry": 17}
    log = LogSummary(span_s=300.0, retries_count=6)
    here = evidence(
        channels_before=[channel(7, **where, **before)], channels_after=[channel(7, **where, **after)], log=log
    )
    found = find_reconnect_loop(here)
    assert len(found) == count
    for fault in found:
        assert "its source db1:3307 and tries again every 17 s." in fault.text
        assert "the error log: 6 reconnects in 5 min" in fault.evidence
        assert fault.rate_hz is None


@pytest.mark.parametrize(("rounds", "count"), [(2, 0), (3, 1)])
def test_a_gtid_circulates_from_its_third_round(rounds: int, count: int) -> None:
    lap = [
        LoggedEvent(server_id=99, kind="Gtid", info="BEGIN GTID 0-99-9"),
        LoggedEvent(server_id=99, kind="Query", info="UPDATE t SET n = ?"),
    ]
    others = [LoggedEvent(server_id=1, kind="Gtid", info=f"BEGIN GTID 0-1-{number}") for number in range(5)]
    rows = [thread_row("thread/sql/slave_sql", 4.5), thread_row("thread/sql/slave_io", 3.0), thread_row("x", 9.0)]
    here = evidence(
        **RING,
        logged=lap * rounds + others,
        position_before_bytes=1_000,
        position_after_bytes=481_000,
        window_s=8.0,
        wakeups=rows,
    )
    found = find_orphan_event(here)
    assert len(found) == count
    for fault in found:
        assert fault.evidence == [
            "the binary log holds the same event 3 times within 11 events: GTID 0-99-9: UPDATE t SET n = ?",
            "the binary log grew by 60 kB/s",
            "the replication threads end 7.5 idle periods/s",
        ]
        assert "goes round this ring 3 times in 11 events" in fault.text


@pytest.mark.parametrize(("same", "count"), [(4, 0), (5, 1)])
@pytest.mark.parametrize("server_id", [99, 1, 2, 0])
def test_without_gtids_the_same_text_of_an_outsider_circulates(same: int, count: int, server_id: int) -> None:
    event = LoggedEvent(server_id=server_id, kind="Query", info=normalise("UPDATE t SET n = 5"), text_number=3)
    begin = LoggedEvent(server_id=server_id, kind="Query", info=normalise("BEGIN"), text_number=0)
    found = find_orphan_event(evidence(**RING, logged=[begin, event] * same))
    assert len(found) == (count if server_id == 99 else 0)


def test_a_thread_is_stopped_if_it_is_off_in_all_samples_and_known_to_be() -> None:
    off, unknown = {"Slave_SQL_Running": "No"}, {"Slave_SQL_Running": None}
    assert fault_rules(replica(channel(7, **off), ALIVE, channel(7, **off))) == []
    assert fault_rules(replica(*[channel(7, **unknown)] * 3)) == []
    size = {"Relay_Log_Space": 7_340_032, "Seconds_Behind_Master": None}
    looks = [channel(7, **off, **size)] * 3
    (fault,) = faults(replica(*looks))
    assert fault.evidence == [
        "Slave_SQL_Running is No in all 3 samples, without an error",
        "Seconds_Behind_Master is NULL in 3 of 3 samples",
        "the relay logs hold 7.3 MB",
    ]


def test_an_error_has_its_counts_and_the_rate_of_restarts() -> None:
    log = LogSummary(span_s=240.0, sql_error=None, sql_errors_count=11)
    looks = [ALIVE, channel(7, **DEAD), channel(7, **DEAD), ALIVE, ALIVE]
    (fault,) = faults(replica(*looks, log=log, window_s=8.0, **counted(Com_start_slave=10, Com_start_all_slaves=2)))
    assert "Slave_SQL_Running is No in 2 of 5 samples" in fault.evidence
    assert "Seconds_Behind_Master is NULL in 2 of 5 samples" in fault.evidence
    assert "the error log: it failed 11 times in 4 min" in fault.evidence
    assert fault.rate_hz == 1.5
    stopped = {"Slave_IO_Running": "No", "Last_IO_Errno": 1236, "Last_IO_Error": "no log", "Master_Host": "db9"}
    (fault,) = faults(replica(*[channel(7, **stopped)] * 3, window_s=4.0, **counted(Com_start_slave=10)))
    assert (fault.rate_hz, fault.evidence[0]) == (2.5, "no log")
    assert "START SLAVE is issued 2.5 times/s" in fault.text


@pytest.mark.parametrize(("age_s", "count"), [(120.0, 1), (121.0, 0)])
def test_an_error_of_the_log_is_recent_for_two_minutes(age_s: float, count: int) -> None:
    log = LogSummary(span_s=600.0, sql_error=normalise_replication_error(DUPLICATE), sql_error_last_s=age_s)
    looks = [ALIVE, channel(7, Slave_SQL_Running="No")]
    assert len(faults(replica(*looks, log=log))) == count
    # Of several channels the log does not show which one failed.
    other = channel(7, Connection_name="other")
    assert faults(replica(*looks, other, log=log)) == []
