# SPDX-License-Identifier: Apache-2.0
"""Diagnoses as a whole: recorded servers, coverage, and the choice between several servers."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from powerprof.diagnosis.diagnose import diagnose, list_coverage
from powerprof.diagnosis.evidence import DiagnosedServer, Diagnosis, Evidence
from powerprof.report.diagnosis import render_terminal
from powerprof.system.processes import describe_listeners, list_tcp_ports, list_unix_sockets
from tests.unit.diagnosis.examples import counted, evidence, fault_rules, read_recorded, row


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
    )


@pytest.mark.parametrize("name", ["mariadb-healthy-primary", "mariadb-healthy-replica"])
def test_healthy_pair_is_reported_in_one_sentence(name: str) -> None:
    diagnosis = build_diagnosis(read_recorded(name))
    assert fault_rules(diagnosis.evidence) == []
    assert any("statement_timer" in finding.text for finding in diagnosis.findings)
    short = render_terminal(diagnosis)
    assert short[0].startswith("No known problem: it woke a CPU ")
    assert "statement_timer" not in "\n".join(short)
    assert "statement_timer" in "\n".join(render_terminal(diagnosis, all_notes=True))
    assert max(map(len, render_terminal(diagnosis, 60, all_notes=True))) <= 60


def test_wake_ups_alone_are_judged_without_a_connection() -> None:
    blind = evidence(asked=False, wakeups=[row(None, 40.0, stack=["nanosleep"])])
    assert [finding.rule for finding in diagnose(blind)] == ["polling_wait", "most_helpful"]


def print_diagnosis(here: Evidence) -> str:
    return " ".join(" ".join(render_terminal(build_diagnosis(here), 400)).split())


def test_report_names_the_parts_that_were_not_examined() -> None:
    blind = print_diagnosis(evidence(asked=False, exits_hz=2.0, traced_s=5.0))
    assert blind.startswith("No known problem: it woke a CPU 2.0 times/s.")
    assert "Not checked: replication, clients, events and settings (no account on the server)" in blind
    by_status = print_diagnosis(evidence(variables={"performance_schema": "OFF"}, **counted(Questions=0)))
    assert by_status.startswith("No known problem in its status. Its wake-ups were not traced.")
    assert "replication (none)" in by_status
    assert "statements by connection and their texts (performance_schema is off)" in by_status
    assert "It used 97 % of one CPU." in print_diagnosis(evidence(exits_hz=2.0, cpu_percent=97.0))


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
