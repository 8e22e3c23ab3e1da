# SPDX-License-Identifier: Apache-2.0
"""Rules on replication: duplicate server ids, replicas that reconnect or stopped, and circulating events."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

from powerprof.database.base import ReplicationStatus
from powerprof.diagnosis.evidence import Evidence, Finding, LogSummary, ReplicationChannel, ThreadWakeups
from powerprof.diagnosis.wording import format_event_rate, format_rate, format_seconds, select_stack

# A replica waits Connect_Retry (60 s by default) before each attempt except the first, which is immediate. So only a
# source that ends its connections repeatedly causes a higher rate.
_EVICTED_HZ = 0.5
_MIN_RECONNECTS = 3
_PER_RECONNECT_BYTES = 16 << 10
_SAME_ID = re.compile(r"same server[_ ]?(?:uuid|id)", re.IGNORECASE)
# sql/slave.cc: states of an I/O thread without its source.
_LOST = re.compile(r"(Waiting to reconnect|Reconnecting) after a failed")
# The log also contains the evictions of faults that were fixed. Older messages than this are ignored.
_RECENT_S = 120.0
_MAX_INTERVAL_S = 180.0
_DEFAULT_RETRY_S = 60


def compute_reconnects_hz(evidence: Evidence) -> float | None:
    """Return, on a replica, the changes of the relay log per second, one for each reconnect; None without a replica."""
    before = {channel.status.channel: channel for channel in evidence.channels_before}
    counts = []
    for channel in evidence.channels_after:
        earlier = before.get(channel.status.channel)
        first, last = _parse_relay_log_number(earlier), _parse_relay_log_number(channel)
        if first is not None and last is not None:
            changes = max(0, last - first)
            # A small max_relay_log_size also changes the file if there is much to read.
            read_bytes = _compute_read_bytes(earlier, channel)
            is_reconnect = read_bytes is not None and read_bytes <= changes * _PER_RECONNECT_BYTES
            counts.append(changes if is_reconnect else 0)
    if not counts or evidence.window_s <= 0:
        return None
    return max(counts) / evidence.window_s if max(counts) >= _MIN_RECONNECTS else 0.0


def _compute_read_bytes(before: ReplicationChannel | None, after: ReplicationChannel) -> int | None:
    if before is None or before.status.source_log_file != after.status.source_log_file:
        return None
    if before.status.read_position_bytes is None or after.status.read_position_bytes is None:
        return None
    return after.status.read_position_bytes - before.status.read_position_bytes


def _parse_relay_log_number(channel: ReplicationChannel | None) -> int | None:
    number = re.search(r"\.(\d{1,12})$", channel.relay_log_file or "") if channel is not None else None
    return int(number[1]) if number else None


def count_dump_changes(evidence: Evidence) -> int:
    """Return, on a source, the number of dump threads that replaced another one during the samples."""
    sets = [{client.id for client in sample if client.command.startswith("Binlog Dump")} for sample in evidence.samples]
    return len(set().union(*sets)) - max(map(len, sets)) if sets else 0


def compute_source_churn_hz(evidence: Evidence) -> float:
    """Return, on a source, the connections per second if replicas reconnect repeatedly; otherwise 0."""
    log = evidence.log
    starts = sum(_select_recent_starts(evidence).values())
    if count_dump_changes(evidence) >= 2 or (log is not None and starts / max(log.span_s, 1.0) >= _EVICTED_HZ):
        return evidence.rate_hz("Connections")
    return 0.0


def _select_recent_starts(evidence: Evidence) -> dict[str, int]:
    """Return how often replicas began to read, by server id in the error log, if they still do so repeatedly."""
    log = evidence.log
    if log is None:
        return {}
    return {
        key: count
        for key, count in log.dump_starts.items()
        if count >= _MIN_RECONNECTS
        and log.dump_last_s.get(key, _RECENT_S) < _RECENT_S
        and log.span_s / count <= _MAX_INTERVAL_S
    }


_DUPLICATE_REMEDY = [
    "On one of the two replicas: SET GLOBAL server_id=ANOTHER; STOP SLAVE; START SLAVE",
    "and set server_id=ANOTHER in its my.cnf: each server of a replication setup needs its own id",
]


def find_duplicate_id_on_source(evidence: Evidence) -> list[Finding]:
    """Find two replicas with one server id: the source ends the dump thread of the older one for the newer one."""
    hosts_by_id: dict[int, set[str]] = {}
    for replica in evidence.replicas:
        hosts_by_id.setdefault(replica.server_id, set()).add(f"{replica.host or '(no report_host)'}:{replica.port}")
    shared = {server_id: sorted(hosts) for server_id, hosts in hosts_by_id.items() if len(hosts) > 1}
    churn_hz = compute_source_churn_hz(evidence)
    starts = _select_recent_starts(evidence)
    is_certain = bool(shared) or churn_hz >= _EVICTED_HZ
    if not is_certain and not starts:
        return []
    lines = []
    if churn_hz and count_dump_changes(evidence):
        lines.append(
            f"{count_dump_changes(evidence)} dump threads were replaced within "
            f"{format_seconds(evidence.samples_span_s)}, {format_event_rate(churn_hz, 'connections')} are made"
        )
    for server_id, hosts in shared.items():
        lines.append(f"SHOW SLAVE HOSTS lists server id {server_id} alternately as {' and '.join(hosts)}")
    for key, count in starts.items():
        if evidence.log:
            lines.append(
                f"the error log: a replica with server id {key} began to read {count} times in "
                f"{format_seconds(evidence.log.span_s)}"
            )
    id_text = next((str(server_id) for server_id in shared), None) or next(iter(starts), None)
    owner = f"server id {id_text}" if id_text else "one server id"
    pace = f", which connect {format_rate(churn_hz)}" if churn_hz else ""
    text = (
        f"Two replicas of this server share {owner}{pace}: each pushes the other out."
        if is_certain
        else f"A replica with {owner} keeps coming back: two replicas share it, or one cannot stay connected."
    )
    return [
        Finding(
            rule="duplicate_server_id",
            severity="fault",
            text=text,
            evidence=lines,
            remedy=_DUPLICATE_REMEDY,
            rate_hz=churn_hz or None,
            stack=select_stack(_select_rows(evidence, _DUMP)),
        )
    ]


_Kind = tuple[tuple[str, ...], tuple[str, ...]]
"""Parts of thread names in performance_schema, and functions that identify the thread without it (MySQL 5.5)."""
_IO: _Kind = ("sql/slave_io", "sql/replica_io"), ("handle_slave_io",)
_SQL: _Kind = (
    ("sql/slave_sql", "sql/slave_worker", "sql/replica_sql", "sql/replica_worker", "sql/rpl_parallel_thread"),
    ("handle_slave_sql",),
)
_DUMP: _Kind = ("(Binlog Dump)",), ("mysql_binlog_send",)


def _is_kind(kind: _Kind, name: str | None, stack: Sequence[str]) -> bool:
    names, functions = kind
    return any(word in (name or "") for word in names) or any(word in frame for word in functions for frame in stack)


def _select_rows(evidence: Evidence, kind: _Kind) -> list[ThreadWakeups]:
    return [row for row in evidence.wakeups if _is_kind(kind, row.name, row.stack)]


def find_role(name: str | None, stack: Sequence[str]) -> str | None:
    """Return `replica I/O thread`, `replica SQL thread` or `dump thread`; None for any other thread."""
    for kind, role in ((_IO, "replica I/O thread"), (_SQL, "replica SQL thread"), (_DUMP, "dump thread")):
        if _is_kind(kind, name, stack):
            return role
    return None


def find_duplicate_id_on_replica(evidence: Evidence) -> list[Finding]:
    """Find, on a replica, another one with the same id: the source ends each connection immediately."""
    reconnects_hz = compute_reconnects_hz(evidence) or 0.0
    is_evicted = reconnects_hz >= _EVICTED_HZ
    log = evidence.log
    retry_s = max(
        (channel.status.connect_retry_s or _DEFAULT_RETRY_S for channel in evidence.channels_after),
        default=_DEFAULT_RETRY_S,
    )
    errors = [
        channel.status.last_io_error
        for channel in evidence.channels_after
        if channel.status.last_io_error and _SAME_ID.search(channel.status.last_io_error)
    ]
    is_logged = bool(
        log and log.same_id_count and log.same_id_last_s is not None and log.same_id_last_s <= 3 * retry_s + 10
    )
    if not evidence.channels_after and not (is_logged and not evidence.asked):
        return []
    if not (is_evicted or errors or is_logged):
        return []
    lines = []
    if is_evicted:
        lines.append(
            f"the relay log was changed {format_rate(reconnects_hz)}, as at every reconnect, without new events from "
            "the source"
        )
    lines += [f"error from the source: {error}" for error in errors[:1]]
    if log and is_logged:
        lines.append(
            f"the error log: evicted {log.same_id_count} times by a replica with the same id, "
            f"last {format_seconds(log.same_id_last_s or 0.0)} ago"
        )
    server_id = evidence.server_id
    text = (
        f"Another replica of its source has its server id{'' if server_id is None else f', {server_id}'}: each pushes "
        "the other out"
    )
    text += f", {format_rate(reconnects_hz)}." if is_evicted else ". It backs off between attempts."
    return [
        Finding(
            rule="duplicate_server_id",
            severity="fault",
            text=text,
            evidence=[*lines, *_describe_io_thread(evidence)],
            remedy=_DUPLICATE_REMEDY,
            rate_hz=reconnects_hz or None,
            stack=_select_io_stack(evidence),
        )
    ]


def _select_io_stack(evidence: Evidence) -> list[str]:
    """Return the stack of the I/O thread at a reconnect, if a function shows it; otherwise its most frequent stack."""
    rows = _select_rows(evidence, _IO)
    reconnecting = [row for row in rows if any("reconnect" in frame for frame in row.stack)]
    return select_stack(reconnecting or rows)


def _describe_io_thread(evidence: Evidence) -> list[str]:
    exits_hz = sum(row.rate_hz for row in _select_rows(evidence, _IO))
    return [f"its I/O thread ends {format_event_rate(exits_hz, 'idle periods')}"] if exits_hz >= 1 else []


def find_reconnect_loop(evidence: Evidence) -> list[Finding]:
    """Find a replica that has no source or loses it repeatedly, with a server id of its own."""
    if find_duplicate_id_on_replica(evidence):
        return []
    before = {channel.status.channel: channel.status for channel in evidence.channels_before}
    reconnects_hz = compute_reconnects_hz(evidence) or 0.0
    findings = []
    for channel in evidence.channels_after:
        now, earlier = channel.status, before.get(channel.status.channel)
        is_lost = _LOST.search(now.io_state or "") and earlier is not None and _LOST.search(earlier.io_state or "")
        is_refused = now.io_running == "Connecting" and bool(now.last_io_error)
        if not (is_lost or is_refused or reconnects_hz):
            continue
        lines = [text for text in (now.io_state, now.last_io_error) if text]
        if evidence.log and evidence.log.retries_count:
            lines.append(
                f"the error log: {evidence.log.retries_count} reconnects in {format_seconds(evidence.log.span_s)}"
            )
        findings.append(
            Finding(
                rule="reconnect_loop",
                severity="fault",
                text=f"This replica cannot stay connected to its source {now.source_host}:{now.source_port} and tries "
                f"again every {now.connect_retry_s or _DEFAULT_RETRY_S} s.",
                evidence=[*lines, *_describe_io_thread(evidence)],
                remedy=[
                    "fix the account, address or network named above",
                    "or, if the source no longer exists: STOP SLAVE; RESET SLAVE ALL",
                ],
                rate_hz=reconnects_hz or None,
                stack=_select_io_stack(evidence),
            )
        )
    return findings


_GTID = re.compile(r"GTID (\d+-\d+-\d+)")
_MIN_ROUNDS = 3
_MIN_SAME_TEXT = 5
_TRANSACTION = re.compile(r"(BEGIN|COMMIT|ROLLBACK|SAVEPOINT)\b", re.IGNORECASE)


def find_orphan_event(evidence: Evidence) -> list[Finding]:
    """Find an event that circulates in a ring, because its server left the ring and cannot discard it."""
    is_source = bool(evidence.replicas) or any(
        client.command.startswith("Binlog Dump") for client in [*evidence.clients_before, *evidence.clients_after]
    )
    if not evidence.channels_after or not is_source:
        return []
    members = {evidence.server_id, *(replica.server_id for replica in evidence.replicas)}
    members |= {channel.status.source_server_id for channel in evidence.channels_after}
    circulating = _find_circulating_event(evidence, members)
    if not circulating:
        return []
    (server_id, event), rounds = circulating
    commits_hz = evidence.rate_hz("Binlog_commits")
    grown_bytes = (evidence.position_after_bytes or 0) - (evidence.position_before_bytes or 0)
    pace = format_rate(commits_hz) if commits_hz else f"{rounds} times in {len(evidence.logged)} events"
    owner = f"server id {server_id}" + (", which no server of the ring has" if server_id not in members else "")
    lines = [
        f"the binary log holds the same event {rounds} times within {len(evidence.logged)} events: {event}",
        f"the binary log grew by {grown_bytes / max(evidence.window_s, 1e-9) / 1e3:,.0f} kB/s",
    ]
    rows = [row for row in evidence.wakeups if find_role(row.name, row.stack)]
    exits_hz = sum(row.rate_hz for row in rows)
    if exits_hz >= 1:
        lines.append(f"the replication threads end {format_event_rate(exits_hz, 'idle periods')}")
    return [
        Finding(
            rule="orphan_event",
            severity="fault",
            text=f"An event of {owner}, goes round this ring {pace}, and is applied each time.",
            evidence=lines,
            remedy=[
                f"On one server of the ring: STOP SLAVE; CHANGE MASTER TO IGNORE_SERVER_IDS=({server_id}); START SLAVE",
                "(MySQL 8: CHANGE REPLICATION SOURCE TO …); then compare the data: each round has changed them",
            ],
            rate_hz=commits_hz or None,
            stack=select_stack(rows),
        )
    ]


def _find_circulating_event(evidence: Evidence, members: set[int | None]) -> tuple[tuple[int, str], int] | None:
    """Return the server id and description of a circulating event, and its number of rounds; None without one.

    A repeated GTID is proof. Without GTIDs the same statement of a server outside the ring counts.
    """
    gtids: Counter[tuple[int, str]] = Counter()
    texts: Counter[tuple[int, str, int | None]] = Counter()
    statements: dict[int, str] = {}
    for event in evidence.logged:
        gtid_match = _GTID.search(event.info) if event.kind.startswith("Gtid") else None
        if gtid_match:
            gtids[(event.server_id, gtid_match[1])] += 1
        elif event.kind in ("Query", "Query_compressed") and not _TRANSACTION.match(event.info):
            statements.setdefault(event.server_id, event.info)
            if event.server_id not in members | {0}:
                texts[(event.server_id, event.info, event.text_number)] += 1
    if gtids and (most := gtids.most_common(1)[0])[1] >= _MIN_ROUNDS:
        (server_id, gtid), rounds = most
        statement = f": {statements[server_id][:80]}" if server_id in statements else ""
        return (server_id, f"GTID {gtid}{statement}"), rounds
    if not gtids and texts and (most_text := texts.most_common(1)[0])[1] >= _MIN_SAME_TEXT:
        (server_id, text, _), rounds = most_text
        return (server_id, text[:80]), rounds
    return None


def find_stopped_threads(evidence: Evidence) -> list[Finding]:
    """Find stopped SQL and I/O threads. A thread that is restarted repeatedly is running at some moments."""
    statuses_by_channel: dict[str, list[ReplicationStatus]] = {}
    for channel in [*evidence.channels_before, *evidence.channels_after, *evidence.channels_seen]:
        statuses_by_channel.setdefault(channel.status.channel, []).append(channel.status)
    findings = []
    for name, statuses in statuses_by_channel.items():
        last = statuses[-1]
        failed = next((status for status in reversed(statuses) if status.last_sql_error_number), None)
        logged = _find_recent_error(evidence.log) if len(statuses_by_channel) == 1 else None
        stopped = _count_stopped(statuses)
        source = f"{last.source_host}:{last.source_port}" + (f", channel {name}" if name else "")
        if failed is not None or (logged and stopped):
            findings.append(_report_sql_error(evidence, statuses, failed, logged, source))
        elif stopped == len(statuses) and last.io_running in ("Yes", "Connecting"):
            findings.append(_report_sql_stop(statuses, source))
        if last.io_running == "No" and last.last_io_error_number:
            findings.append(_report_io_error(evidence, last, source))
        elif stopped == len(statuses) and last.io_running == "No" and failed is None and not logged:
            findings.append(
                Finding(
                    rule="replication_stopped",
                    severity="note",
                    text=f"Replication from {source} is stopped: both of its threads are off, without an error.",
                    evidence=["Slave_IO_Running and Slave_SQL_Running are No"],
                    remedy=["START SLAVE, or RESET SLAVE ALL if it will never replicate again"],
                )
            )
    return findings


def _find_recent_error(log: LogSummary | None) -> str | None:
    if log is None or log.sql_error is None or (log.sql_error_last_s or 0.0) > _RECENT_S:
        return None
    return log.sql_error


def _count_stopped(statuses: list[ReplicationStatus]) -> int:
    return sum(status.sql_running is False for status in statuses)


def _describe_delay(statuses: list[ReplicationStatus]) -> list[str]:
    unknown = sum(status.seconds_behind is None for status in statuses)
    return [f"Seconds_Behind_Master is NULL in {unknown} of {len(statuses)} samples"] if unknown else []


def _compute_starts_hz(evidence: Evidence) -> float:
    return evidence.rate_hz("Com_start_slave", "Com_slave_start", "Com_replica_start", "Com_start_all_slaves")


def _report_sql_error(
    evidence: Evidence,
    statuses: list[ReplicationStatus],
    failed: ReplicationStatus | None,
    logged: str | None,
    source: str,
) -> Finding:
    number = failed.last_sql_error_number if failed is not None else None
    error = (failed.last_sql_error if failed is not None else None) or logged or ""
    starts_hz = _compute_starts_hz(evidence)
    text = f"The SQL thread of this replica (source {source}) stops with " + (
        f"error {number}" if number is not None else "an error"
    )
    text += ": it applies no changes from the source."
    lines = [f"{error} (SHOW SLAVE STATUS has the whole message)"] if error else []
    lines += [
        f"Slave_SQL_Running is No in {_count_stopped(statuses)} of {len(statuses)} samples",
        *_describe_delay(statuses),
    ]
    if evidence.log is not None and evidence.log.sql_errors_count:
        lines.append(
            f"the error log: it failed {evidence.log.sql_errors_count} times in {format_seconds(evidence.log.span_s)}"
        )
    remedy = [
        "compare the named row or table with the source, repair it here, then START SLAVE",
        "if the data of this replica is unreliable: rebuild it from its source",
    ]
    # The coordinator stopped because of a worker ("... error(s) in the worker(s)"), whose error is elsewhere.
    if "error(s) in the worker" in error:
        remedy.insert(
            0, "SELECT * FROM performance_schema.replication_applier_status_by_worker shows the worker's error"
        )
    if starts_hz:
        text += f" START SLAVE is issued {format_rate(starts_hz)}, and the thread stops again each time."
        remedy.append("stop whatever keeps issuing START SLAVE: it only hides the error")
    return Finding(
        rule="replication_stopped",
        severity="fault",
        text=text,
        evidence=lines,
        remedy=remedy,
        rate_hz=starts_hz or None,
    )


def _report_sql_stop(statuses: list[ReplicationStatus], source: str) -> Finding:
    size_bytes = statuses[-1].relay_log_bytes
    lines = [f"Slave_SQL_Running is No in all {len(statuses)} samples, without an error", *_describe_delay(statuses)]
    if size_bytes is not None:
        lines.append(f"the relay logs hold {size_bytes / 1e6:,.1f} MB")
    return Finding(
        rule="replication_stopped",
        severity="fault",
        text=f"The SQL thread of this replica (source {source}) is stopped, but its I/O thread still reads: no change "
        "is applied.",
        evidence=lines,
        remedy=[
            "START SLAVE SQL_THREAD; if it is stopped on purpose: STOP SLAVE IO_THREAD too, before the disk is full"
        ],
    )


def _report_io_error(evidence: Evidence, last: ReplicationStatus, source: str) -> Finding:
    starts_hz = _compute_starts_hz(evidence)
    return Finding(
        rule="replication_stopped",
        severity="fault",
        text=f"The I/O thread of this replica (source {source}) has stopped with error {last.last_io_error_number}: "
        "it reads nothing from its source."
        + (
            f" START SLAVE is issued {format_rate(starts_hz)}, and the thread stops again each time."
            if starts_hz
            else ""
        ),
        evidence=[last.last_io_error or "", "Slave_IO_Running is No"],
        remedy=[
            "fix the cause named in the error, then START SLAVE",
            "if the source has deleted binary logs that it needs: rebuild the replica",
        ],
        rate_hz=starts_hz or None,
    )
