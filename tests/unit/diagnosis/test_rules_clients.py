# SPDX-License-Identifier: Apache-2.0
"""The rules on clients: monitors, short connections, refused logins and pollers of tables."""

from __future__ import annotations

from typing import Any

import pytest

from powerprof.diagnosis.diagnose import diagnose
from powerprof.diagnosis.evidence import DUMPS, DeniedAccount, Evidence, Finding, LogSummary
from powerprof.diagnosis.rules_clients import find_failed_logins, find_monitoring, find_short_connections
from powerprof.live.intervals import LiveFinding, RowHistory
from powerprof.report.watch import ScreenView, draw_screen
from tests.unit.diagnosis.examples import channel, client, counted, evidence, fault_rules, faults, read_recorded, row
from tests.unit.live.intervals import interval
from tests.unit.live.intervals import row as live_row


@pytest.mark.parametrize(("queries", "findings"), [(3, 0), (12, 0), (49, 0), (501, 1)])
def test_monitor_may_query_up_to_5_times_per_second(queries: int, findings: int) -> None:
    here = evidence(own_counts={"Com_show_status": 1}, **counted(Com_show_status=queries))
    assert len(find_monitoring(here)) == findings


def test_drivers_that_show_warnings_are_not_monitors() -> None:
    assert find_monitoring(evidence(**counted(Com_show_warnings=5000, Com_show_fields=5000))) == []


def polled(*, statement: str = "", application_hz: float = 400.0, monitor_hz: float = 7.8, **fields: Any) -> Finding:
    """Return the finding for SHOW STATUS 7.8 times per second and a busy application on connection 75."""
    application = client(75, time_s=0.001, statement="SELECT * FROM orders", tid=1075)
    monitor = client(15, user="mon", time_s=0.02, statement=statement, tid=1015)
    rows = [
        row("thread/sql/one_connection", application_hz, tid=1075),
        row("thread/sql/one_connection", monitor_hz, tid=1015),
    ]
    here = evidence(samples=[[application, monitor]] * 8, wakeups=rows, **fields, **counted(Com_show_status=78))
    (finding,) = find_monitoring(here)
    return finding


def test_busy_client_is_not_accused_of_other_statements() -> None:
    finding = polled()
    assert finding.text == "A client sends SHOW STATUS 7.8 times/s."
    assert not any("KILL" in line or "app@" in line for line in [*finding.remedy, *finding.evidence])


def test_watch_does_not_accuse_an_application_of_queries_of_a_replica() -> None:
    application = client(75, time_s=0.001, statement="SELECT * FROM orders", tid=1075)
    replica = client(15, user="repl", time_s=0.02, tid=1015)
    rows = [row("thread/sql/one_connection", 400.0, tid=1075)]
    here = evidence(samples=[[application, replica]] * 8, wakeups=rows, **counted(Com_show_slave_hosts=490))
    (finding,) = find_monitoring(here)
    history = RowHistory()
    live_finding = LiveFinding(rule=finding.rule, severity=finding.severity, text=finding.text)
    history.add(interval(live_row("net_serv", 4000), findings=(live_finding,)))
    screen = " ".join(draw_screen(history, ScreenView(), "powerprof watch", 80, 24))
    assert finding.text in screen and "SHOW SLAVE HOSTS 49" in finding.text
    assert "app" not in screen
    assert "KILL" not in " ".join([screen, *finding.remedy])


def test_monitor_is_named_by_the_count_of_the_server() -> None:
    sent = {15: {"Com_show_status": 76}, 75: {"Com_show_status": 2, "Com_show_warnings": 4000}}
    finding = polled(statements_by_connection=sent)
    assert finding.text == "mon@10.0.0.7 sends SHOW STATUS 7.8 times/s. It caused 7.8 wake-ups/s."
    assert "caused" not in polled(statements_by_connection=sent, monitor_hz=0.0).text
    assert finding.remedy[1] == "to stop it now: KILL 15, because the server counted 7.6 times/s on it"
    shared = {15: {"Com_show_status": 26}, 75: {"Com_show_status": 26}}
    assert "KILL" not in " ".join(polled(statements_by_connection=shared).remedy)


def test_monitor_is_named_if_statement_and_rate_match() -> None:
    finding = polled(statement="show status like 'Threads%'")
    assert finding.text.startswith("mon@10.0.0.7 sends SHOW STATUS")
    assert "KILL 15, because it was seen with this statement, and its thread is woken 7.8 times/s" in finding.remedy[1]
    # The statement alone, and the rate alone.
    assert "KILL" not in " ".join(polled(statement="SHOW STATUS", monitor_hz=90.0).remedy)
    assert "KILL" not in " ".join(polled(application_hz=7.8, monitor_hz=100.0).remedy)


def test_recorded_monitor_is_named_with_its_rate() -> None:
    (fault,) = faults(read_recorded("mariadb-monitoring-client"))
    assert fault.text.startswith("powerprof@localhost sends SHOW STATUS ")
    # It queried 50 times per second, as far as the host permitted.
    assert fault.rate_hz == pytest.approx(50, rel=0.1)
    assert any(remedy.startswith("to stop it now: KILL ") for remedy in fault.remedy)


def test_failed_logins_and_short_connections_are_separate_findings() -> None:
    failing = evidence(**counted(Aborted_connects=50, Connections=50, Questions=2))
    (finding,) = find_failed_logins(failing)
    assert finding.text == "A client fails to log in 5.0 times/s and tries again."
    assert find_short_connections(failing) == []
    short = evidence(**counted(Aborted_connects=0, Connections=200, Questions=300))
    assert [finding.rule for finding in find_short_connections(short)] == ["client_reconnect_loop"]
    web = evidence(**counted(Aborted_connects=0, Connections=200, Questions=4000))
    assert find_short_connections(web) == []


def test_connection_numbers_of_replica_threads_are_not_clients() -> None:
    here = evidence(channels_after=[channel(1)], **counted(Aborted_connects=0, Connections=500, Questions=2))
    assert find_short_connections(here) == []


def test_few_statements_are_noted() -> None:
    assert "client_work" in [finding.rule for finding in diagnose(evidence(**counted(Questions=190)))]


LOG = LogSummary(span_s=2.0, denied={"repl@10.0.0.9": 3}, denied_last_s={"repl@10.0.0.9": 2.0})


def test_refused_replica_is_named_at_its_source() -> None:
    here = evidence(log=LOG, replica_accounts=["repl@%"], **counted(Aborted_connects=10, Connections=10))
    (fault,) = faults(here)
    assert fault.rule == "replica_refused"
    assert fault.text.startswith("A replica tries to log in as repl@10.0.0.9 1.0 times/s and is refused")
    assert fault.rate_hz == 1.0
    # With one attempt per minute, only the log shows it.
    assert fault_rules(evidence(log=LOG, replica_accounts=["repl@%"], **counted(Aborted_connects=0))) == [
        "replica_refused"
    ]
    # The refused account is not the account of a replica.
    (fault,) = faults(evidence(log=LOG, replica_accounts=["other@%"], **counted(Aborted_connects=10)))
    assert fault.text == "A client (repl@10.0.0.9) fails to log in 1.0 times/s and tries again."


def refused(account: str, count: int = 30, window_count: int = 3, last_s: float = 1.0) -> DeniedAccount:
    return DeniedAccount(account=account, count=count, window_count=window_count, last_s=last_s, span_s=29.0)


def with_denied(*denied: DeniedAccount, failed: int = 10) -> Evidence:
    return evidence(denied=list(denied), replica_accounts=["repl@%"], **counted(Aborted_connects=failed))


def test_mysql_counts_refused_logins_by_account() -> None:
    (fault,) = faults(with_denied(refused("repl@10.0.0.9")))
    assert fault.rule == "replica_refused"
    assert fault.text.startswith("A replica tries to log in as repl@10.0.0.9 0.30 times/s and is refused")
    # With one attempt per minute, none is in the window.
    (fault,) = faults(with_denied(refused("repl@10.0.0.9", 4, 0, 59.0), failed=0))
    assert fault.rule == "replica_refused"
    assert fault.rate_hz == pytest.approx(3 / 29)
    # The fault was fixed, and a single attempt.
    for account in (refused("repl@10.0.0.9", last_s=200.0, window_count=0), refused("repl@h", 1, 1)):
        assert not faults(with_denied(account, failed=0))
    (fault,) = faults(with_denied(refused("app@h")))
    assert fault.text == "A client (app@h) fails to log in 1.0 times/s and tries again."
    both = with_denied(refused("app@h"), refused("repl@h"))
    assert fault_rules(both) == ["replica_refused", "client_reconnect_loop"]


def test_unknown_account_may_be_a_replica_unless_it_is_connected() -> None:
    (fault,) = faults(with_denied())
    assert fault.text == "A client, perhaps a replica, fails to log in 1.0 times/s and tries again."
    dump = client(4, "Binlog Dump", user="repl")
    (fault,) = faults(
        evidence(replica_accounts=["repl@%"], clients_before=[dump], samples=[[dump]], **counted(Aborted_connects=10))
    )
    assert fault.text.startswith("A client fails to log in")


def test_returning_replicas_are_counted_by_performance_schema() -> None:
    (fault,) = faults(evidence(**counted(**{DUMPS: 10})))
    assert fault.text.startswith("A replica starts to read this server's binary log 1.0 times/s")
    assert faults(evidence(**counted(**{DUMPS: 1}))) == []


def poller(**increases: int) -> Evidence:
    base = {"Com_select": 194, "Select_scan": 194, "Handler_read_rnd_next": 194 * 2000, "Rows_sent": 0, "Com_update": 0}
    clients = [client(3), client(9, user="worker", tid=77)]
    return evidence(
        samples=[clients],
        clients_before=clients,
        wakeups=[row(None, 12.0, origin="other_process", tid=77, wakings_hz=19.4)],
        **counted(**{**base, **increases}),
    )


def test_poller_of_a_job_table_is_named() -> None:
    (fault,) = faults(poller())
    assert fault.rule == "table_poller"
    assert fault.text == (
        "worker@10.0.0.7 scans a whole table 19.4 times/s to look for work. It caused 12.0 wake-ups/s."
    )
    assert "2,000 rows read by each" in fault.evidence[0]
    assert fault.rate_hz == pytest.approx(19.4)


@pytest.mark.parametrize("work", [{"Rows_sent": 5000}, {"Com_update": 150}, {"Com_select": 4000}, {"Select_scan": 8}])
def test_productive_scans_are_not_polling(work: dict[str, int]) -> None:
    assert faults(poller(**work)) == []
