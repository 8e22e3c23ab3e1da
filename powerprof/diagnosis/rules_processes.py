# SPDX-License-Identifier: Apache-2.0
"""Rules on the processes of a PostgreSQL server: stopped, restarted again and again, and failing to archive."""

from __future__ import annotations

import math
import re

import msgspec

from powerprof.diagnosis.evidence import Evidence, Finding, Severity
from powerprof.diagnosis.postgres_evidence import Subscription
from powerprof.diagnosis.wording import describe_settings, format_rate, format_seconds, quote_identifier

# A worker that lasts is started once. A change of its subscription or a promotion starts it a second time.
_MIN_STARTS = 3
_MIN_ERRORS = 2
# The start of a parallel worker costs 5 to 10 ms. It pays if the worker uses more CPU time than this on average.
_PARALLEL_HZ, _PARALLEL_S = 5.0, 0.05
_UNKNOWN_HZ = 5.0
# "logical replication worker for subscription 16394 sync 16400" (PostgreSQL 10 to 15), "logical replication apply
# worker for subscription 16394", "logical replication tablesync worker for subscription 16394 sync 16400" (16).
_SUBSCRIBER = re.compile(
    r"(?:bgworker: )?logical replication (?:apply |tablesync )?worker for subscription (\d{1,10})(?: sync (\d{1,10}))?$"
)
_PGLOGICAL = re.compile(r"(?:bgworker: )?pglogical (?:apply|sync \S+) (\d{1,10}):(\d{1,10})")
_LAUNCHER = "logical replication launcher"
# The archiver tries again after a minute (pgarch.c).
_ARCHIVE_RETRY_S = 180.0
_ERRORS_IN_LOG = "the server's error log contains the ERROR of each attempt"
_LOWER_RETRY = "for fewer attempts: increase wal_retrieve_retry_interval (5 s by default)"


class _WorkerKind(msgspec.Struct, frozen=True):
    """A kind of worker, by the beginning of its role, with its finding.

    Attributes:
        text: The sentence of the finding; `{rate}` is the rate of starts, `{role}` the role.
        least_hz: The least rate of a finding.
        is_normal: Whether such processes come and go by design, without a finding.
        rule: The rule of the finding.
    """

    pattern: str
    text: str = ""
    remedy: tuple[str, ...] = ()
    least_hz: float = 0.0
    is_normal: bool = False
    rule: str = "restarted_worker"


_KINDS = (
    # Rules of their own: `rules_connections`, `rules_vacuum`.
    _WorkerKind(
        "backend of|autovacuum worker|logical replication parallel apply worker|parallel apply", is_normal=True
    ),
    _WorkerKind(
        "parallel worker",
        "Queries start parallel workers {rate}. Each worker is a new process, and short queries end before it pays.",
        (
            "to use workers for large tables only: larger parallel_setup_cost (1000 by default) and "
            "min_parallel_table_scan_size (8 MB by default)",
        ),
        least_hz=_PARALLEL_HZ,
        rule="parallel_workers",
    ),
    _WorkerKind(
        "walsender",
        "A subscriber or standby connects to this server {rate} and cannot stay connected.",
        (
            "On the subscriber or standby: its error log has the error of each attempt; diagnose that server",
            "its name and address: pg_stat_replication, or log_replication_commands=on",
        ),
    ),
    _WorkerKind(
        "walreceiver",
        "This standby starts its WAL receiver {rate}, which ends again each time: it does not stream.",
        (
            f"{_ERRORS_IN_LOG}: address and account in primary_conninfo, a missing slot, or removed WAL segments",
            _LOWER_RETRY,
        ),
    ),
    _WorkerKind(
        "startup|checkpointer|background writer|walwriter|archiver|logger|stats collector|autovacuum launcher"
        f"|{_LAUNCHER}|walsummarizer|slotsync worker",
        "The server starts its {role} {rate}: one process lasts as long as the server, if nothing fails.",
        (f"{_ERRORS_IN_LOG}, and names a process that was terminated by a signal",),
    ),
    _WorkerKind(
        "",
        "The server starts the background worker '{role}' {rate}, and it ends each time.",
        (
            f"If it fails: {_ERRORS_IN_LOG}, and 'exited with exit code 1'",
            "if it does a short job: a longer interval of its jobs in the settings of its extension",
        ),
    ),
)


def find_stopped_server(evidence: Evidence) -> list[Finding]:
    """Find a server whose process is stopped."""
    # A saved diagnosis does not know which: the control group of a container or a signal.
    text = f"Process {evidence.pid} of this server is stopped: it executes nothing until it resumes."
    remedy = [
        f"after a signal or a debugger: kill -CONT {evidence.pid}",
        "in a frozen control group (State S in /proc, docker pause): docker unpause, or 0 in its cgroup.freeze",
    ]
    finding = Finding(rule="stopped_server", severity="fault", text=text, evidence=[], remedy=remedy)
    return [finding] if evidence.is_stopped else []


def find_restarted_workers(evidence: Evidence) -> list[Finding]:
    """Find workers of PostgreSQL that start and end again and again, with the reason as far as the server reports it.

    Workers that come and go by design have no finding: some parallel workers of queries, and one worker per table while
    a subscription copies its tables.
    """
    span_s = evidence.starts_span_s
    findings = _find_subscriptions(evidence)
    if not span_s:
        return findings
    for starts in evidence.starts:
        role = starts.role
        if starts.count < _MIN_STARTS or (role is not None and _SUBSCRIBER.match(role)):
            continue
        rate_hz = starts.count / span_s
        seen = f"{starts.count} processes of this kind started in {format_seconds(span_s)}"
        if role is not None and starts.unnamed_count:
            seen += f"; {starts.unnamed_count} of them ended before their titles could be read"
        if role is None:
            # Among others of a known kind, those that were missed are probably of that kind.
            known_count = sum(other.count for other in evidence.starts if other.role is not None)
            if rate_hz >= _UNKNOWN_HZ and starts.count > known_count:
                findings.append(_report_unknown(rate_hz, seen))
        elif match := _PGLOGICAL.match(role):
            findings.append(_report_pglogical(match[2], rate_hz, seen))
        else:
            kind = next(kind for kind in _KINDS if re.match(kind.pattern, role))
            pays = kind.rule == "parallel_workers" and _compute_cpu_s(evidence) >= _PARALLEL_S
            if not kind.is_normal and not pays and rate_hz >= kind.least_hz:
                findings.append(_report_kind(kind, role, rate_hz, seen))
    return findings


def _compute_cpu_s(evidence: Evidence) -> float:
    """Return the CPU time of a process that ended, on average. Missed starts make it larger; unknown is infinite."""
    count = sum(starts.count for starts in evidence.starts)
    if evidence.ended_cpu_percent is None or not count or not evidence.starts_span_s:
        return math.inf
    return evidence.ended_cpu_percent / 100.0 * evidence.starts_span_s / count


def _format_starts(rate_hz: float) -> str:
    """Return a rate of starts as a lower bound: the watch misses processes that live for less than a look."""
    return f"at least {format_rate(rate_hz)}"


def _report(
    severity: Severity, text: str, seen: list[str], remedy: list[str], rate_hz: float, rule: str = "restarted_worker"
) -> Finding:
    return Finding(rule=rule, severity=severity, text=text, evidence=seen, remedy=remedy, rate_hz=rate_hz)


def _report_kind(kind: _WorkerKind, role: str, rate_hz: float, seen: str) -> Finding:
    text = kind.text.format(rate=_format_starts(rate_hz), role=role)
    return _report("fault", text, [seen], list(kind.remedy), rate_hz, kind.rule)


def _report_unknown(rate_hz: float, seen: str) -> Finding:
    return _report(
        "note",
        f"The server starts processes {_format_starts(rate_hz)} that end before their titles can be read: "
        "their kind is unknown.",
        [seen],
        ["log_connections=on shows whether they are connections of clients", _ERRORS_IN_LOG],
        rate_hz,
    )


def _report_pglogical(number: str, rate_hz: float, seen: str) -> Finding:
    return _report(
        "fault",
        f"The pglogical subscription {number} fails: its workers start {_format_starts(rate_hz)} and end each time.",
        [seen],
        [
            _ERRORS_IN_LOG,
            f"its name: SELECT sub_name FROM pglogical.subscription WHERE sub_id = {number}",  # noqa: S608 - printed
            "to stop it until the cause is fixed: SELECT pglogical.alter_subscription_disable('NAME')",
        ],
        rate_hz,
    )


class _Attempts(msgspec.Struct):
    """The failing workers of one subscription: their starts, and the tables of those that copy a table."""

    apply_count: int = 0
    sync_count: int = 0
    tables: int = 0


def _find_subscriptions(evidence: Evidence) -> list[Finding]:
    """Find subscriptions whose apply worker, or the worker of one table, starts again and again, or counts errors."""
    attempts: dict[int, _Attempts] = {}
    for starts in evidence.starts:
        match = _SUBSCRIBER.match(starts.role or "")
        if match is None or starts.count < _MIN_STARTS:
            continue
        entry = attempts.setdefault(int(match[1]), _Attempts())
        if match[2] is None:
            entry.apply_count += starts.count
        else:
            entry.sync_count, entry.tables = entry.sync_count + starts.count, entry.tables + 1
    names = {entry.oid: entry for entry in evidence.subscriptions_after or []}
    before = {entry.oid: entry.errors_count for entry in evidence.subscriptions_before or []}
    # Between two attempts a failing subscription has no worker.
    unserved = {entry.oid for entry in evidence.subscriptions_before or [] if entry.is_enabled and not entry.has_worker}
    absent = {oid for oid, entry in names.items() if entry.has_worker is False and entry.is_enabled and oid in unserved}
    errors: dict[int, int] = {}
    for oid, subscription in names.items():
        now, then = subscription.errors_count, before.get(oid)
        if now is not None and then is not None and now - then >= _MIN_ERRORS:
            errors[oid] = now - then
    return [
        _report_subscription(evidence, oid, attempts.get(oid, _Attempts()), names.get(oid), errors.get(oid))
        for oid in sorted({*attempts, *errors, *absent})
    ]


def _report_subscription(
    evidence: Evidence, oid: int, attempts: _Attempts, named: Subscription | None, errors: int | None
) -> Finding:
    started = attempts.apply_count + attempts.sync_count
    span_s = evidence.starts_span_s or 0.0
    rate_hz = max(started / span_s if span_s else 0.0, (errors or 0) / max(evidence.window_s, 1.0))
    seen = []
    if attempts.apply_count:
        seen.append(f"{attempts.apply_count} apply workers of it started in {format_seconds(span_s)}")
    if attempts.sync_count:
        tables = f"{attempts.tables} table{'s' if attempts.tables > 1 else ''}"
        seen.append(f"{attempts.sync_count} workers that copy {tables} of it started in {format_seconds(span_s)}")
    if errors is not None:
        seen.append(f"pg_stat_subscription_stats: {errors} errors in {format_seconds(evidence.window_s)}")
    if not seen:
        seen.append("pg_stat_subscription: it is enabled and has no worker, before and after the window")
    name = "NAME" if named is None else quote_identifier(named.name)
    remedy = [
        f"{_ERRORS_IN_LOG} (logical replication worker): fix its cause, such as a duplicate row",
        f"to stop it until the cause is fixed, in its database: ALTER SUBSCRIPTION {name} DISABLE",
        f"from PostgreSQL 15: ALTER SUBSCRIPTION {name} SET (disable_on_error = true) stops it at its next error",
        _LOWER_RETRY,
    ]
    if named is None:
        subject = f"The logical subscription with number {oid} (its name is unknown without a login)"
        remedy.insert(0, f"its name: SELECT subname FROM pg_subscription WHERE oid = {oid}")  # noqa: S608 - printed
    else:
        subject = f"The logical subscription {named.name}"
    if interval := describe_settings(evidence, "wal_retrieve_retry_interval"):
        seen.append(f"{interval}: the pause between attempts")
    if not rate_hz and (limit := describe_settings(evidence, "max_logical_replication_workers")):
        seen.append(f"{limit}: the server starts no more workers than that")
    ends = f"its workers start {_format_starts(rate_hz)} and end each time" if rate_hz else "it has no worker"
    return _report("fault", f"{subject} fails: {ends}.", seen, remedy, rate_hz)


def find_failed_archiving(evidence: Evidence) -> list[Finding]:
    """Find an archiver whose last attempt failed, by its title and by pg_stat_archiver."""
    facts = evidence.postgres_after
    seen = []
    if (evidence.archiver or "").startswith("archiver failed on"):
        seen.append(f"the title of its process: {evidence.archiver}")
    is_on = evidence.variables.get("archive_mode", "off") != "off"
    if is_on and facts is not None and facts.failed_s is not None:
        # A failure that a success followed is over.
        is_last = facts.archived_s is None or facts.failed_s < facts.archived_s
        count = facts.counters.get("failed", 0)
        if is_last and (facts.failed_s <= _ARCHIVE_RETRY_S or seen):
            seen.append(f"pg_stat_archiver: {count} failures, the last one {format_seconds(facts.failed_s)} ago")
    if not seen:
        return []
    return [
        Finding(
            rule="failed_archiving",
            severity="fault",
            text="archive_command fails repeatedly, and WAL files accumulate in pg_wal.",
            evidence=seen,
            remedy=[
                f"{_ERRORS_IN_LOG} (archive command failed); pg_stat_archiver counts them",
                "fix archive_command, or free space at its destination",
            ],
        )
    ]


def omit_explained_rows(evidence: Evidence) -> Evidence:
    """Return the evidence without the wake-ups of the processes that only start the failing workers."""
    explained = {_LAUNCHER} if _find_subscriptions(evidence) else set()
    if any(starts.count >= _MIN_STARTS and (starts.role or "").startswith("walreceiver") for starts in evidence.starts):
        explained.add("startup")
    rows = [row for row in evidence.wakeups if row.name not in explained]
    return msgspec.structs.replace(evidence, wakeups=rows)
