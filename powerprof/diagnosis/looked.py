# SPDX-License-Identifier: Apache-2.0
"""What a diagnosis looked at, and what it did not: nothing is called healthy that was not seen. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from powerprof.diagnosis.evidence import ASKABLE, Evidence
from powerprof.diagnosis.words import seconds
from powerprof.text import number


@dataclass(frozen=True)
class Looked:
    """What was looked at, and what was not, a phrase each."""

    at: list[str]
    not_at: list[str]


def looked(evidence: Evidence) -> Looked:
    """Both lists, from the evidence alone."""
    at: list[str] = []
    missing: list[str] = []
    if evidence.traced_s is not None:
        threads = len({row.tid for row in evidence.wakeups})
        at.append(f"wake-ups of {threads} thread{'s' if threads != 1 else ''} for {evidence.traced_s:.1f} s")
    else:
        missing.append("wake-ups of its threads (not traced)")
    if evidence.cpu_percent is not None:
        at.append(f"its CPU time ({number(evidence.cpu_percent, 1)} % of one CPU)")
    if evidence.asked:
        _by_sql(evidence, at, missing)
    elif evidence.family in ASKABLE:
        missing.append("what the server says (no account): replication, clients, events, settings")
    if evidence.family not in ASKABLE:
        missing.append(
            "its settings, clients and statements: of such a program threads, timers and CPU time are judged"
        )
    if evidence.log is not None:
        at.append(f"the last {seconds(evidence.log.span_s)} of its error log")
    elif evidence.family in ASKABLE:
        missing.append("its error log (not a file that can be read)")
    return Looked(at, missing)


def _by_sql(evidence: Evidence, at: list[str], missing: list[str]) -> None:
    if evidence.status_after:
        at.append(f"{len(evidence.status_after)} counters")
    if evidence.variables:
        at.append(f"{len(evidence.variables)} settings")
    channels = len(evidence.channels_after)
    at.append(f"replication ({channels} channel{'s' if channels != 1 else ''})" if channels else "replication (none)")
    at.append(f"the process list (connections: {len(evidence.clients_after)})")
    if evidence.replicas:
        at.append(f"the list of replicas ({len(evidence.replicas)})")
    running = sum(event.enabled for event in evidence.events)
    scheduler = evidence.variables.get("event_scheduler", "").upper()
    at.append(f"events ({running} enabled, the scheduler is {scheduler or 'unknown'})" if running else "events (none)")
    if evidence.variables.get("performance_schema", "").upper() in ("OFF", "0", ""):
        missing.append("statements by connection and their texts (performance_schema is off)")
    missing.append("plans and costs of statements (powerprof queries)")
