# SPDX-License-Identifier: Apache-2.0
"""The rules on clients: monitors, short connections and pollers of tables."""

from __future__ import annotations

from typing import Any

import pytest

from powerprof.diagnosis.diagnose import diagnose
from powerprof.diagnosis.evidence import (
    DeniedAccount,
    Evidence,
    Finding,
    LogSummary,
    StatementCpu,
    StatementWindow,
    ThreadCpu,
)
from powerprof.diagnosis.rules_clients import describe_client_work, find_monitoring, find_table_pollers
from powerprof.diagnosis.rules_connections import find_short_connections
from powerprof.model.statements import normalise
from tests.unit.diagnosis.examples import channel, client, counted, evidence, faults, read_recorded, row


def with_window(*uses: StatementCpu, percent: float, **fields: Any) -> Evidence:
    window = StatementWindow(window_s=2.0, method="probes", percent=percent, statements=list(uses))
    return evidence(statement_window=window, cpu_percent=percent, **fields)


def severities(here: Evidence) -> list[str]:
    return [finding.severity for finding in find_monitoring(here)]


@pytest.mark.parametrize("rate_hz", [0.6, 4.9, 4.98, 5.02, 5.3, 9.9])
@pytest.mark.parametrize(("percent", "severity"), [(0.01, "note"), (0.15, "note"), (0.7, "fault"), (40.0, "fault")])
def test_severity_of_a_monitor_follows_its_cost(rate_hz: float, percent: float, severity: str) -> None:
    use = StatementCpu(text=normalise("SHOW GLOBAL STATUS"), percent=percent, calls_hz=rate_hz, account="mon@h")
    count = {"Com_show_status": round(10 * rate_hz)}
    for here in (
        with_window(use, percent=2.6 * max(percent, 1.0), **counted(**count)),
        # The live monitor has the CPU time of the client's thread in place of the window.
        evidence(
            samples=[[client(15, tid=1015)]],
            clients_before=[client(15, tid=1015)],
            cpu_percent=2.6 * max(percent, 1.0),
            threads_cpu=[ThreadCpu(tid=1015, comm="mariadbd", name=None, percent=percent)],
            **counted(**count),
        ),
    ):
        assert severities(here) == [severity]


@pytest.mark.parametrize(
    "text",
    [
        "SHOW GLOBAL STATUS",
        "show full processlist",
        "SHOW ENGINE INNODB STATUS",
        "SELECT * FROM information_schema.PROCESSLIST",
        "select count(*) from performance_schema.threads where x = ?",
        "SELECT VARIABLE_VALUE FROM `information_schema`.GLOBAL_STATUS",
        "SELECT * FROM pg_stat_activity",
        "SELECT pid FROM pg_catalog.pg_locks l",
        "SELECT relname FROM pg_stat_user_tables",
        "WITH a AS (SELECT ?) SELECT * FROM pg_locks",
        "(COM_PING)",
    ],
)
def test_expensive_inspection_is_named_whatever_its_statement(text: str) -> None:
    use = StatementCpu(text=normalise(text), percent=0.7, calls_hz=4.98, account="mon@h")
    (finding,) = find_monitoring(with_window(use, percent=2.6, family="postgresql"))
    assert finding.severity == "fault"
    assert "It uses 27 % of this server's CPU time (0.7 % of one CPU)." in finding.text


@pytest.mark.parametrize(
    "text", ["SELECT * FROM orders", "SHOW WARNINGS", "SHOW FIELDS FROM t", "UPDATE t SET a = ?", "SELECT ?", "COMMIT"]
)
def test_expensive_work_is_not_inspection(text: str) -> None:
    assert not find_monitoring(with_window(StatementCpu(text=normalise(text), percent=2.0, calls_hz=40.0), percent=2.6))


@pytest.mark.parametrize("rate_hz", [10.5, 50.0])
def test_wake_ups_alone_are_a_cost(rate_hz: float) -> None:
    assert severities(evidence(**counted(Com_admin_commands=round(10 * rate_hz)))) == ["fault"]
    # Statements of an unknown client may be those of another powerprof, which looks at the server too.
    others = evidence(other_instances_count=3, **counted(Com_show_slave_hosts=round(10 * rate_hz)))
    assert severities(others) == []


def scanned(scan_percent: float | None, percent: float = 0.8, calls_hz: float = 12.0, text: str = "") -> list[str]:
    use = StatementCpu(
        text=normalise(text or "SELECT * FROM orders WHERE note = 5"),
        percent=percent,
        calls_hz=calls_hz,
        account="app@h",
        scan_percent=scan_percent,
    )
    return [finding.text for finding in faults(with_window(use, percent=1.0, family="postgresql", asked=False))]


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


def test_monitor_is_named_by_the_count_of_the_server() -> None:
    sent = {15: {"Com_show_status": 76}, 75: {"Com_show_status": 2, "Com_show_warnings": 4000}}
    finding = polled(statements_by_connection=sent)
    assert finding.text == "mon@10.0.0.7 sends SHOW STATUS 7.8 times/s. It caused 7.8 wake-ups/s."
    assert "caused" not in polled(statements_by_connection=sent, monitor_hz=0.0).text
    assert finding.remedy[1] == "to stop it now: KILL 15, because the server counted 7.6 times/s on it"
    shared = {15: {"Com_show_status": 26}, 75: {"Com_show_status": 26}}
    assert "KILL" not in " ".join(polled(statements_by_connection=shared).remedy)


def test_recorded_monitor_is_named_with_its_rate() -> None:
    (fault,) = faults(read_recorded("mariadb-monitoring-client"))
    assert fault.text.startswith("powerprof@localhost sends SHOW STATUS ")
    # It queried 50 times per second, as far as the host permitted.
    assert fault.rate_hz == pytest.approx(50, rel=0.1)
    assert any(remedy.startswith("to stop it now: KILL ") for remedy in fault.remedy)


def test_connection_numbers_of_replica_threads_are_not_clients() -> None:
    here = evidence(channels_after=[channel(1)], **counted(Aborted_connects=0, Connections=500, Questions=2))
    assert find_short_connections(here) == []


LOG = LogSummary(span_s=2.0, denied={"repl@10.0.0.9": 3}, denied_last_s={"repl@10.0.0.9": 2.0})


def refused(account: str, count: int = 30, window_count: int = 3, last_s: float = 1.0) -> DeniedAccount:
    return DeniedAccount(account=account, count=count, window_count=window_count, last_s=last_s, span_s=29.0)


def poller(**increases: int) -> Evidence:
    base = {"Com_select": 194, "Select_scan": 194, "Handler_read_rnd_next": 194 * 2000, "Rows_sent": 0, "Com_update": 0}
    clients = [client(3), client(9, user="worker", tid=77)]
    return evidence(
        samples=[clients],
        clients_before=clients,
        wakeups=[row(None, 12.0, origin="other_process", tid=77, wakings_hz=19.4)],
        **counted(**{**base, **increases}),
    )


def test_each_counter_of_a_monitor_has_its_rate_by_the_window() -> None:
    counts = {"Com_show_status": 40, "Com_show_engine_status": 20, "Com_show_variables": 12, "Com_admin_commands": 8}
    here = evidence(window_s=8.0, traced_s=2.0, **counted(**counts, Com_show_master_status=4, Com_show_binlog_status=6))
    (finding,) = find_monitoring(here)
    assert finding.evidence[:4] == [
        "SHOW STATUS 5.0 times/s by the server's own count",
        "SHOW ENGINE STATUS 2.5 times/s by the server's own count",
        "SHOW VARIABLES 1.5 times/s by the server's own count",
        "SHOW MASTER STATUS 1.2 times/s by the server's own count",
    ]
    assert finding.rate_hz == pytest.approx(11.25)
    assert finding.percent is None
    # Reconnecting replicas read variables and register themselves.
    dumps = [[client(7, "Binlog Dump")], [client(8, "Binlog Dump")], [client(9, "Binlog Dump")]]
    churned = counted(Com_show_variables=400, Com_admin_commands=420, Connections=392)
    (less,) = find_monitoring(evidence(window_s=8.0, samples=dumps, **churned))
    assert less.rate_hz == pytest.approx((28 + 8) / 8)


@pytest.mark.parametrize(("count", "found"), [(39, 0), (40, 1)])
def test_a_monitor_is_noted_from_half_a_statement_per_second(count: int, found: int) -> None:
    assert len(find_monitoring(evidence(window_s=80.0, **counted(Com_show_status=count)))) == found


@pytest.mark.parametrize(("own", "is_named"), [(39, True), (38, False)])
def test_a_monitor_sent_half_of_the_statements(own: int, is_named: bool) -> None:
    finding = polled(statements_by_connection={15: {"Com_show_status": own, "Com_select": 900}})
    assert (finding.account is not None) is is_named


@pytest.mark.parametrize(("monitor_hz", "is_named"), [(9.74, True), (9.76, False), (5.86, True), (5.84, False)])
def test_a_monitor_is_woken_within_a_quarter_of_its_rate(monitor_hz: float, is_named: bool) -> None:
    finding = polled(statement="SHOW STATUS", monitor_hz=monitor_hz)
    assert (finding.account is not None) is is_named


def test_the_only_connection_is_the_monitor_unless_others_came() -> None:
    lone = {"samples": [[client(15, user="mon")]] * 2, "clients_before": [client(15, user="mon")]}
    (finding,) = find_monitoring(evidence(**lone, **counted(Com_show_status=78, Connections=0)))
    assert finding.account == "mon@10.0.0.7"
    assert finding.evidence[-1] == "connection 15, mon@10.0.0.7: it is the only connection"
    (finding,) = find_monitoring(evidence(**lone, **counted(Com_show_status=78, Connections=1)))
    assert finding.account is None


@pytest.mark.parametrize(
    ("failed", "made", "questions", "rate_hz"),
    [
        (0, 40, 160, 5.0),
        (0, 39, 10, None),  # 4.9 per second
        (20, 59, 10, None),  # failed logins are another finding
        (20, 60, 10, 5.0),
        (0, 40, 161, None),  # more than 4 statements each
    ],
)
def test_short_connections_are_judged_by_rate_and_statements(
    failed: int, made: int, questions: int, rate_hz: float | None
) -> None:
    before = [client(10), client(20)]
    new = [
        client(21, user="web"),
        client(22, user="web"),
        client(9, user="old"),
        client(23, user="unauthenticated user"),
    ]
    counts = counted(Aborted_connects=failed, Connections=made, Questions=questions)
    found = find_short_connections(evidence(window_s=8.0, clients_before=before, samples=[before, new], **counts))
    assert [one.rate_hz for one in found] == ([] if rate_hz is None else [rate_hz])
    for finding in found:
        assert f"{questions / made:.1f} statements per connection" in finding.evidence[0]
        assert finding.evidence[1] == "newcomers: web@10.0.0.7"


def test_reconnecting_replicas_are_no_short_connections() -> None:
    dumps = [[client(7, "Binlog Dump")], [client(8, "Binlog Dump")], [client(9, "Binlog Dump")]]
    counts = counted(Connections=500, Questions=20)
    assert find_short_connections(evidence(samples=dumps, **counts)) == []
    assert len(find_short_connections(evidence(samples=dumps[:1], **counts))) == 1


def test_the_work_of_clients_has_its_rate_and_exits() -> None:
    rows = [
        row("thread/sql/one_connection", 3.5, stack=["poll"], wakings_hz=80.0),
        row("thread/sql/one_connection", 1.25),
        row("thread/sql/one_connection (Binlog Dump)", 50.0),
        row("thread/sql/main", 60.0),
    ]
    (note,) = [
        one
        for one in diagnose(evidence(window_s=8.0, wakeups=rows, **counted(Questions=50)))
        if one.rule == "client_work"
    ]
    assert note.rate_hz == 6.25
    assert note.evidence == ["Questions rises 6.2 times/s", "connection threads end 4.8 idle periods/s"]
    # The counter has the statements of other powerprof commands, the window has not.
    uses = [StatementCpu(text=normalise("COMMIT"), percent=1.5, calls_hz=hertz) for hertz in (2.5, 0.75, None)]
    here = with_window(*uses, percent=4.0, other_instances_count=2, window_s=8.0, **counted(Questions=50))
    (note,) = describe_client_work(here)
    assert note.rate_hz == 3.25
    assert describe_client_work(evidence(window_s=8.0, **counted(Questions=7))) == []


def test_a_poller_has_the_rows_and_the_changes_of_its_window() -> None:
    (fault,) = faults(poller(Rows_sent=97, Com_update=20, Com_insert=18, Select_scan=190))
    assert fault.evidence[:2] == [
        "a SELECT without an index 19.0 times/s (Select_scan), 2,042 rows read by each",
        "38 statements that change rows in the window, 0.50 rows found by each SELECT",
    ]
    assert fault.rate_hz == 19.0


@pytest.mark.parametrize(
    ("increases", "found"),
    [
        ({"Com_update": 38}, 1),  # a fifth of the scans
        ({"Com_update": 20, "Com_insert": 10, "Com_delete": 8, "Com_replace": 1}, 0),
        ({"Rows_sent": 194}, 1),  # one row each
        ({"Rows_sent": 195}, 0),
        ({"Select_scan": 97}, 1),  # half of the SELECTs
        ({"Select_scan": 96}, 0),
        ({"Com_show_status": 1}, 0),  # SHOW statements send rows too: the rows found are unknown
        ({"Handler_read_rnd_next": 99_990}, 1),
    ],
)
def test_a_poller_finds_hardly_any_row(increases: dict[str, int], found: int) -> None:
    assert [fault.rule for fault in faults(poller(**increases))].count("table_poller") == found


@pytest.mark.parametrize(("rows", "found"), [(100_000, 1), (99_990, 0)])
def test_without_cpu_times_a_rare_poller_is_a_fault_by_its_rows(rows: int, found: int) -> None:
    counts = counted(Com_select=60, Select_scan=60, Handler_read_rnd_next=rows, Rows_sent=0)
    assert len(find_table_pollers(evidence(**counts))) == found
    # Its thread is woken at another rate: the client is unknown.
    known = evidence(
        samples=[[client(3, tid=9), client(4)]], wakeups=[row(None, 8.0, tid=9, wakings_hz=99.0)], **counts
    )
    assert [one.account for one in find_table_pollers(known)] == [None] * found


@pytest.mark.parametrize(
    ("scan_percent", "percent", "calls_hz", "found"),
    [(25.0, 0.2, 0.5, 1), (24.9, 0.8, 9.0, 0), (90.0, 0.19, 9.0, 0), (90.0, 0.8, 0.49, 0), (None, 0.8, 9.0, 0)],
)
def test_a_scan_of_postgresql_is_a_quarter_of_a_costly_repeated_statement(
    scan_percent: float | None, percent: float, calls_hz: float, found: int
) -> None:
    assert len(scanned(scan_percent, percent, calls_hz)) == found
    assert not any("scans" in text for text in scanned(90.0, text="SELECT * FROM pg_stat_activity"))


@pytest.mark.parametrize(("scans", "found"), [(4, 0), (5, 1)])
def test_a_few_scans_are_no_poller(scans: int, found: int) -> None:
    counts = counted(Com_select=scans, Select_scan=scans, Handler_read_rnd_next=60_000, Rows_sent=0)
    assert len(find_table_pollers(evidence(window_s=2.0, **counts))) == found
