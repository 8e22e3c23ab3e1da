# SPDX-License-Identifier: Apache-2.0
"""Rules on replication that stands still: a dead SQL or I/O thread, and replicas that their source does not let in."""

from __future__ import annotations

from powerprof.database.private.replication import ReplicationStatus
from powerprof.diagnosis.evidence import Evidence, LogSummary, ReplicationChannel
from powerprof.diagnosis.findings import Finding
from powerprof.diagnosis.words import rate, seconds

_STARTS = ("Com_start_slave", "Com_slave_start", "Com_replica_start", "Com_start_all_slaves")
# Of a fault that was mended the log still tells: this is how long it is believed.
_LONG_AGO_S = 120.0
_FEWEST = 2
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
