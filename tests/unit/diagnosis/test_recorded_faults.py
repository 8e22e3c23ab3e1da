# SPDX-License-Identifier: Apache-2.0
"""Evidence recorded from real servers: each fault is found, and a healthy pair gives silence."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from powerprof.diagnosis.diagnose import diagnose
from powerprof.diagnosis.evidence import DiagnosedServer, Diagnosis, Evidence, Finding
from powerprof.report.diagnosis import render_terminal

RECORDED = Path(__file__).parent / "recorded"


def evidence(name: str) -> Evidence:
    return msgspec.json.decode((RECORDED / f"{name}.json").read_bytes(), type=Evidence)


def faults(found: list[Finding]) -> list[str]:
    return [finding.rule for finding in found if finding.severity == "fault"]


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
def test_the_fault_is_found_and_no_other(name: str, rule: str) -> None:
    assert faults(diagnose(evidence(name))) == [rule]


@pytest.mark.parametrize("name", ["mariadb-healthy-primary", "mariadb-healthy-replica"])
def test_a_healthy_pair_is_told_in_one_sentence(name: str) -> None:
    recorded = evidence(name)
    found = diagnose(recorded)
    assert faults(found) == []
    assert any("statement_timer" in finding.text for finding in found)
    server = DiagnosedServer(pid=4711, version=recorded.version, address=None)
    told = Diagnosis(id=None, started_at="2026-01-01T00:00:00Z", server=server, findings=found, evidence=recorded)
    short = render_terminal(told)
    assert short[0].startswith("No fault was found: it woke a CPU ")
    assert "statement_timer" not in "\n".join(short)
    assert "statement_timer" in "\n".join(render_terminal(told, all_notes=True))
    assert max(map(len, render_terminal(told, 60, all_notes=True))) <= 60


def test_the_storm_of_5_5_9_says_how_fast_it_reconnects_and_which_function_waits() -> None:
    (fault,) = [one for one in diagnose(evidence("mysql-5.5.9-duplicate-id-replica")) if one.severity == "fault"]
    assert fault.text.startswith("Another replica of its source has its server id, 2: each pushes the other out, ")
    assert fault.rate_hz is not None
    assert fault.rate_hz > 50
    assert any("handle_slave_io" in frame for frame in fault.stack)
    assert "SET GLOBAL server_id" in fault.remedy[0]


def test_mariadb_is_said_to_back_off() -> None:
    (fault,) = [one for one in diagnose(evidence("mariadb-duplicate-id-replica-2")) if one.severity == "fault"]
    assert fault.text.endswith("It backs off between attempts.")
    assert "evicted" in fault.evidence[0]


def test_the_orphan_is_named_with_the_statement_that_ends_it() -> None:
    (fault,) = [one for one in diagnose(evidence("mariadb-orphan-event")) if one.severity == "fault"]
    assert "server id 99, which no server of the ring has" in fault.text
    assert "IGNORE_SERVER_IDS=(99)" in fault.remedy[0]
    assert "GTID 0-99-" in fault.evidence[0]
    assert "UPDATE" in fault.evidence[0]


def test_the_monitor_is_named_with_its_pace() -> None:
    (fault,) = [one for one in diagnose(evidence("mariadb-monitoring-client")) if one.severity == "fault"]
    assert fault.text.startswith("powerprof@localhost asks SHOW STATUS ")
    assert fault.rate_hz == pytest.approx(50, rel=0.1)  # it asked 50 times a second, as far as the machine let it
    assert any(remedy.startswith("to stop it now: KILL ") for remedy in fault.remedy)
