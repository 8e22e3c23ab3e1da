# SPDX-License-Identifier: Apache-2.0
"""Evidence for the tests of the rules: small records with the fields that a rule reads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from powerprof.database.replication_status import parse_status
from powerprof.diagnosis.diagnose import diagnose
from powerprof.diagnosis.evidence import Client, Evidence, Finding, ReplicationChannel, ThreadWakeups


def evidence(**fields: Any) -> Evidence:
    return msgspec.structs.replace(Evidence(version="MariaDB 10.11.19", family="mariadb", window_s=10.0), **fields)


def read_recorded(name: str) -> Evidence:
    """Return the evidence that was recorded from a real server."""
    return msgspec.json.decode((Path(__file__).parent / f"recorded/{name}.json").read_bytes(), type=Evidence)


def counted(**increases: int) -> dict[str, Any]:
    return {
        "status_before": dict.fromkeys(increases, 1000),
        "status_after": {k: 1000 + v for k, v in increases.items()},
    }


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


def client(number: int, command: str = "Sleep", **fields: Any) -> Client:
    base: dict[str, Any] = {"user": "app", "host": "10.0.0.7:4000", "time_s": 100.0, "state": "", "statement": ""}
    return Client(id=number, command=command, **{**base, **fields})


def row(name: str | None, rate_hz: float, **fields: Any) -> ThreadWakeups:
    base: dict[str, Any] = {
        "tid": 7,
        "comm": "mariadbd",
        "origin": "own_timer",
        "wakings_hz": rate_hz,
        "period_ms": None,
    }
    return ThreadWakeups(name=name, rate_hz=rate_hz, **{**base, **fields})


def faults(here: Evidence) -> list[Finding]:
    return [finding for finding in diagnose(here) if finding.severity == "fault"]


def fault_rules(here: Evidence) -> list[str]:
    return [finding.rule for finding in faults(here)]
