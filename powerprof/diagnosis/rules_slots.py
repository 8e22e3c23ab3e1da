# SPDX-License-Identifier: Apache-2.0
"""Rules on replication slots of PostgreSQL: those that no standby reads, and decoding that writes to disk."""

from __future__ import annotations

from powerprof.diagnosis.evidence import Evidence, Finding
from powerprof.diagnosis.postgres_evidence import ReplicationSlot
from powerprof.diagnosis.wording import describe_settings, format_change, format_seconds
from powerprof.model.text import number

# A standby that restarts leaves its slot unread for a while, so the kept WAL decides: eight segments.
_KEPT_BYTES = 128 << 20
_LOST = ("unreserved", "lost")
_SPILLED_HZ, _MIB = 1 << 20, 1 << 20


def find_inactive_slots(evidence: Evidence) -> list[Finding]:
    """Find slots that no process reads in both readings, and that keep much WAL or have lost what they need."""
    before, after = evidence.postgres_before, evidence.postgres_after
    if before is None or after is None:
        return []
    unread = {slot.name for slot in before.slots if not slot.active}
    idle = [slot for slot in after.slots if not slot.active and not slot.temporary and slot.name in unread]
    return [
        _report_inactive(evidence, slot, kept)
        for slot in idle
        if (kept := _compute_kept_bytes(slot, after.wal_bytes)) >= _KEPT_BYTES or slot.wal_status in _LOST
    ]


def _compute_kept_bytes(slot: ReplicationSlot, wal_bytes: int | None) -> int:
    return 0 if slot.restart_bytes is None or wal_bytes is None else max(0, wal_bytes - slot.restart_bytes)


def _report_inactive(evidence: Evidence, slot: ReplicationSlot, kept: int) -> Finding:
    is_lost = slot.wal_status == "lost"
    keeps = "its WAL is lost" if is_lost else f"it keeps {number(kept / _MIB, 0)} MB of WAL in pg_wal"
    literal = "'" + slot.name.replace("'", "''") + "'"
    drops = f"SELECT pg_catalog.pg_drop_replication_slot({literal})"
    old_rows = " and old row versions of the catalogs" if slot.kind == "logical" else ""
    limit = describe_settings(evidence, "max_slot_wal_keep_size")
    return Finding(
        rule="inactive_slot",
        severity="fault",
        text=f"No standby or subscriber reads the {slot.kind} replication slot {slot.name}: {keeps}{old_rows}.",
        evidence=[
            "pg_replication_slots: active is false before and after the window"
            + (f", wal_status is {slot.wal_status}" if slot.wal_status else ""),
            *([limit.replace(" -1 MB", " -1: no limit")] if limit else []),
        ],
        remedy=[
            "start the standby or subscriber that owns it",
            f"if none will read it again: {drops}",
            *([] if is_lost else [f"to limit the kept WAL: {format_change('max_slot_wal_keep_size', '10GB')}"]),
        ],
    )


def find_spilled_decoding(evidence: Evidence) -> list[Finding]:
    """Find logical decoding that writes the changes of large transactions to disk (PostgreSQL 14)."""
    before, after = evidence.postgres_before, evidence.postgres_after
    if before is None or after is None or evidence.window_s <= 0:
        return []
    earlier = {slot.name: slot.spilled_bytes for slot in before.slots}
    findings = []
    for slot in after.slots:
        then = earlier.get(slot.name)
        spilled_hz = 0.0 if then is None else max(0, (slot.spilled_bytes or 0) - then) / evidence.window_s
        if spilled_hz >= _SPILLED_HZ:
            findings.append(_report_spill(evidence, slot, spilled_hz))
    return findings


def _report_spill(evidence: Evidence, slot: ReplicationSlot, spilled_hz: float) -> Finding:
    return Finding(
        rule="spilled_decoding",
        severity="fault",
        text=f"Logical decoding for the slot {slot.name} writes {number(spilled_hz / _MIB, 1)} MB/s of changes to disk "
        "and reads them again: transactions are larger than logical_decoding_work_mem.",
        evidence=[
            f"pg_stat_replication_slots: spill_bytes rose for {format_seconds(evidence.window_s)}",
            describe_settings(evidence, "logical_decoding_work_mem"),
        ],
        remedy=[
            f"more memory: {format_change('logical_decoding_work_mem', '256MB')}",
            "smaller transactions, or a subscription with streaming = on",
        ],
    )
