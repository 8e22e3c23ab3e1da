# SPDX-License-Identifier: Apache-2.0
"""All rules in the order in which their findings are shown, and the one function that applies them. Pure."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from powerprof.diagnosis import clients, cpu, logins, polling, replication, stopped, threads
from powerprof.diagnosis.evidence import Evidence
from powerprof.diagnosis.findings import Finding
from powerprof.diagnosis.words import has_new_words, in_new_words

Rule = Callable[[Evidence], list[Finding]]

RULES: tuple[Rule, ...] = (
    replication.duplicate_on_source,
    replication.duplicate_on_replica,
    replication.orphan_event,
    replication.reconnect_loop,
    stopped.stopped_threads,
    logins.refused_replicas,
    logins.returning_replicas,
    logins.failed_logins,
    clients.monitoring,
    clients.reconnecting_clients,
    threads.polling_waits,
    cpu.event_cpu,
    polling.table_pollers,
    threads.event_scheduler,
    clients.work,
    cpu.cpu_time,
    threads.periodic_threads,
    threads.replication_threads,
    threads.woken_by_each_other,
    threads.most_helpful_slack,
)
_OF_REPLICATION = ("duplicate_server_id", "orphan_event", "reconnect_loop", "replication_stopped")


def diagnose(evidence: Evidence) -> list[Finding]:
    """What the evidence says: faults first, each kind in the order of the rules."""
    findings = [finding for rule in RULES for finding in rule(evidence)]
    named = {finding.rule for finding in findings}
    if "duplicate_server_id" in named:
        # The fault says why replicas come back.
        findings = [finding for finding in findings if finding.rule != "replica_returns"]
    if any(finding.severity == "fault" and finding.rule in _OF_REPLICATION for finding in findings):
        # The fault says what these threads wake for.
        findings = [finding for finding in findings if finding.rule != "replication_thread"]
    if has_new_words(evidence.version):
        findings = [_in_new_words(finding) for finding in findings]
    return sorted(findings, key=lambda finding: finding.severity != "fault")


def _in_new_words(finding: Finding) -> Finding:
    return msgspec.structs.replace(
        finding,
        text=in_new_words(finding.text),
        evidence=[in_new_words(line) for line in finding.evidence],
        remedy=[in_new_words(line) for line in finding.remedy],
    )
