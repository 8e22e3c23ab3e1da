# SPDX-License-Identifier: Apache-2.0
"""Rules on replication: duplicated server ids, replicas that reconnect, events that go round for ever."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

from powerprof.database.clients.performance import ReplicationStatus
from powerprof.diagnosis.evidence import (
    Evidence,
    Finding,
    LogSummary,
    ReplicationChannel,
    ThreadWakeups,
    each_second,
    rate,
    seconds,
    stack_of,
)

# A replica whose source ends the connection waits Connect_Retry (60 s by default) before all attempts but the
# first, which is at once. So only a source that pushes it out again and again makes more than this.
_EVICTED_HZ = 0.5
_FEWEST = 3
_PER_RECONNECT_BYTES = 16 << 10
_SAME_ID = re.compile(r"same server[_ ]?(?:uuid|id)", re.IGNORECASE)
# sql/slave.cc: states of an I/O thread that has lost its source.
_LOST = re.compile(r"(Waiting to reconnect|Reconnecting) after a failed")
_RING_ID = re.compile(r"GTID (\d+-\d+-\d+)")
_ROUNDS = 3
_SAME_TEXT = 5
# The older evictions of a fault that has been mended are in the log too.
_LONG_AGO_S = 120.0
_SELDOM_S = 180.0
_NOT_WORK = re.compile(r"(BEGIN|COMMIT|ROLLBACK|SAVEPOINT)\b", re.IGNORECASE)
_DEFAULT_RETRY_S = 60


def reconnects_hz(evidence: Evidence) -> float | None:
    """Replica side: how often the relay log was changed, which every reconnect does; None without a replica."""
    before = {channel.status.channel: channel for channel in evidence.channels_before}
    moved = []
    for channel in evidence.channels_after:
        first = _number(before.get(channel.status.channel)), _number(channel)
        if first[0] is not None and first[1] is not None:
            changes = max(0, first[1] - first[0])
            # A small max_relay_log_size changes files too, when there is something to read.
            read = _read_bytes(before.get(channel.status.channel), channel)
            moved.append(changes if read is not None and read <= changes * _PER_RECONNECT_BYTES else 0)
    if not moved or evidence.window_s <= 0:
        return None
    return max(moved) / evidence.window_s if max(moved) >= _FEWEST else 0.0


def _read_bytes(before: ReplicationChannel | None, after: ReplicationChannel) -> int | None:
    if before is None or before.status.source_log_file != after.status.source_log_file:
        return None
    if before.status.read_position_bytes is None or after.status.read_position_bytes is None:
        return None
    return after.status.read_position_bytes - before.status.read_position_bytes


def _number(channel: ReplicationChannel | None) -> int | None:
    number = re.search(r"\.(\d{1,12})$", channel.relay_log_file or "") if channel is not None else None
    return int(number[1]) if number else None


def dump_changes(evidence: Evidence) -> int:
    """Source side: how many more dump threads the process lists showed than there ever were at one time."""
    sets = [{client.id for client in sample if client.command.startswith("Binlog Dump")} for sample in evidence.samples]
    return len(set().union(*sets)) - max(map(len, sets)) if sets else 0


def source_churn_hz(evidence: Evidence) -> float:
    """Source side: connections/s that replicas make again and again; 0 where they stay."""
    log = evidence.log
    starts = sum(_recent_starts(evidence).values())
    if dump_changes(evidence) >= 2 or (log is not None and starts / max(log.span_s, 1.0) >= _EVICTED_HZ):
        return evidence.rate_hz("Connections")
    return 0.0


def _recent_starts(evidence: Evidence) -> dict[str, int]:
    """How often replicas began to read, by server id, where it is going on: by the error log of the source."""
    log = evidence.log
    if log is None:
        return {}
    return {
        key: count
        for key, count in log.dump_starts.items()
        if count >= _FEWEST and log.dump_last_s.get(key, _LONG_AGO_S) < _LONG_AGO_S and log.span_s / count <= _SELDOM_S
    }


def _shared_hosts(evidence: Evidence) -> dict[int, list[str]]:
    seen: dict[int, set[str]] = {}
    for replica in evidence.replicas:
        seen.setdefault(replica.server_id, set()).add(f"{replica.host or '(no report_host)'}:{replica.port}")
    return {number: sorted(hosts) for number, hosts in seen.items() if len(hosts) > 1}


_DUPLICATE_REMEDY = [
    "On one of the two replicas: SET GLOBAL server_id=ANOTHER; STOP SLAVE; START SLAVE",
    "and server_id=ANOTHER in its my.cnf: every server of a replication setup needs its own id",
]


def duplicate_on_source(evidence: Evidence) -> list[Finding]:
    """Two replicas with one id: the source ends the older one's dump thread for the newer one."""
    shared = _shared_hosts(evidence)
    churn = source_churn_hz(evidence)
    log = evidence.log
    sentences = []
    if churn and dump_changes(evidence):
        sentences.append(
            f"{dump_changes(evidence)} dump threads were replaced within {seconds(evidence.samples_span_s)}, "
            f"{each_second(churn, 'connections')} are made"
        )
    for number, hosts in shared.items():
        sentences.append(f"SHOW SLAVE HOSTS lists server id {number} in turns as {' and '.join(hosts)}")
    recent = _recent_starts(evidence)
    for key, count in recent.items():
        if log:
            sentences.append(
                f"the error log: a replica with server id {key} began to read {count} times in {seconds(log.span_s)}"
            )
    sure = bool(shared) or churn >= _EVICTED_HZ
    if not sure and not recent:
        return []
    id_text = next((str(number) for number in shared), None) or next(iter(recent), None)
    whose = f"server id {id_text}" if id_text else "one server id"
    often = f", which connect {rate(churn)}" if churn else ""
    text = (
        f"Two replicas of this server share {whose}{often}: each pushes the other out."
        if sure
        else f"A replica with {whose} keeps coming back: two replicas share it, or one cannot stay connected."
    )
    return [
        Finding(
            rule="duplicate_server_id",
            severity="fault",
            text=text,
            evidence=sentences,
            remedy=_DUPLICATE_REMEDY,
            rate_hz=churn or None,
            stack=stack_of(_rows(evidence, _DUMP)),
        )
    ]


# Names by performance_schema, and functions by which a thread is known where that has none (MySQL 5.5).
_IO = ("sql/slave_io", "sql/replica_io"), ("handle_slave_io",)
_SQL = (
    ("sql/slave_sql", "sql/slave_worker", "sql/replica_sql", "sql/replica_worker", "sql/rpl_parallel_thread"),
    ("handle_slave_sql",),
)
_DUMP = ("(Binlog Dump)",), ("mysql_binlog_send",)


def _is(kind: tuple[tuple[str, ...], tuple[str, ...]], name: str | None, stack: Sequence[str]) -> bool:
    names, functions = kind
    return any(word in (name or "") for word in names) or any(word in frame for word in functions for frame in stack)


def _rows(evidence: Evidence, kind: tuple[tuple[str, ...], tuple[str, ...]]) -> list[ThreadWakeups]:
    return [row for row in evidence.wakeups if _is(kind, row.name, row.stack)]


def role_of(name: str | None, stack: Sequence[str]) -> str | None:
    """`replica I/O thread`, `replica SQL thread` or `dump thread`, by server name or functions; None for any other."""
    for kind, role in ((_IO, "replica I/O thread"), (_SQL, "replica SQL thread"), (_DUMP, "dump thread")):
        if _is(kind, name, stack):
            return role
    return None


def duplicate_on_replica(evidence: Evidence) -> list[Finding]:
    """The same seen by one of the two: its source ends the connection as soon as there is one."""
    speed = reconnects_hz(evidence) or 0.0
    log = evidence.log
    retry_s = max(
        (channel.status.connect_retry_s or _DEFAULT_RETRY_S for channel in evidence.channels_after),
        default=_DEFAULT_RETRY_S,
    )
    complaints = [
        channel.status.last_io_error
        for channel in evidence.channels_after
        if channel.status.last_io_error and _SAME_ID.search(channel.status.last_io_error)
    ]
    logged = bool(
        log and log.same_id_count and log.same_id_last_s is not None and log.same_id_last_s <= 3 * retry_s + 10
    )
    if not evidence.channels_after and not (logged and not evidence.asked):
        return []
    if not (speed >= _EVICTED_HZ or complaints or logged):
        return []
    sentences = []
    if speed >= _EVICTED_HZ:
        sentences.append(
            f"the relay log was changed {rate(speed)}, as at every reconnect, with the source's log where it was"
        )
    sentences += [f"the source says: {text}" for text in complaints[:1]]
    if log and logged:
        sentences.append(
            f"the error log: evicted {log.same_id_count} times by a replica with the same id, "
            f"last {seconds(log.same_id_last_s or 0.0)} ago"
        )
    own = evidence.server_id
    whose = f"its server id{'' if own is None else f', {own}'}"
    backs_off = " It backs off between attempts." if speed < _EVICTED_HZ else ""
    text = f"Another replica of its source has {whose}: each pushes the other out"
    text += f", {rate(speed)}." if speed >= _EVICTED_HZ else "."
    sentences += _io_rows(evidence)
    return [
        Finding(
            rule="duplicate_server_id",
            severity="fault",
            text=text + backs_off,
            evidence=sentences,
            remedy=_DUPLICATE_REMEDY,
            rate_hz=speed or None,
            stack=_io_stack(evidence),
        )
    ]


def _io_stack(evidence: Evidence) -> list[str]:
    """Where the I/O thread reconnects, if that has a name; else where it is woken most."""
    rows = _rows(evidence, _IO)
    reconnecting = [row for row in rows if any("reconnect" in frame for frame in row.stack)]
    return stack_of(reconnecting or rows)


def _io_rows(evidence: Evidence) -> list[str]:
    total = sum(row.rate_hz for row in _rows(evidence, _IO))
    return [f"its I/O thread ends {each_second(total, 'idle periods')}"] if total >= 1 else []


def reconnect_loop(evidence: Evidence) -> list[Finding]:
    """A replica that has no source, or loses it again and again, for another reason than its id."""
    if duplicate_on_replica(evidence):
        return []
    before = {channel.status.channel: channel.status for channel in evidence.channels_before}
    findings = []
    for channel in evidence.channels_after:
        now, then = channel.status, before.get(channel.status.channel)
        lost = _LOST.search(now.io_state or "") and then is not None and _LOST.search(then.io_state or "")
        refused = now.io_running == "Connecting" and bool(now.last_io_error)
        speed = reconnects_hz(evidence) or 0.0
        if not (lost or refused or speed):
            continue
        place = f"{now.source_host}:{now.source_port}"
        sentences = [text for text in (now.io_state, now.last_io_error) if text]
        if evidence.log and evidence.log.retries_count:
            sentences.append(
                f"the error log: {evidence.log.retries_count} reconnects in {seconds(evidence.log.span_s)}"
            )
        findings.append(
            Finding(
                rule="reconnect_loop",
                severity="fault",
                text=f"This replica cannot stay connected to its source {place} and tries again every "
                f"{now.connect_retry_s or _DEFAULT_RETRY_S} s.",
                evidence=[*sentences, *_io_rows(evidence)],
                remedy=[
                    "fix the account, address or network named above",
                    "or, where the source is gone for good: STOP SLAVE; RESET SLAVE ALL",
                ],
                rate_hz=speed or None,
                stack=_io_stack(evidence),
            )
        )
    return findings


def orphan_event(evidence: Evidence) -> list[Finding]:
    """An event whose server has left the ring is dropped by nobody and goes round for ever."""
    is_source = bool(evidence.replicas) or any(
        item.command.startswith("Binlog Dump") for item in [*evidence.clients_before, *evidence.clients_after]
    )
    if not evidence.channels_after or not is_source:
        return []
    looping = _looping(evidence)
    if not looping:
        return []
    (number, what), times = looping
    commits = evidence.rate_hz("Binlog_commits")
    grown = (evidence.position_after_bytes or 0) - (evidence.position_before_bytes or 0)
    known = {evidence.server_id, *(item.server_id for item in evidence.replicas)}
    known |= {item.status.source_server_id for item in evidence.channels_after}
    often = rate(commits) if commits else f"{times} times in {len(evidence.logged)} events"
    whose = f"server id {number}, which no server of the ring has" if number not in known else f"server id {number}"
    sentences = [
        f"the binary log holds the same event {times} times within {len(evidence.logged)} events: {what}",
        f"the binary log grew by {grown / max(evidence.window_s, 1e-9) / 1e3:,.0f} kB/s",
    ]
    extra = sum(row.rate_hz for row in evidence.wakeups if role_of(row.name, row.stack))
    if extra >= 1:
        sentences.append(f"the replication threads end {each_second(extra, 'idle periods')}")
    return [
        Finding(
            rule="orphan_event",
            severity="fault",
            text=f"An event of {whose}, goes round this ring {often}, and is applied each time.",
            evidence=sentences,
            remedy=[
                f"On one server of the ring: STOP SLAVE; CHANGE MASTER TO IGNORE_SERVER_IDS=({number}); START SLAVE",
                "(MySQL 8: CHANGE REPLICATION SOURCE TO …); then compare the data: each round has changed them",
            ],
            rate_hz=commits or None,
            stack=stack_of([row for row in evidence.wakeups if role_of(row.name, row.stack)]),
        )
    ]


def _looping(evidence: Evidence) -> tuple[tuple[int, str], int] | None:
    """Server id and what goes round, and how often: by GTID, which is proof, else by a stranger's statement."""
    gtids: Counter[tuple[int, str]] = Counter()
    texts: Counter[tuple[int, str, int | None]] = Counter()
    strangers = {evidence.server_id, 0, *(item.server_id for item in evidence.replicas)}
    strangers |= {item.status.source_server_id for item in evidence.channels_after}
    statement: dict[int, str] = {}
    for event in evidence.logged:
        ring = _RING_ID.search(event.info) if event.kind.startswith("Gtid") else None
        if ring:
            gtids[(event.server_id, ring[1])] += 1
        elif event.kind in ("Query", "Query_compressed") and not _NOT_WORK.match(event.info):
            statement.setdefault(event.server_id, event.info)
            if event.server_id not in strangers:
                texts[(event.server_id, event.info, event.text_number)] += 1
    if gtids and (best := gtids.most_common(1)[0])[1] >= _ROUNDS:
        (number, gtid), times = best
        done = f": {statement[number][:80]}" if number in statement else ""
        return (number, f"GTID {gtid}{done}"), times
    if not gtids and texts and (most := texts.most_common(1)[0])[1] >= _SAME_TEXT:
        (number, text, _), times = most
        return (number, text[:80]), times
    return None


# Rules on replication that stands still: a dead SQL or I/O thread, and replicas that their source does not let in.

_STARTS = ("Com_start_slave", "Com_slave_start", "Com_replica_start", "Com_start_all_slaves")
_STOPPED_FEWEST = 2
# A worker's error stands elsewhere (Coordinator stopped because there were error(s) in the worker(s)).
_WORKERS = "error(s) in the worker"


def _looks(evidence: Evidence) -> dict[str, list[ReplicationStatus]]:
    """Every look at each channel, in the order of time."""
    looks: dict[str, list[ReplicationStatus]] = {}
    every: list[ReplicationChannel] = [*evidence.channels_before, *evidence.channels_after, *evidence.channels_seen]
    for channel in every:
        looks.setdefault(channel.status.channel, []).append(channel.status)
    return looks


def stopped_threads(evidence: Evidence) -> list[Finding]:
    """A replica that applies nothing, or reads nothing, whatever its threads look like at one moment."""
    findings = []
    for name, looks in _looks(evidence).items():
        last = looks[-1]
        failed = next((one for one in reversed(looks) if one.last_sql_error_number), None)
        logged = _logged(evidence.log) if len(_looks(evidence)) == 1 else None
        off = sum(one.sql_running is False for one in looks)
        place = f"{last.source_host}:{last.source_port}" + (f", channel {name}" if name else "")
        if failed is not None or (logged and off):
            findings.append(_dead(evidence, looks, failed, logged, place))
        elif off == len(looks) and last.io_running in ("Yes", "Connecting"):
            findings.append(_halted(evidence, looks, place))
        if last.io_running == "No" and last.last_io_error_number:
            findings.append(_io_dead(evidence, last, place))
        elif off == len(looks) and last.io_running == "No" and failed is None and not logged:
            findings.append(_by_hand(place))
    return findings


def _logged(log: LogSummary | None) -> str | None:
    """The error with which the SQL thread ended lately, by the error log."""
    if log is None or log.sql_error is None or (log.sql_error_last_s or 0.0) > _LONG_AGO_S:
        return None
    return log.sql_error


def _behind(looks: list[ReplicationStatus]) -> list[str]:
    unknown = sum(one.seconds_behind is None for one in looks)
    return [f"Seconds_Behind_Master is NULL in {unknown} of {len(looks)} looks"] if unknown else []


def _started(evidence: Evidence) -> float:
    return evidence.rate_hz(*_STARTS)


def _dead(
    evidence: Evidence, looks: list[ReplicationStatus], failed: ReplicationStatus | None, logged: str | None, place: str
) -> Finding:
    number = failed.last_sql_error_number if failed is not None else None
    error = (failed.last_sql_error if failed is not None else None) or logged or ""
    off, started = sum(one.sql_running is False for one in looks), _started(evidence)
    text = f"The SQL thread of this replica (source {place}) stops with " + (
        f"error {number}" if number is not None else "an error"
    )
    text += ": nothing that its source writes is applied."
    if started:
        text += f" START SLAVE is issued {rate(started)}, and it stops again each time."
    whole = f"{error} (SHOW SLAVE STATUS has the whole message)" if error else ""
    sentences = [whole, f"Slave_SQL_Running is No in {off} of {len(looks)} looks", *_behind(looks)]
    if evidence.log is not None and evidence.log.sql_errors_count:
        sentences.append(
            f"the error log: it ended with an error {evidence.log.sql_errors_count} times in "
            f"{seconds(evidence.log.span_s)}"
        )
    remedy = [
        "compare the row or table named with the source's, mend it here, then START SLAVE",
        "where its data cannot be trusted any more: rebuild the replica from its source",
    ]
    if _WORKERS in error:
        remedy.insert(
            0, "SELECT * FROM performance_schema.replication_applier_status_by_worker shows the worker's error"
        )
    if started:
        remedy.append("end what issues START SLAVE: it hides the error and mends nothing")
    return Finding(
        rule="replication_stopped",
        severity="fault",
        text=text,
        evidence=[sentence for sentence in sentences if sentence],
        remedy=remedy,
        rate_hz=started or None,
    )


def _halted(evidence: Evidence, looks: list[ReplicationStatus], place: str) -> Finding:
    size = looks[-1].relay_log_bytes
    sentences = [
        f"Slave_SQL_Running is No in all of {len(looks)} looks, and no error stands beside it",
        *_behind(looks),
    ]
    if size is not None:
        sentences.append(f"the relay logs hold {size / 1e6:,.1f} MB")
    return Finding(
        rule="replication_stopped",
        severity="fault",
        text=f"The SQL thread of this replica (source {place}) is stopped while its I/O thread reads on: nothing is "
        "applied.",
        evidence=sentences,
        remedy=[
            "START SLAVE SQL_THREAD; where it is stopped on purpose: STOP SLAVE IO_THREAD too, before the disk is full"
        ],
    )


def _io_dead(evidence: Evidence, last: ReplicationStatus, place: str) -> Finding:
    started = _started(evidence)
    return Finding(
        rule="replication_stopped",
        severity="fault",
        text=f"The I/O thread of this replica (source {place}) has stopped with error {last.last_io_error_number}: "
        "nothing is read from its source."
        + (f" START SLAVE is issued {rate(started)}, and it stops again each time." if started else ""),
        evidence=[last.last_io_error or "", "Slave_IO_Running is No"],
        remedy=[
            "mend what the error names, then START SLAVE",
            "where the source has deleted the binary logs that it needs: rebuild the replica",
        ],
        rate_hz=started or None,
    )


def _by_hand(place: str) -> Finding:
    return Finding(
        rule="replication_stopped",
        severity="note",
        text=f"Replication from {place} is stopped: both of its threads are off, and no error stands beside them.",
        evidence=["Slave_IO_Running and Slave_SQL_Running are No"],
        remedy=["START SLAVE, or RESET SLAVE ALL where it is never to replicate again"],
    )
