# SPDX-License-Identifier: Apache-2.0
"""The statements that a diagnosis sends to PostgreSQL. All of them only read, and the server may refuse each of them.

All names and operators are qualified. Otherwise the search_path of a session could choose other objects.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from powerprof.database import sql
from powerprof.database.base import StatementError
from powerprof.diagnosis.evidence import OpenTransaction
from powerprof.diagnosis.postgres_evidence import (
    SETTINGS,
    DatabaseCounts,
    PostgresFacts,
    ReplicationSlot,
    RunningVacuum,
    Session,
    Subscription,
)
from powerprof.model.statements import normalise
from powerprof.system.foreign_text import printable

if TYPE_CHECKING:
    from powerprof.database.base import Sql

_MOST_NAME = 63
# A transaction is open while its client sends nothing. Younger ones are normal.
LEAST_OPEN_S = 30.0
_SETTINGS = "SELECT s.name, s.setting FROM pg_catalog.pg_settings s LIMIT 1000"
_SERVER = (
    "SELECT pg_catalog.current_setting('server_version_num'), pg_catalog.pg_is_in_recovery(),"
    " pg_catalog.pg_backend_pid(), pg_catalog.date_part('epoch', pg_catalog.clock_timestamp())"
)
_WAL = "SELECT pg_catalog.pg_wal_lsn_diff(pg_catalog.pg_current_wal_lsn(), '0/0')"
_WRITTEN = "SELECT w.wal_bytes FROM pg_catalog.pg_stat_wal w"
# Release 17 moved the counters of checkpoints.
_CHECKPOINTS = {
    17: "SELECT c.num_timed, c.num_requested FROM pg_catalog.pg_stat_checkpointer c",
    0: "SELECT b.checkpoints_timed, b.checkpoints_req FROM pg_catalog.pg_stat_bgwriter b",
}
_ARCHIVER = (
    "SELECT a.archived_count, a.failed_count, pg_catalog.date_part('epoch', a.last_failed_time),"
    " pg_catalog.date_part('epoch', a.last_archived_time) FROM pg_catalog.pg_stat_archiver a"
)
_DATABASES = {
    14: "SELECT d.datname, d.temp_files, d.temp_bytes, d.sessions FROM pg_catalog.pg_stat_database d LIMIT 1000",
    0: "SELECT d.datname, d.temp_files, d.temp_bytes, NULL FROM pg_catalog.pg_stat_database d LIMIT 1000",
}
# The oldest transactions come first, and sessions without one last.
_SESSIONS = (
    "SELECT a.pid, a.backend_type, a.usename, pg_catalog.host(a.client_addr), a.datname, a.application_name, a.state,"
    " pg_catalog.date_part('epoch', a.xact_start), pg_catalog.date_part('epoch', a.state_change),"
    " a.backend_xid, a.backend_xmin, pg_catalog.left(a.query, 200)"
    " FROM pg_catalog.pg_stat_activity a ORDER BY a.xact_start LIMIT 300"
)
_SLOTS = (
    "SELECT s.slot_name, s.slot_type, s.active, s.temporary, pg_catalog.pg_wal_lsn_diff(s.restart_lsn, '0/0'),"
    " s.wal_status FROM pg_catalog.pg_replication_slots s LIMIT 1000"
)
_SPILLS = "SELECT s.slot_name, s.spill_bytes FROM pg_catalog.pg_stat_replication_slots s LIMIT 1000"
_VACUUMS = (
    "SELECT p.pid, p.phase, p.heap_blks_total, p.heap_blks_scanned FROM pg_catalog.pg_stat_progress_vacuum p LIMIT 1000"
)
_SENDERS = "SELECT pg_catalog.count(r.pid) FROM pg_catalog.pg_stat_replication r"
_SUBSCRIPTIONS = {
    15: "SELECT s.oid, s.subname, s.subenabled, c.apply_error_count OPERATOR(pg_catalog.+) c.sync_error_count"
    " FROM pg_catalog.pg_subscription s LEFT JOIN pg_catalog.pg_stat_subscription_stats c"
    " ON c.subid OPERATOR(pg_catalog.=) s.oid LIMIT 1000",
    0: "SELECT s.oid, s.subname, s.subenabled, NULL FROM pg_catalog.pg_subscription s LIMIT 1000",
}
_WORKERS = "SELECT s.subid, s.pid FROM pg_catalog.pg_stat_subscription s LIMIT 1000"
# The title that autovacuum gives its work (autovacuum.c, autovac_report_activity).
_TABLE = re.compile(r"autovacuum: (?:VACUUM ANALYZE|VACUUM|ANALYZE) (.{1,127}?)(?: \(to prevent wraparound\))?$")


def read_settings(connection: Sql) -> dict[str, str]:
    """Return the settings of the rules, in the units of `SETTINGS`. Raise StatementError."""
    rows = sql.fetch_rows(connection, _SETTINGS, columns=2)
    return {str(name): str(value)[:_MOST_NAME] for name, value in rows if name in SETTINGS and value is not None}


def read_facts(connection: Sql, refused: dict[str, str]) -> PostgresFacts:
    """Return the facts. Parts that the server refuses are empty, with the reason in `refused`. Raise StatementError."""
    ((number, standby, own_pid, now),) = sql.fetch_rows(connection, _SERVER, columns=4)
    version, is_standby, now_s = sql.parse_count(number) or 0, standby == "t", sql.parse_number(now) or 0.0
    reader = _Reader(connection, version // 10_000, refused)
    wal = [] if is_standby else reader.fetch("the position of the WAL", _WAL, 1)
    timed, requested = _first(reader.fetch("checkpoints", _choose(_CHECKPOINTS, version), 2), 2)
    archived, failed, failed_at, archived_at = _first(reader.fetch("the archiver", _ARCHIVER, 4), 4)
    spilled = {str(name): sql.parse_count(count) for name, count in reader.fetch_since(14, "decoding", _SPILLS, 2)}
    # Without the unused ends of files that are closed early.
    written = _first_count(reader.fetch_since(14, "written WAL", _WRITTEN, 1))
    counters = {"timed": timed, "requested": requested, "archived": archived, "failed": failed, "written": written}
    sessions = reader.fetch("the sessions", _SESSIONS, 12)
    others = [row for row in sessions if sql.parse_count(row[0]) != sql.parse_count(own_pid)]
    return PostgresFacts(
        version=version,
        is_standby=is_standby,
        wal_bytes=_first_count(wal),
        counters={name: count for name, value in counters.items() if (count := sql.parse_count(value)) is not None},
        failed_s=_compute_age_s(failed_at, now_s),
        archived_s=_compute_age_s(archived_at, now_s),
        databases=[
            DatabaseCounts(
                name=_shorten(name),
                files_count=sql.parse_count(files) or 0,
                file_bytes=sql.parse_count(size) or 0,
                sessions_count=sql.parse_count(made),
            )
            for name, files, size, made in reader.fetch("the databases", _choose(_DATABASES, version), 4)
            if name is not None
        ],
        sessions=[_parse_session(row, now_s) for row in others],
        slots=[_parse_slot(row, spilled) for row in reader.fetch("the replication slots", _SLOTS, 6)],
        vacuums=[
            RunningVacuum(pid=pid, phase=_shorten(phase), pages_count=total, scanned_count=scanned)
            for number, phase, pages, read in reader.fetch("running vacuums", _VACUUMS, 4)
            if (pid := sql.parse_count(number)) is not None
            and (total := sql.parse_count(pages)) is not None
            and (scanned := sql.parse_count(read)) is not None
        ],
        senders_count=_first_count(reader.fetch("the walsenders", _SENDERS, 1)) or 0,
        # Without the role pg_monitor (pg_read_all_stats) the state of other accounts' sessions is NULL.
        hidden_count=sum(row[1] is None and row[4] is not None and row[6] is None for row in others),
    )


class _Reader:
    """The statements of one reading."""

    def __init__(self, connection: Sql, release: int, refused: dict[str, str]) -> None:
        self._connection, self._release, self._refused = connection, release, refused

    def fetch(self, subject: str, statement: str, columns: int) -> Sequence[Sequence[Any]]:
        """Return the rows; none and a reason if the server refuses. Raise StatementError for a lost connection."""
        try:
            return sql.fetch_rows(self._connection, statement, columns=columns)
        except StatementError as error:
            if not error.number:
                raise
            self._refused[subject] = error.message
            return []

    def fetch_since(self, release: int, subject: str, statement: str, columns: int) -> Sequence[Sequence[Any]]:
        """Return the rows of a view that exists from a release on."""
        return self.fetch(subject, statement, columns) if self._release >= release else []


def _choose(statements: Mapping[int, str], version: int) -> str:
    """Return the statement for a release: the one of the newest release that is not newer."""
    return statements[max(release for release in statements if release <= version // 10_000)]


def _first(rows: Sequence[Sequence[Any]], columns: int) -> Sequence[Any]:
    return rows[0] if rows else [None] * columns


def _first_count(rows: Sequence[Sequence[Any]]) -> int | None:
    return sql.parse_count(rows[0][0]) if rows else None


def _compute_age_s(epoch_s: Any, now_s: float) -> float | None:
    moment_s = sql.parse_number(epoch_s)
    return None if moment_s is None else max(0.0, now_s - moment_s)


def _shorten(value: Any) -> str:
    return printable(str(value or ""))[:_MOST_NAME]


def _parse_session(row: Sequence[Any], now_s: float) -> Session:
    pid, kind, user, host, database, application, state, began, changed, xid, xmin, text = row
    table = _TABLE.match(str(text or "")) if kind == "autovacuum worker" else None
    is_client = kind == "client backend"
    return Session(
        pid=sql.parse_count(pid) or 0,
        kind=_shorten(kind),
        user=_shorten(user),
        host=_shorten(host),
        database=_shorten(database),
        application=_shorten(application),
        state=None if state is None else _shorten(state),
        transaction_s=_compute_age_s(began, now_s),
        state_s=_compute_age_s(changed, now_s),
        holds_versions=xid is not None or xmin is not None,
        statement=normalise(str(text or ""), "postgresql", is_whole=False) if is_client else normalise(""),
        table=None if table is None else printable(table[1]),
    )


def _parse_slot(row: Sequence[Any], spilled: Mapping[str, int | None]) -> ReplicationSlot:
    name, kind, active, temporary, position, status = row
    return ReplicationSlot(
        name=_shorten(name),
        kind=_shorten(kind),
        active=active == "t",
        temporary=temporary == "t",
        restart_bytes=sql.parse_count(position),
        wal_status=None if status is None else _shorten(status),
        spilled_bytes=spilled.get(str(name)),
    )


def read_subscriptions(connection: Sql, version: int, refused: dict[str, str]) -> list[Subscription] | None:
    """Return the logical subscriptions; None and a reason in `refused` if the server refuses. Raise StatementError."""
    reader = _Reader(connection, version // 10_000, refused)
    rows = reader.fetch("its subscriptions", _choose(_SUBSCRIPTIONS, version), 4)
    if "its subscriptions" in refused:
        return None
    workers = reader.fetch("the workers of subscriptions", _WORKERS, 2) if rows else []
    working = {sql.parse_count(number) for number, pid in workers if pid is not None}
    return [
        Subscription(
            oid=oid,
            name=_shorten(name),
            errors_count=sql.parse_count(errors),
            is_enabled=enabled == "t",
            has_worker=None if "the workers of subscriptions" in refused else oid in working,
        )
        for number, name, enabled, errors in rows
        if (oid := sql.parse_count(number)) is not None
    ]


def list_open_transactions(facts: PostgresFacts) -> list[OpenTransaction]:
    """Return the transactions whose clients have sent nothing for `LEAST_OPEN_S` seconds, the oldest first."""
    idle = [
        session
        for session in facts.sessions
        if (session.state or "").startswith("idle in transaction")
        and session.transaction_s is not None
        and (session.state_s or 0.0) >= LEAST_OPEN_S
    ]
    return [
        OpenTransaction(
            connection=session.pid,
            account=session.account,
            open_s=session.transaction_s or 0.0,
            holds_versions=session.holds_versions,
            application=session.application,
            statement=session.statement,
        )
        for session in sorted(idle, key=lambda session: -(session.transaction_s or 0.0))[:20]
    ]


def merge_transactions(by_sql: Sequence[OpenTransaction], by_title: Sequence[OpenTransaction]) -> list[OpenTransaction]:
    """Return the transactions of both sources, each once. The server knows more about them than their titles."""
    known = {transaction.connection for transaction in by_sql}
    return [*by_sql, *(transaction for transaction in by_title if transaction.connection not in known)]


def describe_application(facts: PostgresFacts | None, account: str) -> str:
    """Return the names that an account's clients gave themselves, with a process; empty if none is known."""
    named = {
        session.application: session.pid
        for session in reversed(facts.sessions if facts is not None else [])
        if session.account == account and session.application not in ("", "powerprof")
    }
    return ", ".join(f"{name} (process {pid})" for name, pid in list(named.items())[-3:])
