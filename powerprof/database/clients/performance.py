# SPDX-License-Identifier: Apache-2.0
"""What a server tells of the statements that it executes: performance_schema and its list of processes, only read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from powerprof.database.clients import sql
from powerprof.database.clients.base import Login, StatementError
from powerprof.database.clients.wire import NO_LOGIN_TRIGGERS
from powerprof.system.errors import PowerprofError
from powerprof.system.files import printable

if TYPE_CHECKING:
    from powerprof.database.clients.base import Sql


# What PostgreSQL has counted of statements, where pg_stat_statements is loaded: only read.

_STATSTATEMENTS_MOST_ROWS, _MOST_TEXT, _STATSTATEMENTS_MOST_NAME = 20_000, 65_536, 128
_MOST_DATABASES = 4
_FIRST = "postgres"
# Every name and operator is qualified: otherwise the search_path of the database decides whose object it is.
_OF_SUPERUSERS = (
    "SELECT d.datname FROM pg_catalog.pg_database d"
    " JOIN pg_catalog.pg_roles r ON r.oid OPERATOR(pg_catalog.=) d.datdba WHERE r.rolsuper"
)
_EVENT_TRIGGERS = (
    "SELECT pg_catalog.current_setting('event_triggers', true), pg_catalog.current_setting('is_superuser')"
)
# The view itself must be the extension's and a superuser's: its schema may belong to another account.
_WHERE = (
    "SELECT n.nspname FROM pg_catalog.pg_extension e"
    " JOIN pg_catalog.pg_depend d ON d.refobjid OPERATOR(pg_catalog.=) e.oid"
    " JOIN pg_catalog.pg_class c ON c.oid OPERATOR(pg_catalog.=) d.objid"
    " JOIN pg_catalog.pg_namespace n ON n.oid OPERATOR(pg_catalog.=) c.relnamespace"
    " JOIN pg_catalog.pg_roles r ON r.oid OPERATOR(pg_catalog.=) c.relowner"
    " WHERE e.extname OPERATOR(pg_catalog.=) 'pg_stat_statements'"
    " AND c.relname OPERATOR(pg_catalog.=) 'pg_stat_statements' AND c.relkind OPERATOR(pg_catalog.=) 'v'"
    " AND d.deptype OPERATOR(pg_catalog.=) 'e' AND r.rolsuper"
    " AND d.classid OPERATOR(pg_catalog.=) 'pg_catalog.pg_class'::pg_catalog.regclass"
    " AND d.refclassid OPERATOR(pg_catalog.=) 'pg_catalog.pg_extension'::pg_catalog.regclass"
)
_COUNTED = (
    "SELECT d.datname, pg_catalog.left(s.query, {text}), s.queryid, s.calls, s.rows"
    " FROM {schema}.pg_stat_statements s"
    " JOIN pg_catalog.pg_database d ON d.oid OPERATOR(pg_catalog.=) s.dbid ORDER BY s.calls DESC LIMIT {rows}"
)


class CountedStatement(NamedTuple):
    """Of one statement, by all users: how often, rows sent or changed, and the server's number of it."""

    calls: int
    rows: int
    query_id: int | None


Statistics = dict[tuple[str | None, str], CountedStatement]
"""By database and text with parameters for values."""


def find_statistics_database(login: Login, databases: Iterable[str]) -> Login | None:
    """Return the login at the first of `postgres` and these databases that has the extension; None without one.

    Only databases of superusers are tried: the owner of a database decides which code a session in it meets.
    """
    try:
        with sql.connect(login.within(_FIRST), limits=sql.WORD_LIMITS) as connection:
            trusted = {str(name) for (name,) in sql.fetch_rows(connection, _OF_SUPERUSERS, columns=1)}
            ((triggers, is_superuser),) = sql.fetch_rows(connection, _EVENT_TRIGGERS, columns=2)
            if (triggers, is_superuser) == ("on", "on"):
                login = login.with_session_options(NO_LOGIN_TRIGGERS)
            if _FIRST in trusted and _schema(connection) is not None:
                return login.within(_FIRST)
    except PowerprofError:
        return None
    for database in sorted(trusted & set(databases) - {_FIRST})[: _MOST_DATABASES - 1]:
        try:
            with sql.connect(login.within(database), limits=sql.WORD_LIMITS) as connection:
                if _schema(connection) is not None:
                    return login.within(database)
        except PowerprofError:
            continue
    return None


def read_statistics(connection: Sql) -> Statistics:
    """What has been counted since it was reset; nothing where the server refuses it. Raises StatementError where the
    connection is lost."""
    found: Statistics = {}
    schema = _schema(connection)
    if schema is None:
        return found
    asked = _COUNTED.format(
        schema='"' + schema.replace('"', '""') + '"', text=_MOST_TEXT, rows=_STATSTATEMENTS_MOST_ROWS
    )
    try:
        rows = sql.fetch_rows(connection, asked, columns=5)
    except StatementError as error:
        if not error.number:
            raise
        return found  # it is there and not loaded, say
    for database, text, number, calls, sent in rows:
        name = (printable(str(database)[:_STATSTATEMENTS_MOST_NAME]), str(text or ""))
        old = found.get(name, CountedStatement(0, 0, None))
        query_id = int(number) if number and str(number).lstrip("-").isdigit() else old.query_id
        found[name] = CountedStatement(
            old.calls + (sql.parse_count(calls) or 0), old.rows + (sql.parse_count(sent) or 0), query_id
        )
    return found


def subtract_statistics(before: Statistics, after: Statistics) -> Statistics:
    """What was counted between two looks: those that were executed."""
    moved = {}
    for name, now in after.items():
        then = before.get(name, CountedStatement(0, 0, None))
        if now.calls < then.calls:  # it was reset meanwhile
            then = CountedStatement(0, 0, None)
        if now.calls > then.calls:
            moved[name] = CountedStatement(now.calls - then.calls, now.rows - then.rows, now.query_id)
    return moved


def _schema(connection: Sql) -> str | None:
    found = sql.fetch_rows(connection, _WHERE, columns=1)
    return str(found[0][0]) if found else None


MOST_TEXT = 4096
_MOST_NAME = 128
_MOST_ROWS = 20_000
# Our own connection asks in the middle of its statement.
_THREADS = (
    "SELECT THREAD_OS_ID, NAME, PROCESSLIST_COMMAND, PROCESSLIST_DB, {info}, PROCESSLIST_ID,"
    " PROCESSLIST_USER, PROCESSLIST_HOST"
    " FROM performance_schema.threads WHERE NOT PROCESSLIST_ID <=> CONNECTION_ID()"
)
_INFO = f"LEFT(PROCESSLIST_INFO, {MOST_TEXT})"
# MariaDB's own list has the kernel's number of each thread, without performance_schema too.
_PROCESSES = (
    f"SELECT TID, COMMAND, DB, LEFT(INFO, {MOST_TEXT}), USER, HOST FROM information_schema.PROCESSLIST"  # noqa: S608
    " WHERE ID <> CONNECTION_ID()"
)
_DIGESTS = (
    "SELECT SCHEMA_NAME, DIGEST_TEXT, COUNT_STAR, SUM_ROWS_EXAMINED, SUM_ROWS_SENT, SUM_ROWS_AFFECTED,"
    " SUM_CREATED_TMP_TABLES, SUM_CREATED_TMP_DISK_TABLES, SUM_SELECT_SCAN, SUM_ERRORS "
    "FROM performance_schema.events_statements_summary_by_digest"
)
_PREPARED = (
    f"SELECT t.THREAD_OS_ID, p.STATEMENT_ID, LEFT(p.SQL_TEXT, {MOST_TEXT})"  # noqa: S608
    " FROM performance_schema.prepared_statements_instances p"
    f" JOIN performance_schema.threads t ON t.THREAD_ID = p.OWNER_THREAD_ID LIMIT {_MOST_ROWS}"
)


def list_own_statements() -> tuple[str, ...]:
    """What a look asks, as a server has it: nobody else asks so."""
    threads = (_THREADS.format(info=info) for info in (_INFO, "NULL"))
    return (*threads, _PROCESSES, f"{_DIGESTS} LIMIT {_MOST_ROWS}", _PREPARED, sql.THREADS_QUERY)


DIGEST_COUNTERS = ("calls", "examined", "sent", "affected", "tmp", "tmp_disk", "scans", "errors")
"""What performance_schema counts of a digest."""


class Account(NamedTuple):
    """Who is connected, and from where, without the port; None: not known, or by no network."""

    user: str
    host: str | None


@dataclass(frozen=True)
class ServerReport:
    """What the server reported. By kernel thread id: names, schemas, and the statements that ran as the window began.

    `prepared`: (thread, the server's number) → text; `connections`: thread → the server's number of its
    connection. `digests`: (schema, digest's text) → what it has counted since it began, in the order of `COUNTED`.
    `statistics`: the same of PostgreSQL's pg_stat_statements. `accounts`: thread → user and host of its client.
    """

    threads: Mapping[int, str] = field(default_factory=dict)
    schemas: Mapping[int, str] = field(default_factory=dict)
    running: Mapping[int, str] = field(default_factory=dict)
    prepared: Mapping[tuple[int, int], str] = field(default_factory=dict)
    digests: Mapping[tuple[str | None, str], tuple[int, ...]] = field(default_factory=dict)
    has_digests: bool = False
    connections: Mapping[int, int] = field(default_factory=dict)
    statistics: Statistics = field(default_factory=dict)
    accounts: Mapping[int, Account] = field(default_factory=dict)


def read_report(connection: Sql, *, running: bool) -> ServerReport:
    """Ask once. What a server refuses or lacks is empty; `running`: also which statements run now.

    Raises StatementError where the connection is lost.
    """
    threads: dict[int, str] = {}
    schemas: dict[int, str] = {}
    open_now: dict[int, str] = {}
    connections: dict[int, int] = {}
    accounts: dict[int, Account] = {}
    asked = _THREADS.format(info=_INFO if running else "NULL")
    for tid, name, command, schema, info, own, *account in _rows(connection, asked, 8):
        number = sql.parse_count(tid)
        if not number:
            continue
        feeds = " (Binlog Dump)" if str(command or "").startswith("Binlog Dump") else ""
        if client := sql.parse_count(own):
            connections[number] = client
            _note_account(accounts, number, *account)
        threads[number] = printable(str(name)[:_MOST_NAME]) + feeds
        _note(schemas, open_now, number, schema, info if command == "Query" else None)
    if not threads:
        for tid, command, schema, info, *account in _rows(connection, _PROCESSES, 6):
            number = sql.parse_count(tid)
            if number:
                _note_account(accounts, number, *account)
                _note(schemas, open_now, number, schema, info if command == "Query" and running else None)
    digests = _digests(connection)
    prepared = _prepared(connection)
    return ServerReport(threads, schemas, open_now, prepared, digests, bool(digests), connections, accounts=accounts)


def merge_reports(before: ServerReport, after: ServerReport) -> ServerReport:
    """Two looks as one: threads come and go. The digests are those of `after` less those of `before`."""
    moved = {}
    for name, counts in after.digests.items():
        then = before.digests.get(name, (0,) * len(counts))
        # Below what it was: the table was emptied meanwhile.
        then = then if counts[0] >= then[0] else (0,) * len(counts)
        delta = tuple(now - was for now, was in zip(counts, then, strict=True))
        if delta[0]:
            moved[name] = delta
    # A thread that served another client meanwhile had that one's statements by the same numbers.
    same = {tid for tid, client in before.connections.items() if after.connections.get(tid) == client}
    # One that served two accounts is nobody's.
    accounts = {
        tid: account
        for tid, account in {**before.accounts, **after.accounts}.items()
        if before.accounts.get(tid, account) == account
    }
    return ServerReport(
        threads={**before.threads, **after.threads},
        schemas={**before.schemas, **after.schemas},
        running=before.running,
        prepared={where: text for where, text in {**before.prepared, **after.prepared}.items() if where[0] in same},
        digests=moved,
        has_digests=before.has_digests or after.has_digests,
        connections={**before.connections, **after.connections},
        statistics=subtract_statistics(before.statistics, after.statistics),
        accounts=accounts,
    )


def _note_account(accounts: dict[int, Account], tid: int, user: Any = None, host: Any = None) -> None:
    if user:
        # MariaDB's list has the client's port.
        place = str(host or "")[:_MOST_NAME]
        name, colon, port = place.rpartition(":")
        place = name if colon and port.isdigit() and ":" not in name.strip("[]") else place
        accounts[tid] = Account(printable(str(user)[:_MOST_NAME]), printable(place) or None)


def _note(schemas: dict[int, str], running: dict[int, str], tid: int, schema: Any, info: Any) -> None:
    if schema:
        schemas[tid] = printable(str(schema)[:_MOST_NAME])
    if info:
        running[tid] = _text(info)


def _text(value: Any) -> str:
    return (value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value))[:MOST_TEXT]


def _rows(connection: Sql, statement: str, columns: int) -> list[sql.Row]:
    """Rows; none where the server refuses. Raises StatementError where the connection is lost."""
    try:
        return sql.fetch_rows(connection, statement, columns=columns)
    except StatementError as error:
        if error.number >= 2000 or error.number == 0:
            raise
        return []


def _prepared(connection: Sql) -> dict[tuple[int, int], str]:
    statements: dict[tuple[int, int], str] = {}
    disputed = set()
    for tid, number, text in _rows(connection, _PREPARED, 3):
        thread, statement = sql.parse_count(tid), sql.parse_count(number)
        if not (thread and statement and text):
            continue
        if statements.setdefault((thread, statement), _text(text)) != _text(text):
            disputed.add((thread, statement))  # a pool's thread has several clients
    return {where: text for where, text in statements.items() if where not in disputed}


def _digests(connection: Sql) -> dict[tuple[str | None, str], tuple[int, ...]]:
    digests: dict[tuple[str | None, str], tuple[int, ...]] = {}
    for schema, text, *counts in _rows(connection, f"{_DIGESTS} LIMIT {_MOST_ROWS}", 2 + len(DIGEST_COUNTERS)):
        numbers = tuple(sql.parse_count(value) or 0 for value in counts)
        if text:
            name = (printable(str(schema)[:_MOST_NAME]) if schema else None, _text(text))
            old = digests.get(name, (0,) * len(numbers))
            digests[name] = tuple(was + now for was, now in zip(old, numbers, strict=True))
    return digests
