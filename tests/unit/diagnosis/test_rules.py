# SPDX-License-Identifier: Apache-2.0
"""Rules at their edges: what is usual stays silent, what is not is said once."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from powerprof.database.clients.performance import parse_status
from powerprof.diagnosis import rules_clients, rules_replication, rules_threads
from powerprof.diagnosis.diagnose import diagnose
from powerprof.diagnosis.evidence import (
    Client,
    Evidence,
    Finding,
    LiveRemedy,
    LoggedEvent,
    LogSummary,
    ReplicaHost,
    ReplicationChannel,
    ScheduledEvent,
    ThreadWakeups,
)
from powerprof.live.intervals import LiveFinding, RowHistory
from powerprof.report.watch import ScreenView, draw_screen
from powerprof.statements.text import normalise
from tests.unit.live.intervals import interval
from tests.unit.live.intervals import row as live_row


def evidence(**given: Any) -> Evidence:
    return msgspec.structs.replace(Evidence(version="MariaDB 10.11.19", family="mariadb", window_s=10.0), **given)


def counted(**moved: int) -> dict[str, Any]:
    return {"status_before": dict.fromkeys(moved, 1000), "status_after": {k: 1000 + v for k, v in moved.items()}}


def channel(relay: int, read: int = 500, **row: Any) -> ReplicationChannel:
    base = {
        "Master_Log_File": "binlog.000001",
        "Read_Master_Log_Pos": read,
        "Slave_IO_Running": "Yes",
        "Slave_SQL_Running": "Yes",
        "Master_Server_Id": 1,
        "Connect_Retry": 60,
    }
    return ReplicationChannel(status=parse_status({**base, **row}), relay_log_file=f"relay.{relay:06}")


def client(number: int, command: str = "Sleep", **given: Any) -> Client:
    base: dict[str, Any] = {"user": "app", "host": "10.0.0.7:4000", "time_s": 100.0, "state": "", "statement": ""}
    return Client(id=number, command=command, **{**base, **given})


def row(
    name: str | None,
    rate_hz: float,
    *,
    origin: str = "own_timer",
    stack: tuple[str, ...] = (),
    tid: int = 7,
    period_ms: float | None = None,
    wakings_hz: float | None = None,
) -> ThreadWakeups:
    return ThreadWakeups(
        tid=tid,
        comm="mariadbd",
        name=name,
        origin=origin,
        rate_hz=rate_hz,
        wakings_hz=rate_hz if wakings_hz is None else wakings_hz,
        period_ms=period_ms,
        stack=list(stack),
    )


@pytest.mark.parametrize(("changes", "found"), [(0, 0), (2, 0), (5, 1), (3000, 1)])
def test_relay_logs_that_change_without_anything_to_read_are_reconnects(changes: int, found: int) -> None:
    here = evidence(channels_before=[channel(10)], channels_after=[channel(10 + changes)])
    assert len(rules_replication.find_duplicate_id_on_replica(here)) == found


def test_relay_logs_that_change_by_size_are_not() -> None:
    here = evidence(channels_before=[channel(10)], channels_after=[channel(60, read=500 + 50 * (1 << 20))])
    assert diagnose(here) == []


def test_the_logs_of_a_mended_fault_are_believed_for_a_while_only() -> None:
    def found(last_s: float) -> list[str]:
        log = LogSummary(span_s=600.0, same_id_count=4, same_id_last_s=last_s)
        here = evidence(channels_before=[channel(10)], channels_after=[channel(10)], log=log)
        return [one.rule for one in diagnose(here)]

    assert found(30.0) == ["duplicate_server_id"]
    assert found(500.0) == []


def test_a_source_whose_replicas_take_turns() -> None:
    samples = [[client(100 + 9 * n, "Binlog Dump")] for n in range(8)]
    hosts = [ReplicaHost(server_id=2, host=f"replica-{n}", port=3306) for n in (1, 2)]
    here = evidence(
        samples=samples,
        samples_span_s=0.3,
        replicas=hosts,
        **counted(Connections=6000, Com_show_variables=6000, Com_admin_commands=6000),
    )
    (fault,) = diagnose(here)
    assert (fault.rule, fault.rate_hz) == ("duplicate_server_id", 600.0)
    assert "lists server id 2 in turns as replica-1:3306 and replica-2:3306" in " ".join(fault.evidence)


def test_a_source_with_many_steady_replicas_is_healthy() -> None:
    dumps = [client(n, "Binlog Dump") for n in range(1, 9)]
    hosts = [ReplicaHost(server_id=n, host=f"replica-{n}", port=3306) for n in range(1, 9)]
    log = LogSummary(span_s=600.0, dump_starts={str(n): 1 for n in range(1, 9)}, dump_last_s={"1": 5.0})
    assert diagnose(evidence(clients_before=dumps, samples=[dumps] * 8, replicas=hosts, log=log)) == []


def loop(server_id: int, *, gtid: bool, times: int = 50) -> list[LoggedEvent]:
    made = []
    for number in range(times):
        if gtid:
            made.append(LoggedEvent(server_id=server_id, kind="Gtid", info=f"BEGIN GTID 0-{server_id}-9"))
        else:
            made.append(LoggedEvent(server_id=server_id, kind="Query", info="BEGIN"))
        made.append(LoggedEvent(server_id=server_id, kind="Query", info="use `shop`; UPDATE t SET n=n+1"))
        made.append(LoggedEvent(server_id=server_id, kind="Xid", info=f"COMMIT /* xid={number} */"))
    return made


RING = {
    "channels_before": [channel(1)],
    "channels_after": [channel(1)],
    "variables": {"server_id": "2"},
    "replicas": [ReplicaHost(server_id=1, host="node-1", port=3306)],
}


@pytest.mark.parametrize("gtid", [True, False])
def test_an_event_of_a_stranger_that_comes_again_and_again(gtid: bool) -> None:
    (fault,) = rules_replication.find_orphan_event(
        evidence(**RING, logged=loop(99, gtid=gtid), **counted(Binlog_commits=12_730))
    )
    assert fault.rate_hz == 1273.0
    assert "IGNORE_SERVER_IDS=(99)" in fault.remedy[0]


def test_a_client_of_the_other_primary_that_repeats_a_statement_is_no_loop() -> None:
    assert rules_replication.find_orphan_event(evidence(**RING, logged=loop(1, gtid=False))) == []
    moving = [LoggedEvent(server_id=1, kind="Gtid", info=f"BEGIN GTID 0-1-{n}") for n in range(100)]
    assert rules_replication.find_orphan_event(evidence(**RING, logged=moving)) == []


def test_statements_with_other_values_are_no_loop_though_they_look_the_same() -> None:
    one = LoggedEvent(server_id=99, kind="Query", info=normalise("UPDATE t SET n = 'x' WHERE id = 1"))
    moving = [msgspec.structs.replace(one, text_number=number) for number in range(100)]
    assert rules_replication.find_orphan_event(evidence(**RING, logged=moving)) == []
    (fault,) = rules_replication.find_orphan_event(
        evidence(**RING, logged=[msgspec.structs.replace(one, text_number=0)] * 50)
    )
    assert "UPDATE t SET n = ? WHERE id = ?" in fault.evidence[0]


def test_replica_that_feeds_nobody_has_no_ring() -> None:
    here = {**RING, "replicas": []}
    assert rules_replication.find_orphan_event(evidence(**here, logged=loop(99, gtid=True))) == []


@pytest.mark.parametrize(("asked", "found"), [(3, 0), (12, 0), (49, 0), (501, 1)])
def test_how_often_a_monitor_may_ask(asked: int, found: int) -> None:
    here = evidence(own_counts={"Com_show_status": 1}, **counted(Com_show_status=asked))
    assert len(rules_clients.find_monitoring(here)) == found


def test_drivers_that_show_warnings_are_no_monitors() -> None:
    assert rules_clients.find_monitoring(evidence(**counted(Com_show_warnings=5000, Com_show_fields=5000))) == []


def polled(**given: Any) -> Finding:
    """A server that is asked SHOW STATUS 7.8 times a second, with a busy application on connection 75."""
    application = client(75, user="app", time_s=0.001, statement="SELECT * FROM orders", tid=1075)
    monitor = client(15, user="mon", time_s=0.02, statement=given.pop("statement", ""), tid=1015)
    rows = [
        row("thread/sql/one_connection", given.pop("application_hz", 400.0), tid=1075),
        row("thread/sql/one_connection", given.pop("monitor_hz", 7.8), tid=1015),
    ]
    here = evidence(samples=[[application, monitor]] * 8, wakeups=rows, **given, **counted(Com_show_status=78))
    (found,) = rules_clients.find_monitoring(here)
    return found


def test_a_busy_bystander_is_not_named_for_statements_that_another_sends() -> None:
    found = polled()
    assert found.text == "A client asks SHOW STATUS 7.8 times/s: it keeps the CPUs awake."
    assert not any("KILL" in one or "app@" in one for one in [*found.remedy, *found.evidence])


def test_watch_accuses_no_application_of_what_a_replica_asks() -> None:
    """SHOW SLAVE HOSTS 49 times a second, beside a busy application: the screen names no account and ends nobody."""
    application = client(75, user="app", time_s=0.001, statement="SELECT * FROM orders", tid=1075)
    rows = [row("thread/sql/one_connection", 400.0, tid=1075)]
    others = [client(15, user="repl", time_s=0.02, statement="", tid=1015)]
    here = evidence(samples=[[application, *others]] * 8, wakeups=rows, **counted(Com_show_slave_hosts=490))
    (found,) = rules_clients.find_monitoring(here)
    shown = LiveFinding(rule=found.rule, severity=found.severity, text=found.text)
    kept = RowHistory()
    kept.add(interval(live_row("net_serv", 4000), findings=(shown,)))
    drawn = " ".join(draw_screen(kept, ScreenView(), "powerprof watch", 80, 24))
    assert found.text in drawn and "SHOW SLAVE HOSTS 49" in found.text
    assert "app" not in drawn
    assert "KILL" not in " ".join([drawn, *found.remedy])


def test_who_asks_is_named_by_the_servers_own_count_of_each_connection() -> None:
    sent = {15: {"Com_show_status": 76}, 75: {"Com_show_status": 2, "Com_show_warnings": 4000}}
    found = polled(statements_by_connection=sent)
    assert found.text.startswith("mon@10.0.0.7 asks SHOW STATUS")
    assert found.remedy[1] == "to stop it now: KILL 15, because the server counted 7.6 times/s on it"
    between_many = {15: {"Com_show_status": 26}, 75: {"Com_show_status": 26}}
    assert "KILL" not in " ".join(polled(statements_by_connection=between_many).remedy)


def test_who_asks_is_named_where_statement_and_rate_match() -> None:
    found = polled(statement="show status like 'Threads%'")
    assert found.text.startswith("mon@10.0.0.7 asks SHOW STATUS")
    assert "KILL 15, because it was seen asking, and its thread is woken 7.8 times/s" in found.remedy[1]
    # It was seen asking once, and does something else most of the time.
    assert "KILL" not in " ".join(polled(statement="SHOW STATUS", monitor_hz=90.0).remedy)
    # As often as is asked, and never seen asking.
    assert "KILL" not in " ".join(polled(application_hz=7.8, monitor_hz=100.0).remedy)


def test_failed_logins_and_empty_connections() -> None:
    here = evidence(**counted(Aborted_connects=50, Connections=50, Questions=2))
    assert [one.text for one in rules_clients.find_failed_logins(here)] == [
        "A client fails to log in 5.0 times/s and tries again."
    ]
    assert rules_clients.find_short_connections(here) == []
    empty = rules_clients.find_short_connections(
        evidence(**counted(Aborted_connects=0, Connections=200, Questions=300))
    )
    assert [one.rule for one in empty] == ["client_reconnect_loop"]
    web = evidence(**counted(Aborted_connects=0, Connections=200, Questions=4000))
    assert rules_clients.find_short_connections(web) == []


def test_connection_numbers_taken_by_a_replicas_own_threads_are_no_clients() -> None:
    here = evidence(**RING, **counted(Aborted_connects=0, Connections=500, Questions=2))
    assert rules_clients.find_short_connections(here) == []


def test_a_wait_that_polls_is_a_fault_and_a_slow_clock_a_note() -> None:
    (fault,) = rules_threads.find_polling_waits(evidence(wakeups=[row("thread/innodb/log_writer_thread", 900.0)]))
    assert "innodb_log_writer_threads=OFF" in fault.remedy[0]
    slow = evidence(wakeups=[row("thread/innodb/page_cleaner_thread", 1.0, period_ms=1000.0)])
    assert rules_threads.find_polling_waits(slow) == []
    (note,) = rules_threads.describe_periodic_threads(slow)
    assert note.text == "innodb/page_cleaner_thread wakes every 1 s (1.0 times/s): it writes dirty pages."
    assert rules_threads.find_polling_waits(evidence(wakeups=[row("thread/innodb/page_cleaner_thread", 5.0)])) != []


def test_an_unknown_thread_that_polls_is_told_by_its_functions() -> None:
    polling = [row(None, 50.0, stack=("nanosleep", "plugin_loop", "start_thread"))]
    (fault,) = rules_threads.find_polling_waits(evidence(wakeups=polling))
    assert fault.stack == ["nanosleep", "plugin_loop", "start_thread"]


def test_threads_of_replication_are_known_by_name_or_function() -> None:
    assert rules_replication.find_role("thread/sql/slave_io", []) == "replica I/O thread"
    assert rules_replication.find_role(None, ["poll", "read_event", "handle_slave_io"]) == "replica I/O thread"
    assert rules_replication.find_role(None, ["exec_relay_log_event", "handle_slave_sql"]) == "replica SQL thread"
    assert rules_replication.find_role("thread/sql/one_connection (Binlog Dump)", []) == "dump thread"
    assert rules_replication.find_role("thread/sql/one_connection", ["poll", "do_command"]) is None


@pytest.mark.parametrize(("interval_s", "severity"), [(1.0, "fault"), (60.0, "note")])
def test_the_event_scheduler(interval_s: float, severity: str) -> None:
    events = [ScheduledEvent(name="shop.refresh", interval_s=interval_s, enabled=True)]
    (found,) = rules_threads.find_event_scheduler(evidence(events=events, variables={"event_scheduler": "ON"}))
    assert found.severity == severity
    assert found.tries == [LiveRemedy(variable="event_scheduler", value="OFF")]
    assert rules_threads.find_event_scheduler(evidence(events=events, variables={"event_scheduler": "OFF"})) == []


def test_an_event_stands_in_statements_as_an_identifier_whatever_it_is_called() -> None:
    name = "x` ENABLE; DROP DATABASE shop; -- \x1b[2J"
    event = ScheduledEvent(name="shop.x", interval_s=1.0, enabled=True, database="shop", event=name)
    (found,) = rules_threads.find_event_scheduler(
        evidence(events=[event], variables={"event_scheduler": "ON"}, pid=4711)
    )
    assert found.tries[0] == LiveRemedy(database="shop", event=name)
    assert "ALTER EVENT `shop`.`x`` ENABLE; DROP DATABASE shop; -- ?[2J` ON SCHEDULE" in found.remedy[0]
    assert found.remedy[-1] == "to try it live: powerprof cure --pid 4711 --finding event_scheduler"


def test_without_a_connection_the_wake_ups_alone_are_judged() -> None:
    blind = evidence(asked=False, wakeups=[row(None, 40.0, stack=("nanosleep",))])
    assert [one.rule for one in diagnose(blind)] == ["polling_wait", "most_helpful"]


def test_a_replica_that_is_refused() -> None:
    said = {
        "Slave_IO_Running": "Connecting",
        "Last_IO_Error": "Access denied",
        "Last_IO_Errno": 1045,
        "Master_Host": "db1",
        "Master_Port": 3306,
    }
    here = evidence(channels_before=[channel(3, **said)], channels_after=[channel(3, **said)])
    (fault,) = diagnose(here)
    assert fault.rule == "reconnect_loop"
    assert "db1:3306" in fault.text
    assert "Access denied" in fault.evidence
