# SPDX-License-Identifier: Apache-2.0
"""All rules in the order in which their findings are told, and the one function that applies them. Pure."""

from __future__ import annotations

from collections.abc import Callable

from powerprof.diagnosis import clients, replication, threads
from powerprof.diagnosis.evidence import Evidence
from powerprof.diagnosis.findings import Finding

Rule = Callable[[Evidence], list[Finding]]

RULES: tuple[Rule, ...] = (
    replication.duplicate_on_source,
    replication.duplicate_on_replica,
    replication.orphan_event,
    replication.reconnect_loop,
    clients.monitoring,
    clients.reconnecting_clients,
    threads.polling_waits,
    threads.event_scheduler,
    clients.work,
    threads.periodic_threads,
    threads.replication_threads,
)
_OF_REPLICATION = ("duplicate_server_id", "orphan_event", "reconnect_loop")


def diagnose(evidence: Evidence) -> list[Finding]:
    """What the evidence says: faults first, each kind in the order of the rules."""
    findings = [finding for rule in RULES for finding in rule(evidence)]
    if any(finding.severity == "fault" and finding.rule in _OF_REPLICATION for finding in findings):
        # The fault says what these threads wake for.
        findings = [finding for finding in findings if finding.rule != "replication_thread"]
    return sorted(findings, key=lambda finding: finding.severity != "fault")
