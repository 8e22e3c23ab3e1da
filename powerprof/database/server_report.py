# SPDX-License-Identifier: Apache-2.0
"""What MariaDB and MySQL report about statements and threads: performance_schema and the list of processes."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from powerprof.database import sql
from powerprof.database.base import StatementError
from powerprof.database.pg_stat_statements import Statistics, subtract_statistics
from powerprof.system.foreign_text import printable

if TYPE_CHECKING:
    from powerprof.database.base import Sql


MOST_TEXT = 4096
_MAX_ROWS, _MAX_NAME = 20_000, 128
# powerprof's own connection is excluded: it is in the middle of this statement.
_THREADS = (
    "SELECT THREAD_OS_ID, NAME, PROCESSLIST_COMMAND, PROCESSLIST_DB, {info}, PROCESSLIST_ID,"
    " PROCESSLIST_USER, PROCESSLIST_HOST"
    " FROM performance_schema.threads WHERE NOT PROCESSLIST_ID <=> CONNECTION_ID()"
)
_INFO = f"LEFT(PROCESSLIST_INFO, {MOST_TEXT})"
# MariaDB's list of processes has kernel thread ids even without performance_schema.
_PROCESSES = (
    f"SELECT TID, COMMAND, DB, LEFT(INFO, {MOST_TEXT}), USER, HOST FROM information_schema.PROCESSLIST"  # noqa: S608
    " WHERE ID <> CONNECTION_ID()"
)
# The list of processes has the present statement of a procedure instead of its CALL.
_CALLS = (
    f"SELECT t.THREAD_OS_ID, LEFT(s.SQL_TEXT, {MOST_TEXT})"  # noqa: S608
    " FROM performance_schema.events_statements_current s"
    " JOIN performance_schema.threads t ON t.THREAD_ID = s.THREAD_ID"
    f" WHERE s.EVENT_NAME = 'statement/sql/call_procedure' AND s.END_EVENT_ID IS NULL LIMIT {_MAX_ROWS}"
)
_EXECUTED_CALLS = "SHOW GLOBAL STATUS LIKE 'Com_call_procedure'"
_DIGESTS = (
    "SELECT SCHEMA_NAME, DIGEST_TEXT, COUNT_STAR, SUM_ROWS_EXAMINED, SUM_ROWS_SENT, SUM_ROWS_AFFECTED,"
    " SUM_CREATED_TMP_TABLES, SUM_CREATED_TMP_DISK_TABLES, SUM_SELECT_SCAN, SUM_ERRORS "
    "FROM performance_schema.events_statements_summary_by_digest"
)
_PREPARED = (
    f"SELECT t.THREAD_OS_ID, p.STATEMENT_ID, LEFT(p.SQL_TEXT, {MOST_TEXT})"  # noqa: S608
    " FROM performance_schema.prepared_statements_instances p"
    f" JOIN performance_schema.threads t ON t.THREAD_ID = p.OWNER_THREAD_ID LIMIT {_MAX_ROWS}"
)


_STATEMENTS = "SHOW GLOBAL STATUS LIKE 'Questions'"


def list_own_statements() -> tuple[str, ...]:
    """Return the statements of `read_report` as a server shows them."""
    threads = (_THREADS.format(info=info) for info in (_INFO, "NULL"))
    digests = f"{_DIGESTS} LIMIT {_MAX_ROWS}"
    return (*threads, _PROCESSES, digests, _PREPARED, _CALLS, _EXECUTED_CALLS, _STATEMENTS, sql.THREADS_QUERY)


DIGEST_COUNTERS = ("calls", "examined", "sent", "affected", "tmp", "tmp_disk", "scans", "errors")
"""Counters of performance_schema for a digest."""


class Account(NamedTuple):
    """The user and host of a client, without the port. None: unknown, or not a network connection."""

    user: str
    host: str | None


class ServerReport(msgspec.Struct, frozen=True):
    """A report of a server. Keys are kernel thread ids if not stated otherwise.

    Attributes:
        threads: Thread names.
        schemas: Current schemas.
        running: Statements that ran when the window began.
        prepared: Texts by thread and the server's number of the prepared statement.
        digests: Counters since the server's start by schema and digest text, in the order of `DIGEST_COUNTERS`.
        connections: The server's numbers of connections.
        statistics: PostgreSQL's counters of pg_stat_statements.
        accounts: Users and hosts of clients.
        may_hide_calls: Whether the server executed a CALL, so that a running statement can belong to one.
        lost_digests_count: Calls that performance_schema had no room for: it counts them in one row without a text.
        statements_count: The server's own count of clients' statements since its start, read at `counted_at_s`
            (monotonic clock); None if it is unknown.
        statements_hz: The growth of this count per second; None if it is unknown.
    """

    threads: Mapping[int, str] = msgspec.field(default_factory=dict)
    schemas: Mapping[int, str] = msgspec.field(default_factory=dict)
    running: Mapping[int, str] = msgspec.field(default_factory=dict)
    prepared: Mapping[tuple[int, int], str] = msgspec.field(default_factory=dict)
    digests: Mapping[tuple[str | None, str], tuple[int, ...]] = msgspec.field(default_factory=dict)
    has_digests: bool = False
    connections: Mapping[int, int] = msgspec.field(default_factory=dict)
    statistics: Statistics = msgspec.field(default_factory=dict)
    accounts: Mapping[int, Account] = msgspec.field(default_factory=dict)
    may_hide_calls: bool = False
    lost_digests_count: int = 0
    statements_count: int | None = None
    counted_at_s: float = 0.0
    statements_hz: float | None = None


def read_report(connection: Sql, *, running: bool) -> ServerReport:
    """Query a server once; `running` includes the running statements. Refused or missing parts are empty.

    Raises StatementError for a lost connection.
    """
    threads: dict[int, str] = {}
    schemas: dict[int, str] = {}
    running_texts: dict[int, str] = {}
    connections: dict[int, int] = {}
    accounts: dict[int, Account] = {}
    query = _THREADS.format(info=_INFO if running else "NULL")
    for tid, name, command, schema, info, connection_id, *account in _fetch_allowed(connection, query, 8):
        number = sql.parse_count(tid)
        if not number:
            continue
        if client := sql.parse_count(connection_id):
            connections[number] = client
            _note_account(accounts, number, *account)
        threads[number] = sql.mark_feed(printable(str(name)[:_MAX_NAME]), command)
        _note_work(schemas, running_texts, number, schema, info if command == "Query" else None)
    if not threads:
        for tid, command, schema, info, *account in _fetch_allowed(connection, _PROCESSES, 6):
            number = sql.parse_count(tid)
            if number:
                _note_account(accounts, number, *account, has_port=True)
                _note_work(schemas, running_texts, number, schema, info if command == "Query" and running else None)
    may_hide_calls = False
    if running and running_texts:
        may_hide_calls = any(sql.parse_count(count) for _, count in _fetch_allowed(connection, _EXECUTED_CALLS, 2))
        for tid, call in _fetch_allowed(connection, _CALLS, 2):
            if (number := sql.parse_count(tid)) in running_texts and call:
                running_texts[number] = _text(call)
    digests, lost_count = _read_digests(connection)
    prepared = _read_prepared(connection)
    counts = [sql.parse_count(value) for _, value in _fetch_allowed(connection, _STATEMENTS, 2)]
    return ServerReport(
        threads,
        schemas,
        running_texts,
        prepared,
        digests,
        bool(digests),
        connections,
        accounts=accounts,
        may_hide_calls=may_hide_calls,
        lost_digests_count=lost_count,
        statements_count=counts[0] if counts else None,
        counted_at_s=time.monotonic(),
    )


def merge_reports(before: ServerReport, after: ServerReport) -> ServerReport:
    """Return two reports as one. Digests and statistics are the differences."""
    moved = {}
    for name, counts in after.digests.items():
        then = before.digests.get(name, (0,) * len(counts))
        # The table was emptied in between if a counter has decreased.
        then = then if counts[0] >= then[0] else (0,) * len(counts)
        delta = tuple(now - was for now, was in zip(counts, then, strict=True))
        if delta[0]:
            moved[name] = delta
    # Another client of the same thread used the same numbers for other prepared statements.
    same = {tid for tid, client in before.connections.items() if after.connections.get(tid) == client}
    # A thread that served two accounts is assigned to none.
    accounts = {
        tid: account
        for tid, account in {**before.accounts, **after.accounts}.items()
        if before.accounts.get(tid, account) == account
    }
    return ServerReport(
        threads={**before.threads, **after.threads},
        schemas={**before.schemas, **after.schemas},
        running=before.running,
        may_hide_calls=before.may_hide_calls,
        prepared={where: text for where, text in {**before.prepared, **after.prepared}.items() if where[0] in same},
        digests=moved,
        has_digests=before.has_digests or after.has_digests,
        connections={**before.connections, **after.connections},
        statistics=subtract_statistics(before.statistics, after.statistics),
        accounts=accounts,
        # Below the earlier count, the table was emptied in between.
        lost_digests_count=after.lost_digests_count
        - (before.lost_digests_count if before.lost_digests_count <= after.lost_digests_count else 0),
        statements_hz=_compute_rate(before, after),
    )


def _compute_rate(before: ServerReport, after: ServerReport) -> float | None:
    """Return the server's statements per second between two reports; None if a count is unknown or decreased."""
    first, last, passed_s = before.statements_count, after.statements_count, after.counted_at_s - before.counted_at_s
    if first is None or last is None or last < first or passed_s <= 0:
        return None
    return (last - first) / passed_s


def _note_account(
    accounts: dict[int, Account], tid: int, user: Any = None, host: Any = None, *, has_port: bool = False
) -> None:
    """Note the client of a thread. MariaDB's list of processes appends the port, to IPv6 addresses without brackets."""
    if user:
        place = str(host or "")[:_MAX_NAME]
        name, colon, port = place.rpartition(":")
        place = name if colon and port.isdigit() and (has_port or ":" not in name) else place
        accounts[tid] = Account(printable(str(user)[:_MAX_NAME]), printable(place) or None)


def _note_work(schemas: dict[int, str], running: dict[int, str], tid: int, schema: Any, info: Any) -> None:
    if schema:
        schemas[tid] = printable(str(schema)[:_MAX_NAME])
    if info:
        running[tid] = _text(info)


def _text(value: Any) -> str:
    return (value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value))[:MOST_TEXT]


def _fetch_allowed(connection: Sql, statement: str, columns: int) -> list[sql.Row]:
    """Return rows, or an empty list if the server refuses. Raise StatementError for a lost connection."""
    try:
        return sql.fetch_rows(connection, statement, columns=columns)
    except StatementError as error:
        if error.number >= 2000 or error.number == 0:
            raise
        return []


def _read_prepared(connection: Sql) -> dict[tuple[int, int], str]:
    statements: dict[tuple[int, int], str] = {}
    disputed = set()
    for tid, number, text in _fetch_allowed(connection, _PREPARED, 3):
        thread, statement = sql.parse_count(tid), sql.parse_count(number)
        if not (thread and statement and text):
            continue
        if statements.setdefault((thread, statement), _text(text)) != _text(text):
            disputed.add((thread, statement))  # A thread of a pool has several clients.
    return {where: text for where, text in statements.items() if where not in disputed}


def _read_digests(connection: Sql) -> tuple[dict[tuple[str | None, str], tuple[int, ...]], int]:
    """Return the counters by schema and text, and the calls in the row of digests that had no room."""
    digests: dict[tuple[str | None, str], tuple[int, ...]] = {}
    lost_count = 0
    for schema, text, *counts in _fetch_allowed(connection, f"{_DIGESTS} LIMIT {_MAX_ROWS}", 2 + len(DIGEST_COUNTERS)):
        numbers = tuple(sql.parse_count(value) or 0 for value in counts)
        if text:
            name = (printable(str(schema)[:_MAX_NAME]) if schema else None, _text(text))
            old = digests.get(name, (0,) * len(numbers))
            digests[name] = tuple(was + now for was, now in zip(old, numbers, strict=True))
        else:
            lost_count += numbers[0]
    return digests, lost_count
