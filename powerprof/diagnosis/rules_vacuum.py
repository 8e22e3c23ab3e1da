# SPDX-License-Identifier: Apache-2.0
"""Rules on autovacuum of PostgreSQL: workers that start too often, and a vacuum that does not end."""

from __future__ import annotations

from powerprof.diagnosis.evidence import Evidence, Finding, Severity
from powerprof.diagnosis.postgres_evidence import RunningVacuum
from powerprof.diagnosis.wording import describe_settings, format_change, format_event_rate, format_rate, format_seconds
from powerprof.model.text import number

_ROLE = "autovacuum worker"
_MIN_STARTS, _STARTS_HZ = 3, 2.0
# Each naptime starts a worker for one database after the other (60 s by default).
_SHORT_NAPTIME_S = 15.0
# A table is vacuumed after this many changed rows, and this part of its rows (50 and 0.2 by default).
_FEW_ROWS, _SMALL_PART = 25.0, 0.001
_ENDLESS_S = 3600.0
_LEAST_S = 0.5
_SCANNING = "scanning heap"


def find_frequent_autovacuum(evidence: Evidence) -> list[Finding]:
    """Find workers of autovacuum that start too often, by their processes, the naptime, and the thresholds."""
    naptime_s = evidence.read_number("autovacuum_naptime")
    is_on = evidence.variables.get("autovacuum") != "off"
    is_short = naptime_s is not None and naptime_s < _SHORT_NAPTIME_S and is_on
    span_s = evidence.starts_span_s or 0.0
    count = sum(starts.count for starts in evidence.starts if starts.role == _ROLE)
    rate_hz = count / span_s if span_s and count >= _MIN_STARTS else 0.0
    findings = _find_low_thresholds(evidence) if is_on else []
    if not rate_hz and not is_short:
        return findings
    seen = [f"{count} of its processes started in {format_seconds(span_s)}"] if rate_hz else []
    databases = 0 if evidence.postgres_after is None else len(evidence.postgres_after.databases)
    if databases and naptime_s:
        seen.append(
            f"{describe_settings(evidence, 'autovacuum_naptime')}: a worker each time for each of "
            f"{databases} databases in use"
        )
        rate_hz = rate_hz or 1.0 / naptime_s
        if evidence.postgres_after is not None and evidence.postgres_after.version < 150_000:
            seen.append("before PostgreSQL 15 each worker makes the statistics collector write its file")
    remedy = [
        "a longer autovacuum_naptime (1 min by default): each naptime starts a worker for every database",
        "fewer databases in this server",
    ]
    if is_short:
        remedy.insert(0, f"the default: {format_change('autovacuum_naptime', '1min')}")
    text = f"Autovacuum starts a worker at least {format_rate(rate_hz)}."
    severity: Severity = "fault" if is_short or rate_hz >= _STARTS_HZ else "note"
    return [
        *findings,
        Finding(
            rule="frequent_autovacuum", severity=severity, text=text, evidence=seen, remedy=remedy, rate_hz=rate_hz
        ),
    ]


def _find_low_thresholds(evidence: Evidence) -> list[Finding]:
    rows = evidence.read_number("autovacuum_vacuum_threshold")
    part = evidence.read_number("autovacuum_vacuum_scale_factor")
    if rows is None or part is None or rows > _FEW_ROWS or part > _SMALL_PART:
        return []
    return [
        Finding(
            rule="frequent_autovacuum",
            severity="fault",
            text=f"Autovacuum vacuums each table after {number(rows, 0)} changed rows, however large the table is.",
            evidence=[
                describe_settings(
                    evidence, "autovacuum_vacuum_threshold", "autovacuum_vacuum_scale_factor", "autovacuum_naptime"
                )
            ],
            remedy=[
                f"the default part of the rows: {format_change('autovacuum_vacuum_scale_factor', '0.2')}",
                f"the default number of rows: {format_change('autovacuum_vacuum_threshold', '50')}",
                "a low value for one table alone: ALTER TABLE … SET (autovacuum_vacuum_scale_factor = …)",
            ],
        )
    ]


def find_endless_vacuum(evidence: Evidence) -> list[Finding]:
    """Find a vacuum that would need more than an hour for the rest of its table at its present pace."""
    before, after = evidence.postgres_before, evidence.postgres_after
    if before is None or after is None or evidence.window_s < _LEAST_S:
        return []
    earlier = {vacuum.pid: vacuum for vacuum in before.vacuums}
    findings = []
    for vacuum in after.vacuums:
        then = earlier.get(vacuum.pid)
        if then is None or vacuum.phase != _SCANNING or then.pages_count != vacuum.pages_count:
            continue
        pages_hz = max(0, vacuum.scanned_count - then.scanned_count) / evidence.window_s
        left = vacuum.pages_count - vacuum.scanned_count
        # Without any page in the window the pace is at most one page per window.
        if left / max(pages_hz, 1.0 / evidence.window_s) >= _ENDLESS_S:
            findings.append(_report_endless(evidence, vacuum, pages_hz, left))
    return findings


def _report_endless(evidence: Evidence, vacuum: RunningVacuum, pages_hz: float, left: int) -> Finding:
    facts = evidence.postgres_after
    session = next((one for one in facts.sessions if one.pid == vacuum.pid), None) if facts is not None else None
    is_auto = session is not None and session.kind == _ROLE
    what = f"Autovacuum of {session.table or 'a table'}" if is_auto and session is not None else "A VACUUM"
    needs = f"{number(left / pages_hz / 3600, 1)} h" if pages_hz else "more than an hour"
    delay = "autovacuum_vacuum_cost_delay" if is_auto else "vacuum_cost_delay"
    return Finding(
        rule="endless_vacuum",
        severity="fault",
        text=f"{what} does not end: at {format_event_rate(pages_hz, 'pages')} the rest of the table needs {needs}, and "
        "old row versions stay until then.",
        evidence=[
            f"process {vacuum.pid} has scanned {vacuum.scanned_count} of {vacuum.pages_count} pages",
            describe_settings(evidence, delay, "autovacuum_vacuum_cost_limit", "vacuum_cost_limit"),
        ],
        remedy=[
            f"shorter pauses, the default: {format_change(delay, '2ms' if is_auto else '0')}",
            f"more work between them, the default: {format_change('vacuum_cost_limit', '200')}",
            *(
                [f"the default limit of workers: {format_change('autovacuum_vacuum_cost_limit', '-1')}"]
                if is_auto
                else []
            ),
            *_list_ends(vacuum, 0 if facts is None else facts.version),
        ],
        rate_hz=pages_hz,
    )


def _list_ends(vacuum: RunningVacuum, version: int) -> list[str]:
    """Return the statement that lets a vacuum begin again at a new pace. Before PostgreSQL 16 it keeps its pace."""
    if version >= 160_000:
        return []
    stop = f"SELECT pg_catalog.pg_terminate_backend({vacuum.pid})"
    return [f"a running vacuum keeps its pace, autovacuum begins it again: {stop}"]
