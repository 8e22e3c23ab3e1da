# SPDX-License-Identifier: Apache-2.0
"""Rules on settings of PostgreSQL and their effects: checkpoints, temporary files, JIT, and short intervals."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from powerprof.diagnosis.consumers import find_largest_consumer
from powerprof.diagnosis.evidence import Evidence, Finding, StatementCpu
from powerprof.diagnosis.statement_window import describe_share, describe_use, is_costly
from powerprof.diagnosis.wording import (
    describe_settings,
    format_change,
    format_rate,
    format_role_change,
    format_seconds,
    shorten_statement,
)
from powerprof.model.text import number

_MIB = 1 << 20
# PostgreSQL itself warns of requested checkpoints at shorter intervals (checkpoint_warning).
_FREQUENT_S = 30.0
_LEAST_REQUESTED = 4
# Less WAL than this per second is no work: an idle server writes some bytes each minute.
_WRITES_HZ = 1000.0
_SPILLED_HZ, _LEAST_FILES = 2 * _MIB, 3
_JIT_PERCENT, _JIT_CALLS_HZ = 50.0, 0.5


def compute_wal_hz(evidence: Evidence) -> float | None:
    """Return the bytes of WAL that the server writes per second; None if it is unknown, or on a standby."""
    before, after = evidence.postgres_before, evidence.postgres_after
    if before is None or after is None or before.wal_bytes is None or after.wal_bytes is None or evidence.window_s <= 0:
        return None
    if "written" in before.counters:
        return evidence.count_postgres("written") / evidence.window_s
    return max(0, after.wal_bytes - before.wal_bytes) / evidence.window_s


def _is_writing(evidence: Evidence) -> bool:
    return (compute_wal_hz(evidence) or 0.0) >= _WRITES_HZ


def find_frequent_checkpoints(evidence: Evidence) -> list[Finding]:
    """Find checkpoints that max_wal_size requests more often than twice a minute.

    The interval follows from the WAL rate (xlog.c, CalculateCheckpointSegments). The counters must confirm it: a single
    bulk load does not make requests the usual reason of checkpoints.
    """
    wal_hz, after = compute_wal_hz(evidence), evidence.postgres_after
    size, target = evidence.read_number("max_wal_size"), evidence.read_number("checkpoint_completion_target")
    if not wal_hz or after is None or size is None:
        return []
    interval_s = size * _MIB / (1.0 + (target or 0.0)) / wal_hz
    requested = after.counters.get("requested", 0)
    is_usual = requested >= _LEAST_REQUESTED and requested > after.counters.get("timed", 0)
    if interval_s >= _FREQUENT_S or not (is_usual or evidence.count_postgres("requested") >= 2):
        return []
    return [
        Finding(
            rule="frequent_checkpoints",
            severity="fault",
            text=f"max_wal_size requests a checkpoint every {format_seconds(interval_s)}: after each one, the first "
            "change of a page writes the whole page to the WAL again.",
            evidence=[
                f"the server writes {number(wal_hz / _MIB, 1)} MB/s of WAL",
                describe_settings(evidence, "max_wal_size", "checkpoint_timeout"),
                f"checkpoints since the last reset: {requested} requested, {after.counters.get('timed', 0)} timed",
            ],
            remedy=[
                "at least the WAL of five minutes, if the disk has room: "
                f"{format_change('max_wal_size', f'{_round_size(wal_hz * 600)}GB')}"
            ],
            rate_hz=1.0 / interval_s,
        )
    ]


def _round_size(size_bytes: float) -> int:
    return max(2, round(size_bytes / (1 << 30)))


def find_temporary_files(evidence: Evidence) -> list[Finding]:
    """Find databases whose statements write temporary files again and again, because work_mem is too small."""
    before, after = evidence.postgres_before, evidence.postgres_after
    if before is None or after is None or evidence.window_s <= 0:
        return []
    earlier = {database.name: database for database in before.databases}
    findings = []
    for database in after.databases:
        then = earlier.get(database.name)
        if then is None:
            continue
        files = max(0, database.files_count - then.files_count)
        bytes_hz = max(0, database.file_bytes - then.file_bytes) / evidence.window_s
        if files < _LEAST_FILES or bytes_hz < _SPILLED_HZ:
            continue
        findings.append(
            Finding(
                rule="temporary_files",
                severity="fault",
                text=f"Statements in the database {database.name} write {number(bytes_hz / _MIB, 0)} MB/s of temporary "
                "files: they sort or join more than work_mem.",
                evidence=[
                    f"pg_stat_database: {files} files in {format_seconds(evidence.window_s)}, "
                    f"{number(bytes_hz * evidence.window_s / files / _MIB, 0)} MB each",
                    describe_settings(evidence, "work_mem"),
                ],
                remedy=[
                    f"more memory for each sort: {format_change('work_mem', _propose_work_mem(evidence))}",
                    f"to see the statements in the error log: {format_change('log_temp_files', '0')}",
                    "an index in the order of ORDER BY avoids the sort",
                ],
                rate_hz=files / evidence.window_s,
            )
        )
    return findings


def _propose_work_mem(evidence: Evidence) -> str:
    """Return four times the present size, in MB."""
    return f"{max(16, round(4 * (evidence.read_number('work_mem') or 4096) / 1024))}MB"


def find_costly_compilation(evidence: Evidence) -> list[Finding]:
    """Find statements of which JIT compilation is most of the CPU time at each of their executions.

    A compiled statement runs faster, and its own part of the CPU time is what compilation could save. If compilation
    takes more than the rest, it cannot have saved as much. The statement with most of the server's CPU time has a
    finding with all its kinds of work (`rules_consumers`).
    """
    window, main = evidence.statement_window, find_largest_consumer(evidence)
    uses = [] if window is None else window.statements
    if main is not None and main.is_main:
        uses = [use for use in uses if use is not main.use]
    return [
        _report_compilation(evidence, use)
        for use in uses
        if (use.jit_percent or 0.0) >= _JIT_PERCENT
        and is_costly(use.percent, evidence)
        and (use.calls_hz or 0.0) >= _JIT_CALLS_HZ
    ]


def _report_compilation(evidence: Evidence, use: StatementCpu) -> Finding:
    compiled = use.percent * (use.jit_percent or 0.0) / 100.0
    return Finding(
        rule="costly_jit",
        severity="fault",
        text=f"{use.account or 'A client'} sends {shorten_statement(use.text)} {format_rate(use.calls_hz or 0.0)}: JIT "
        f"compilation is {number(use.jit_percent or 0.0, 0)} % of its CPU time, {describe_share(compiled, evidence)}.",
        evidence=[describe_use(use, evidence), describe_settings(evidence, "jit", "jit_above_cost")],
        remedy=[
            f"without JIT for this account: {format_role_change(use.account, 'jit', 'off')}",
            f"for costlier statements alone: {format_change('jit_above_cost', '1000000')}",
        ],
        rate_hz=use.calls_hz,
        percent=use.percent,
        account=use.account,
    )


class _Interval(msgspec.Struct, frozen=True):
    """A setting that wakes a process at an interval.

    Attributes:
        factor_s: Seconds per unit of the setting.
        least_s: The shortest interval without a finding.
        usual: A usual value, mostly the default.
        causes: What happens at each interval.
        is_active: Whether it happens in this state of the server.
    """

    name: str
    factor_s: float
    least_s: float
    usual: str
    causes: str
    is_active: Callable[[Evidence], bool]


def _is_untraced_writing(evidence: Evidence) -> bool:
    """Return whether the writers run. In a trace their own wake-ups are counted (`find_polling_waits`)."""
    return evidence.traced_s is None and _is_writing(evidence)


def _is_archiving(evidence: Evidence) -> bool:
    return evidence.variables.get("archive_mode", "off") != "off" and _is_writing(evidence)


def _is_receiving(evidence: Evidence) -> bool:
    facts = evidence.postgres_after
    is_subscriber = any(subscription.has_worker for subscription in evidence.subscriptions_after or [])
    return is_subscriber or (facts is not None and facts.is_standby)


def _is_sending(evidence: Evidence) -> bool:
    return evidence.postgres_after is not None and evidence.postgres_after.senders_count > 0


_INTERVALS = (
    _Interval(
        "wal_writer_delay", 0.001, 0.05, "200ms", "the WAL writer wakes while clients write", _is_untraced_writing
    ),
    _Interval(
        "bgwriter_delay", 0.001, 0.05, "200ms", "the background writer wakes while clients write", _is_untraced_writing
    ),
    _Interval("checkpoint_timeout", 1.0, 60.0, "5min", "a checkpoint writes all changed pages", _is_writing),
    _Interval("archive_timeout", 1.0, 30.0, "1min", "a WAL file is closed and archived as a whole", _is_archiving),
    _Interval(
        "wal_receiver_status_interval", 1.0, 5.0, "10s", "this server reports its position to its source", _is_receiving
    ),
    _Interval("wal_sender_timeout", 0.0005, 5.0, "1min", "each walsender asks its reader for an answer", _is_sending),
)


def find_short_intervals(evidence: Evidence) -> list[Finding]:
    """Find settings that wake processes much more often than their defaults. 0 turns such a setting off."""
    findings = []
    for interval in _INTERVALS:
        value = evidence.read_number(interval.name)
        if not value or value < 0 or value * interval.factor_s >= interval.least_s or not interval.is_active(evidence):
            continue
        rate_hz = 1.0 / (value * interval.factor_s)
        findings.append(
            Finding(
                rule="short_interval",
                severity="fault",
                text=f"{interval.name} is short: {interval.causes} {format_rate(rate_hz)}.",
                evidence=[f"{describe_settings(evidence, interval.name)}; usual is {interval.usual}"],
                remedy=[format_change(interval.name, interval.usual)],
                rate_hz=rate_hz,
            )
        )
    return findings
