# SPDX-License-Identifier: Apache-2.0
"""Records of the facts that PostgreSQL reports by SQL."""

from __future__ import annotations

import msgspec

from powerprof.model.statements import NO_TEXT, NormalText
from powerprof.system.foreign_text import whole

_KIB = 1024
SETTINGS = {
    **dict.fromkeys(("wal_writer_delay", "bgwriter_delay", "wal_sender_timeout", "wal_retrieve_retry_interval"), "ms"),
    **dict.fromkeys(("idle_in_transaction_session_timeout", "autovacuum_vacuum_cost_delay", "vacuum_cost_delay"), "ms"),
    **dict.fromkeys(
        ("autovacuum_naptime", "checkpoint_timeout", "wal_receiver_status_interval", "archive_timeout"), "s"
    ),
    **dict.fromkeys(("max_wal_size", "max_slot_wal_keep_size"), "MB"),
    **dict.fromkeys(("work_mem", "logical_decoding_work_mem"), "kB"),
    "min_parallel_table_scan_size": "8kB",
    **dict.fromkeys(
        (
            *("autovacuum", "autovacuum_vacuum_threshold", "autovacuum_vacuum_scale_factor", "archive_mode"),
            *("autovacuum_vacuum_cost_limit", "vacuum_cost_limit", "checkpoint_completion_target", "max_connections"),
            *("parallel_setup_cost", "max_logical_replication_workers", "jit", "jit_above_cost", "wal_level"),
        ),
        "",
    ),
}
"""The settings of the rules with the units of their values in pg_settings."""


class Session(msgspec.Struct, frozen=True, kw_only=True):
    """A process of PostgreSQL in pg_stat_activity.

    Attributes:
        state: `active`, `idle`, `idle in transaction` and others; None if this account may not read it.
        transaction_s: Seconds since its transaction began; None without one.
        state_s: Seconds since its state changed.
        holds_versions: Whether it has a snapshot or a transaction number, so that old row versions stay.
        table: The table that a worker of autovacuum works on.
    """

    pid: int
    kind: str
    user: str = ""
    host: str = ""
    database: str = ""
    application: str = ""
    state: str | None = None
    transaction_s: float | None = None
    state_s: float | None = None
    holds_versions: bool = False
    statement: NormalText = NO_TEXT
    table: str | None = None

    @property
    def account(self) -> str:
        """`user@host`, as in the titles of processes."""
        return f"{self.user or '(nobody)'}@{self.host or 'localhost'}"


class ReplicationSlot(msgspec.Struct, frozen=True, kw_only=True):
    """A replication slot.

    Attributes:
        restart_bytes: The WAL position from which it keeps WAL; None if it keeps none.
        wal_status: `reserved`, `extended`, `unreserved` or `lost` (from PostgreSQL 13).
        spilled_bytes: Changes that logical decoding wrote to disk (from PostgreSQL 14).
    """

    name: str
    kind: str
    active: bool
    temporary: bool = False
    restart_bytes: int | None = None
    wal_status: str | None = None
    spilled_bytes: int | None = None


class RunningVacuum(msgspec.Struct, frozen=True, kw_only=True):
    """A VACUUM at work, with the pages of its table."""

    pid: int
    phase: str
    pages_count: int
    scanned_count: int


class DatabaseCounts(msgspec.Struct, frozen=True, kw_only=True):
    """Counters of a database: its temporary files, their bytes, and its sessions (from PostgreSQL 14)."""

    name: str
    files_count: int
    file_bytes: int
    sessions_count: int | None = None


class Subscription(msgspec.Struct, frozen=True, kw_only=True):
    """A logical subscription of PostgreSQL.

    Attributes:
        oid: The number in the titles of its workers.
        errors_count: Errors of its workers since the last reset; None before PostgreSQL 15.
        has_worker: Whether it has a worker; None if this was not read.
    """

    oid: int
    name: str
    errors_count: int | None = None
    is_enabled: bool = True
    has_worker: bool | None = None


class PostgresFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The facts that PostgreSQL reports at one moment.

    Attributes:
        version: The number of its release, such as 150018.
        wal_bytes: The end of its WAL; None on a standby.
        counters: Counters of checkpoints and of the archiver, and the bytes of WAL (from PostgreSQL 14).
        senders_count: Its walsenders.
        failed_s: Seconds since the archiver last failed; None if it never did.
        archived_s: Seconds since it last archived a file.
        hidden_count: Sessions that this account may not see.
    """

    version: int
    is_standby: bool = False
    wal_bytes: int | None = None
    counters: dict[str, int] = {}
    failed_s: float | None = None
    archived_s: float | None = None
    databases: list[DatabaseCounts] = []
    sessions: list[Session] = []
    slots: list[ReplicationSlot] = []
    vacuums: list[RunningVacuum] = []
    senders_count: int = 0
    hidden_count: int = 0


def format_setting(name: str, value: str) -> str:
    """Return a value of pg_settings with its unit, such as `200 ms` or `1 GB`."""
    unit, count = SETTINGS.get(name, ""), whole(value)
    if unit == "8kB" and count is not None:
        unit, count = "kB", 8 * count
    if count is None:
        return value
    for larger in {"kB": ("MB", "GB"), "MB": ("GB",)}.get(unit, ()):
        if not count or count % _KIB:
            break
        unit, count = larger, count // _KIB
    return f"{count} {unit}".rstrip()
