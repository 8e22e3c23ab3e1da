# SPDX-License-Identifier: Apache-2.0
"""From what the command line names to a diagnosis."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import msgspec

from powerprof.diagnosis import asking, rules_clients, rules_replication, rules_threads
from powerprof.diagnosis.collect import Look, Subject, look
from powerprof.diagnosis.evidence import (
    ASKABLE,
    DiagnosedServer,
    Diagnosis,
    Evidence,
    Finding,
    has_new_words,
    in_new_words,
    seconds,
)
from powerprof.model.text import number
from powerprof.system import paths
from powerprof.system.errors import CapabilityError, PowerprofError, UsageError
from powerprof.system.processes import Target, describe, name_of, resolve

# All rules in the order in which their findings are shown, and the one function that applies them. Pure.

Rule = Callable[[Evidence], list[Finding]]

RULES: tuple[Rule, ...] = (
    rules_replication.duplicate_on_source,
    rules_replication.duplicate_on_replica,
    rules_replication.orphan_event,
    rules_replication.reconnect_loop,
    rules_replication.stopped_threads,
    asking.refused_replicas,
    asking.returning_replicas,
    asking.failed_logins,
    rules_clients.monitoring,
    rules_clients.reconnecting_clients,
    rules_threads.polling_waits,
    rules_threads.event_cpu,
    rules_threads.table_pollers,
    rules_threads.event_scheduler,
    rules_clients.work,
    rules_threads.cpu_time,
    rules_threads.periodic_threads,
    rules_threads.replication_threads,
    rules_threads.woken_by_each_other,
    rules_threads.most_helpful_slack,
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


# What a diagnosis looked at, and what it did not: nothing is called healthy that was not seen. Pure.


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


@dataclass(frozen=True)
class DiagnosisRequest:
    """Whom to look at: a process, a server by its address, or both."""

    pid: str | None
    server_url: str | None
    socket: Path | None
    defaults_file: Path | None
    duration_s: float


def run(request: DiagnosisRequest, say: Callable[[str], None]) -> tuple[Diagnosis, Look]:
    """Look at the server and judge. Raises UsageError, CapabilityError, PowerprofError."""
    from powerprof.host.describe import host_record
    from powerprof.measure.clock import format_now

    started_at = format_now()
    with ExitStack() as stack:
        notes: list[str] = []
        subject = _subject(request, stack, notes)
        taken = look(subject, request.duration_s, say)
        if taken.attribution is None and subject.connection is None:
            raise CapabilityError(
                f"{subject.label} can neither be traced nor asked: {'; '.join(taken.evidence.notes[:1])}",
                "run as root, or name an account with --defaults-file",
            )
    attribution, seen = taken.attribution, looked(taken.evidence)
    diagnosis = Diagnosis(
        id=None,
        started_at=started_at,
        findings=diagnose(taken.evidence),
        evidence=taken.evidence,
        looked_at=seen.at,
        not_looked_at=seen.not_at,
        server=DiagnosedServer(pid=subject.pid, version=subject.version, address=subject.address),
        host=host_record(),
        tool=attribution.tool if attribution else None,
        notes=notes,
        interrupted=taken.interrupted,
    )
    return diagnosis, taken


def _first(target: Target) -> int:
    """The process that is the server: of one that works in processes, that which started the others."""
    if len(target.pids) == 1:
        return target.pids[0]
    if len(target.roots) == 1:
        return target.roots[0]
    shown = "; ".join(describe(pid) for pid in target.pids[:8])
    raise UsageError(f"one server at a time: {shown}", f"name one with --pid {target.pids[0]}, by its number")


def _subject(request: DiagnosisRequest, stack: ExitStack, notes: list[str]) -> Subject:
    asked = any(part is not None for part in (request.server_url, request.socket, request.defaults_file))
    pid, target = None, None
    if request.pid is not None:
        if not paths.is_this_host():
            raise PowerprofError("cannot look at a recorded host", "unset POWERPROF_SYSFS and POWERPROF_PROCFS")
        target = resolve([request.pid])
        pid = _first(target)
    elif not asked:
        raise UsageError("say which server", "--pid mysqld, --socket PATH or --server mysql://user@host/")
    if asked:
        from powerprof.database.clients import sql
        from powerprof.database.clients.given import given_server

        server = stack.enter_context(given_server(request.server_url, request.socket, request.defaults_file))
        connection = stack.enter_context(server.connect(limits=sql.LOOK_LIMITS))
        if pid is not None and server.pid is not None and pid != server.pid:
            raise UsageError(f"--pid is {pid}, but the server that was named is process {server.pid}", "leave one out")
        own = pid if pid is not None else server.pid
        return Subject(
            own, name_of(own) or "the server" if own else "the server", connection, server.version, server.login.text
        )
    if pid is None:
        raise UsageError("say which server", "--pid mysqld, --socket PATH or --server mysql://user@host/")
    label = name_of(pid) or str(pid)
    from powerprof.database.clients.given import is_server_name, log_in_locally

    entered = log_in_locally(pid)
    if entered is None:
        if not is_server_name(label):
            shown = target.label if target is not None else label
            return Subject(pid, shown, None, shown, None, target)
        notes.append(
            "the server does not let this user in by its socket: only its wake-ups were looked at "
            "(name an account with --defaults-file)"
        )
        return Subject(pid, label, None, label, None)
    from powerprof.database.clients.given import read_version

    own_connection = stack.enter_context(entered[1])
    return Subject(pid, label, own_connection, read_version(own_connection), None)
