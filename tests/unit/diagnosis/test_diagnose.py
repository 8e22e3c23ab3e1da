# SPDX-License-Identifier: Apache-2.0
"""Diagnoses as a whole: recorded servers, coverage, and the choice between several servers."""

from __future__ import annotations

import os
import re
import socket
from pathlib import Path

import pytest

from powerprof.diagnosis.diagnose import diagnose, list_coverage
from powerprof.diagnosis.evidence import (
    DUMPS,
    DiagnosedServer,
    Diagnosis,
    Evidence,
    LogSummary,
    ReplicaHost,
    ScheduledEvent,
    StatementCpu,
    StatementWindow,
)
from powerprof.model.statements import normalise
from powerprof.report.diagnosis import answer_of, document
from powerprof.report.document import View
from powerprof.report.render.terminal import render_terminal
from powerprof.system.listeners import describe_listeners, list_tcp_ports, list_unix_sockets
from tests.unit.diagnosis.examples import channel, client, counted, evidence, fault_rules, read_recorded, row


@pytest.mark.parametrize(
    ("name", "rule"),
    [
        ("mysql-5.5.9-duplicate-id-replica", "duplicate_server_id"),
        ("mysql-5.5.9-duplicate-id-primary", "duplicate_server_id"),
        ("mariadb-duplicate-id-replica-1", "duplicate_server_id"),
        ("mariadb-duplicate-id-replica-2", "duplicate_server_id"),
        ("mariadb-duplicate-id-primary", "duplicate_server_id"),
        ("mariadb-orphan-event", "orphan_event"),
        ("mariadb-replica-refused", "reconnect_loop"),
        ("mariadb-monitoring-client", "monitoring_client"),
        ("mariadb-event-every-second", "event_scheduler"),
    ],
)
def test_recorded_server_has_exactly_its_fault(name: str, rule: str) -> None:
    assert fault_rules(read_recorded(name)) == [rule]


def build_diagnosis(here: Evidence) -> Diagnosis:
    coverage = list_coverage(here)
    return Diagnosis(
        id=None,
        started_at="2026-01-01T00:00:00Z",
        server=DiagnosedServer(pid=4711, version=here.version, address=None),
        findings=diagnose(here),
        evidence=here,
        looked_at=coverage.examined,
        not_looked_at=coverage.not_examined,
        not_visible=coverage.not_visible,
    )


@pytest.mark.parametrize("name", ["mariadb-healthy-primary", "mariadb-healthy-replica"])
def test_healthy_pair_is_reported_in_one_sentence(name: str) -> None:
    diagnosis = build_diagnosis(read_recorded(name))
    assert fault_rules(diagnosis.evidence) == []
    assert any("statement_timer" in finding.text for finding in diagnosis.findings)
    short = render_terminal(document(diagnosis, View()))
    assert re.match(r"No known problem: MariaDB [\w.:+-]+ woke a CPU ", short[0])
    assert "statement_timer" not in "\n".join(short)
    assert "statement_timer" in "\n".join(render_terminal(document(diagnosis, View(everything=True))))
    assert max(map(len, render_terminal(document(diagnosis, View(everything=True)), 60))) <= 60


def print_diagnosis(here: Evidence) -> str:
    return " ".join(" ".join(render_terminal(document(build_diagnosis(here), View()), 400)).split())


def test_busy_cpus_are_no_proof_of_few_wake_ups() -> None:
    here = evidence(asked=False, exits_hz=0.0, traced_s=5.0, wakeups=[row(None, 0.0, wakings_hz=9.0)])
    assert "No known problem in the rest: MariaDB 10.11.19 was woken 9.0 times/s, while the CPUs were running." in (
        print_diagnosis(here)
    )


def test_report_names_the_parts_that_were_not_examined() -> None:
    blind = print_diagnosis(evidence(asked=False, exits_hz=2.0, traced_s=5.0))
    assert blind.startswith(
        "Not visible: replication, clients, events and settings (no account on the server). "
        "No known problem in the rest: MariaDB 10.11.19 woke a CPU 2.0 times/s."
    )
    by_status = print_diagnosis(evidence(variables={"performance_schema": "OFF"}, **counted(Questions=0)))
    hidden = "Not visible: wake-ups of its threads (not traced). "
    assert by_status.startswith(f"{hidden}No known problem in the rest: MariaDB 10.11.19 was not traced.")
    assert "replication (none)" in by_status
    assert "statements by connection (performance_schema is off)" in by_status
    assert "woke a CPU 2.0 times/s and used 97 % of one CPU." in print_diagnosis(
        evidence(exits_hz=2.0, cpu_percent=97.0)
    )


@pytest.mark.parametrize("hidden", [None, 0, 1, 13])
@pytest.mark.parametrize("asked", [True, False])
@pytest.mark.parametrize("traced_s", [None, 8.0])
@pytest.mark.parametrize("family", ["mariadb", "mysql", "postgres", "redis-server"])
def test_report_of_a_blind_look_begins_with_what_it_did_not_see(
    hidden: int | None, asked: bool, traced_s: float | None, family: str
) -> None:
    asked &= family in ("mariadb", "mysql")
    exits_hz = None if traced_s is None else 2.0
    here = evidence(family=family, asked=asked, hidden_connections_count=hidden, traced_s=traced_s, exits_hz=exits_hz)
    printed, diagnosis = print_diagnosis(here), build_diagnosis(here)
    is_blind = bool(hidden) or traced_s is None or (not asked and family in ("mariadb", "mysql"))
    assert bool(diagnosis.not_visible) is is_blind
    assert printed.startswith("Not visible: " if is_blind else "No known problem")
    assert printed.count("Not visible: ") == is_blind
    assert ("connections: 0" in printed) is (asked and not hidden)


@pytest.mark.parametrize("subject", ["settings", "replication", "the process list", "scheduled events"])
def test_refused_part_is_not_called_absent(subject: str) -> None:
    printed = print_diagnosis(evidence(exits_hz=2.0, traced_s=5.0, refused=[subject, "the binary log"]))
    assert printed.startswith(f"Not visible: {subject} (refused). No known problem in the rest")
    assert "the binary log (refused)" in printed
    absent = {
        "replication": "replication (none",
        "scheduled events": "events (none",
        "the process list": "list (connections",
    }
    for name, phrase in absent.items():
        assert (phrase in printed) is (name != subject)


def test_several_servers_are_distinguished_by_their_addresses(tmp_path: Path) -> None:
    pid = os.getpid()
    with socket.socket() as tcp, socket.socket(socket.AF_UNIX) as unix:
        tcp.bind(("127.0.0.1", 0))
        tcp.listen()
        unix.bind(str(tmp_path / "s.sock"))
        unix.listen()
        port = tcp.getsockname()[1]
        assert port in list_tcp_ports(pid)
        assert str(tmp_path / "s.sock") in list_unix_sockets(pid)
        assert f"port {port}" in describe_listeners(pid)
    assert describe_listeners(2**22) == ""


@pytest.mark.parametrize(
    ("method", "scans_hz", "exporter", "headline"),
    [
        ("probes", 3.2, "exporter@10.0.0.9", "Two clients use 96 % of this server's CPU time (2.5 % of one CPU)."),
        ("probes", 3.2, "app@10.0.0.7", "Two kinds of statements use 96 % of this server's CPU time"),
        ("probes", 3.2, None, "Two kinds of statements use 96 %"),
        ("samples", 3.2, "exporter@10.0.0.9", "app@10.0.0.7 scans a whole table"),
        ("probes", 2.0, "exporter@10.0.0.9", "app@10.0.0.7 scans a whole table"),
    ],
)
def test_headline_sums_clients_that_were_measured(
    method: str, scans_hz: float, exporter: str | None, headline: str
) -> None:
    """Probes and five executions support it. Its share is the sum of the rows below it."""
    uses = [
        StatementCpu(text=normalise("SELECT 1"), percent=1.8, calls_hz=scans_hz, account="app@10.0.0.7"),
        StatementCpu(text=normalise("SHOW GLOBAL STATUS"), percent=0.7, calls_hz=5.0, account=exporter),
    ]
    window = StatementWindow(window_s=2.0, method=method, percent=2.6, statements=uses)
    changes = {"Com_select": 30, "Select_scan": 30, "Handler_read_rnd_next": 1_800_000, "Com_show_status": 50}
    diagnosis = build_diagnosis(evidence(statement_window=window, cpu_percent=2.6, exits_hz=0.7, **counted(**changes)))
    printed = render_terminal(document(diagnosis, View()), 100)
    assert printed[0].startswith(headline)
    assert answer_of(diagnosis).startswith(headline)
    assert [finding.percent for finding in diagnosis.findings if finding.severity == "fault"] == [1.8, 0.7]
    if headline.startswith("Two"):
        shares = [int(line.split()[0]) for line in printed[4:6]]
        assert f"use {sum(shares)} %" in printed[0]
        assert printed[6] == "No known problem in its wake-ups: MariaDB 10.11.19 woke a CPU 0.7 times/s."


def test_coverage_counts_threads_and_enabled_events() -> None:
    events = [
        ScheduledEvent(name=f"d.e{number}", interval_s=60.0, enabled=enabled)
        for number, enabled in enumerate((True, False, True, False, False))
    ]
    rows = [row("a", 1.0), row("a", 2.0), row("b", 3.0, tid=8)]
    here = evidence(
        traced_s=7.5,
        exits_hz=6.0,
        wakeups=rows,
        events=events,
        cpu_percent=12.25,
        channels_after=[channel(1)],
        samples=[[client(1)], [client(2), client(3)]],
        replicas=[ReplicaHost(server_id=2, host="r", port=1)] * 3,
        variables={"event_scheduler": "on"},
        other_instances_count=2,
        log=LogSummary(span_s=300.0),
        statement_window=StatementWindow(window_s=2.5, method="samples", percent=3.0),
        **counted(Questions=1, Queries=2, Uptime=3),
    )
    assert list_coverage(here).examined == [
        "wake-ups of 2 threads for 7.5 s",
        "its CPU time (12.2 % of one CPU)",
        "CPU time of 0 statements for 2.5 s (by samples)",
        "without 2 connections of other powerprof commands",
        "3 counters",
        "1 setting",
        "replication (1 channel)",
        "the process list (connections: 2)",
        "events (2 enabled, the scheduler is ON)",
        "the list of replicas (3)",
        "the last 5 min of its error log",
    ]


def test_faults_are_first_and_a_cost_of_a_few_percent_is_the_first_of_them() -> None:
    uses = [
        StatementCpu(text=normalise(text), percent=percent, calls_hz=9.0, account="app@h", scan_percent=90.0)
        for text, percent in (("SELECT a FROM t", 1.5), ("SELECT b FROM t", 4.5), ("SELECT c FROM t", 2.5))
    ]
    here = evidence(
        family="postgresql",
        asked=False,
        cpu_percent=20.0,
        wakeups=[row("background writer", 1.0, period_ms=1000.0), row("x", 50.0, stack=["poll"])],
        statement_window=StatementWindow(window_s=2.0, method="probes", percent=9.0, statements=uses),
    )
    found = [(one.severity, one.rule, one.percent) for one in diagnose(here)]
    assert found[:4] == [
        ("fault", "table_poller", 4.5),
        ("fault", "polling_wait", None),
        ("fault", "table_poller", 2.5),
        ("fault", "table_poller", 1.5),
    ]
    assert {severity for severity, _, _ in found[4:]} == {"note"}


def test_a_fault_of_replication_explains_the_wakeups_of_its_threads() -> None:
    threads = [row("thread/sql/slave_io", 30.0, origin="device")]
    assert "replication_thread" in [one.rule for one in diagnose(evidence(wakeups=threads))]
    stopped = evidence(wakeups=threads, channels_before=[channel(1)], channels_after=[channel(9)])
    assert [one.rule for one in diagnose(stopped)] == ["duplicate_server_id"]
    returning = counted(**{DUMPS: 10})
    hosts = [ReplicaHost(server_id=2, host=name, port=1) for name in "ab"]
    assert [one.rule for one in diagnose(evidence(replicas=hosts, **returning))] == ["duplicate_server_id"]
    assert [one.rule for one in diagnose(evidence(**returning))] == ["replica_returns"]
