# SPDX-License-Identifier: Apache-2.0
"""The `diagnose` command: inspect a server, apply all rules, and list the coverage."""

from __future__ import annotations

import getpass
import os
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import msgspec

from powerprof.diagnosis import (
    rules_clients,
    rules_connections,
    rules_consumers,
    rules_logins,
    rules_postgres,
    rules_processes,
    rules_replication,
    rules_sessions,
    rules_slots,
    rules_threads,
    rules_vacuum,
)
from powerprof.diagnosis.collect import Inspection, Subject, inspect_server
from powerprof.diagnosis.consumers import MAIN_PERCENT
from powerprof.diagnosis.evidence import SQL_FAMILIES, DiagnosedServer, Diagnosis, Evidence, Finding
from powerprof.diagnosis.postgres_evidence import PostgresFacts
from powerprof.diagnosis.statement_window import list_unknown_scans
from powerprof.diagnosis.wording import format_seconds, has_replica_terms, next_command, use_replica_terms
from powerprof.model.text import number, plural
from powerprof.system.errors import CapabilityError, UsageError
from powerprof.system.processes import label_of
from powerprof.system.targets import check_only, resolve_server
from powerprof.system.tasks import is_stopped

RULES: tuple[Callable[[Evidence], list[Finding]], ...] = (
    rules_processes.find_stopped_server,
    rules_replication.find_duplicate_id_on_source,
    rules_replication.find_duplicate_id_on_replica,
    rules_replication.find_orphan_event,
    rules_replication.find_reconnect_loop,
    rules_replication.find_stopped_threads,
    rules_logins.find_refused_replicas,
    rules_logins.find_returning_replicas,
    rules_logins.find_failed_logins,
    rules_clients.find_monitoring,
    rules_connections.find_leaked_connections,
    rules_connections.find_short_connections,
    rules_connections.find_started_clients,
    rules_processes.find_restarted_workers,
    rules_processes.find_failed_archiving,
    rules_slots.find_inactive_slots,
    rules_slots.find_spilled_decoding,
    rules_sessions.find_idle_transactions,
    rules_vacuum.find_endless_vacuum,
    rules_vacuum.find_frequent_autovacuum,
    rules_postgres.find_frequent_checkpoints,
    rules_postgres.find_temporary_files,
    rules_postgres.find_costly_compilation,
    rules_postgres.find_short_intervals,
    rules_threads.find_polling_waits,
    rules_threads.find_event_cpu,
    rules_clients.find_table_pollers,
    rules_clients.find_sequential_scans,
    rules_clients.find_queue_pollers,
    rules_threads.find_event_scheduler,
    rules_clients.describe_client_work,
    rules_threads.describe_cpu_time,
    rules_threads.describe_periodic_threads,
    rules_threads.describe_replication_threads,
    rules_threads.describe_internal_wakeups,
    rules_threads.predict_most_helpful,
)
"""All rules in the order of their findings in a report."""
_REPLICATION_FAULTS = ("duplicate_server_id", "orphan_event", "reconnect_loop", "replication_stopped")


def diagnose(evidence: Evidence) -> list[Finding]:
    """Return the findings of all rules: faults before notes.

    Faults that use more than a few percent of one CPU come first, the highest use first. Clients that use less come
    last among the faults. The others have the order of the rules.
    """
    evidence = rules_processes.omit_explained_rows(evidence)
    findings = [finding for rule in RULES for finding in rule(evidence)]
    findings = [*rules_consumers.find_main_consumer(evidence, findings), *findings]
    findings = [rules_sessions.name_application(evidence, finding) for finding in findings]
    if any(finding.rule == "duplicate_server_id" for finding in findings):
        # This fault already explains the returning replicas.
        findings = [finding for finding in findings if finding.rule != "replica_returns"]
    if any(finding.severity == "fault" and finding.rule in _REPLICATION_FAULTS for finding in findings):
        # The fault already explains the wake-ups of these threads.
        findings = [finding for finding in findings if finding.rule != "replication_thread"]
    if has_replica_terms(evidence.version):
        findings = [
            msgspec.structs.replace(
                finding,
                text=use_replica_terms(finding.text),
                evidence=[use_replica_terms(line) for line in finding.evidence],
                remedy=[use_replica_terms(line) for line in finding.remedy],
            )
            for finding in findings
        ]
    return sorted(findings, key=_place_of)


def _place_of(finding: Finding) -> tuple[int, float]:
    """Return the place of a finding: a stopped server, high costs, other faults, low costs, notes."""
    percent = finding.percent
    if finding.severity == "note":
        return 4, 0.0
    if finding.rule == "stopped_server":
        return 0, 0.0
    if percent is None:
        return 2, 0.0
    return (1 if percent >= MAIN_PERCENT else 3), -percent


class Coverage(msgspec.Struct, frozen=True):
    """The parts of a server that were examined, and those that were not. A report calls only the former healthy.

    `not_visible`: the parts that this account or this host hides. A report begins with them if it found nothing.
    """

    examined: list[str]
    not_examined: list[str]
    not_visible: list[str]


# Parts with rules of their own. Without them a report cannot call the server healthy.
_LARGE_PARTS = ("settings", "replication", "the process list", "scheduled events")


def list_coverage(evidence: Evidence) -> Coverage:
    """Return the coverage of the evidence, one phrase for each part."""
    examined: list[str] = []
    missing: list[str] = []
    hidden: list[str] = []
    if evidence.traced_s is not None:
        threads = len({row.tid for row in evidence.wakeups})
        examined.append(f"wake-ups of {plural(threads, 'thread')} for {evidence.traced_s:.1f} s")
    else:
        hidden.append("wake-ups of its threads (not traced)")
    if count := evidence.hidden_connections_count:
        needed = "role pg_monitor" if evidence.is_postgresql else "privilege PROCESS"
        hidden.append(f"{plural(count, 'connection')} of other accounts (needs the {needed})")
    hidden += [f"{subject} (refused)" for subject in evidence.refused if subject in _LARGE_PARTS]
    if evidence.cpu_percent is not None:
        examined.append(f"its CPU time ({number(evidence.cpu_percent, 1)} % of one CPU)")
    if evidence.starts_span_s is not None:
        examined.append(f"the processes that it started in {format_seconds(evidence.starts_span_s)}")
    window = evidence.statement_window
    if window is not None:
        statements = plural(len(window.statements), "statement")
        examined.append(f"CPU time of {statements} for {window.window_s:.1f} s (by {window.method})")
    if evidence.other_instances_count:
        examined.append(f"without {plural(evidence.other_instances_count, 'connection')} of other powerprof commands")
    if evidence.postgres_after is not None:
        _list_postgres_coverage(evidence, evidence.postgres_after, examined, missing)
    elif evidence.asked:
        _list_sql_coverage(evidence, examined, missing)
    elif evidence.family in SQL_FAMILIES:
        hidden.append("replication, clients, events and settings (no account on the server)")
    if evidence.family not in SQL_FAMILIES:
        if evidence.starts_span_s is not None and window is None:
            hidden.append("its statements (not measured)")
        if window is not None and (unknown := len(list_unknown_scans(window))):
            hidden.append(f"scans of whole tables by {plural(unknown, 'costly statement')} (too few stacks)")
    if evidence.starts_span_s is not None and not evidence.asked:
        missing.append(
            "its settings, sessions, slots, subscriptions and counters (the server refuses this user on its socket; "
            f'to let it in: CREATE ROLE "{getpass.getuser()}" LOGIN IN ROLE pg_monitor)'
        )
    elif not evidence.is_postgresql and evidence.family not in SQL_FAMILIES:
        what = "its settings" if window is not None else "its settings, clients and statements"
        missing.append(f"{what} (of this program, only threads, timers and CPU time are checked)")
    if evidence.log is not None:
        examined.append(f"the last {format_seconds(evidence.log.span_s)} of its error log")
    elif evidence.family in SQL_FAMILIES:
        missing.append("its error log (not a readable file)")
    return Coverage(examined, missing, hidden)


def _list_postgres_coverage(evidence: Evidence, facts: PostgresFacts, examined: list[str], missing: list[str]) -> None:
    if evidence.variables:
        examined.append(plural(len(evidence.variables), "setting"))
    read = {
        "the sessions": f"its sessions ({sum(session.kind == 'client backend' for session in facts.sessions)})",
        "the replication slots": f"replication slots ({len(facts.slots)})",
        "the walsenders": f"walsenders ({facts.senders_count})",
        "its subscriptions": f"logical subscriptions ({len(evidence.subscriptions_after or [])})",
        "the databases": f"counters of {plural(len(facts.databases), 'database')}",
        "running vacuums": f"running vacuums ({len(facts.vacuums)})",
    }
    if evidence.hidden_connections_count:
        del read["the sessions"]
    examined += [phrase for subject, phrase in read.items() if subject not in evidence.refused]
    missing += [f"{subject} (refused)" for subject in evidence.refused if subject not in _LARGE_PARTS]
    missing.append(f"plans of statements ({next_command(evidence, 'queries')})")


def _list_sql_coverage(evidence: Evidence, examined: list[str], missing: list[str]) -> None:
    if evidence.status_after:
        examined.append(plural(len(evidence.status_after), "counter"))
    if evidence.variables:
        examined.append(plural(len(evidence.variables), "setting"))
    channels = len(evidence.channels_after)
    enabled = sum(event.enabled for event in evidence.events)
    scheduler = evidence.variables.get("event_scheduler", "").upper() or "unknown"
    read = {
        "replication": f"replication ({plural(channels, 'channel')})" if channels else "replication (none)",
        "the process list": f"the process list (connections: {len(evidence.clients_after)})",
        "scheduled events": f"events ({enabled} enabled, the scheduler is {scheduler})"
        if enabled
        else "events (none that this account sees)",
    }
    if evidence.hidden_connections_count:
        del read["the process list"]
    examined += [phrase for subject, phrase in read.items() if subject not in evidence.refused]
    if evidence.replicas:
        examined.append(f"the list of replicas ({len(evidence.replicas)})")
    missing += [f"{subject} (refused)" for subject in evidence.refused if subject not in _LARGE_PARTS]
    if evidence.variables.get("performance_schema", "").upper() in ("OFF", "0"):
        missing.append("statements by connection (performance_schema is off)")
    what = "plans" if evidence.statement_window is not None else "plans and costs"
    missing.append(f"{what} of statements ({next_command(evidence, 'queries')})")


class DiagnosisRequest(msgspec.Struct, frozen=True):
    """The server to inspect: a process, an address, or both."""

    pid: str | None
    server_url: str | None
    socket: Path | None
    defaults_file: Path | None
    duration_s: float
    only: bool = False


def run(request: DiagnosisRequest, say: Callable[[str], None]) -> tuple[Diagnosis, Inspection]:
    """Inspect the server and return the diagnosis. Raise UsageError, CapabilityError or PowerprofError."""
    from powerprof.host.describe import host_record
    from powerprof.measure.clock import format_now

    started_at = format_now()
    with ExitStack() as stack:
        notes: list[str] = []
        subject = _resolve_subject(request, stack, notes, say)
        inspection = inspect_server(subject, request.duration_s, say)
        evidence, attribution = inspection.evidence, inspection.attribution
        if attribution is None and subject.connection is None and not evidence.is_stopped:
            refusal = inspection.refusal
            remedy = "run as root, or name an account with --defaults-file"
            raise CapabilityError(
                f"{subject.label} can be neither traced nor queried: {refusal or '; '.join(evidence.notes[:1])}",
                refusal.hint if refusal is not None and os.geteuid() == 0 else remedy,
            )
    coverage = list_coverage(evidence)
    diagnosis = Diagnosis(
        started_at=started_at,
        findings=diagnose(evidence),
        evidence=evidence,
        looked_at=coverage.examined,
        not_looked_at=coverage.not_examined,
        not_visible=coverage.not_visible,
        server=DiagnosedServer(pid=subject.pid, version=subject.version, address=subject.address),
        host=host_record(),
        tool=attribution.tool if attribution else None,
        notes=notes,
        ended=inspection.ended,
    )
    return diagnosis, inspection


def _resolve_subject(
    request: DiagnosisRequest, stack: ExitStack, notes: list[str], say: Callable[[str], None]
) -> Subject:
    from powerprof.database import sql
    from powerprof.database.given import given_server
    from powerprof.database.local_login import log_in_locally
    from powerprof.database.sql import read_version
    from powerprof.system.server_names import is_mysql_program, is_postgres_program

    has_address = any(part is not None for part in (request.server_url, request.socket, request.defaults_file))
    check_only(request.pid, request.only)
    pid, target = None, None
    if request.pid is not None or not has_address:
        target = resolve_server(request.pid, request.only, say, may_be_stopped=True)
        pid = target.first
    if has_address:
        named = given_server(
            request.server_url, request.socket, request.defaults_file, families=("mysql", "postgresql")
        )
        server = stack.enter_context(named)
        connection = stack.enter_context(server.connect(limits=sql.LOOK_LIMITS))
        if pid is not None and server.pid is not None and pid != server.pid:
            raise UsageError(f"--pid is {pid}, but the named server is process {server.pid}", "give only one of them")
        pid = pid if pid is not None else server.pid
        label = label_of(pid) if pid else "the server"
        if target is None and pid is not None and is_postgres_program(label):
            target = resolve_server(str(pid), False, say)
        return Subject(pid, label, connection, server.version, server.login.text, target, login=server.login)
    assert pid is not None and target is not None  # noqa: S101  resolved above without an address
    label = label_of(pid)
    stopped, is_postgres = is_stopped(pid), is_postgres_program(label)
    login = None if stopped else log_in_locally(pid, family="postgresql" if is_postgres else "mysql")
    if login is not None:
        local_connection = stack.enter_context(login[1])
        version = read_version(local_connection)
        return Subject(pid, label, local_connection, version, None, target if is_postgres else None, login=login[0])
    if not is_mysql_program(label):
        return Subject(pid, target.label, None, target.label, None, target)
    if not stopped:
        notes.append(
            "the server refuses this user on its socket: only its wake-ups were examined "
            "(name an account with --defaults-file)"
        )
    return Subject(pid, label, None, label, None)
