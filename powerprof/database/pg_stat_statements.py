# SPDX-License-Identifier: Apache-2.0
"""PostgreSQL's counters of statements: pg_stat_statements."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

from powerprof.database import sql
from powerprof.database.base import Login, StatementError
from powerprof.database.postgres_wire import NO_LOGIN_TRIGGERS
from powerprof.system.errors import PowerprofError
from powerprof.system.foreign_text import printable

if TYPE_CHECKING:
    from powerprof.database.base import Sql


_MAX_STATISTICS_TEXT = 65_536
_MAX_DATABASES = 4
_MAX_ROWS, _MAX_NAME = 20_000, 128
_FIRST_DATABASE = "postgres"
# All names and operators are qualified. Otherwise the search_path of the database could choose other objects.
_SUPERUSER_DATABASES = (
    "SELECT d.datname FROM pg_catalog.pg_database d"
    " JOIN pg_catalog.pg_roles r ON r.oid OPERATOR(pg_catalog.=) d.datdba WHERE r.rolsuper"
)
_EVENT_TRIGGERS = (
    "SELECT pg_catalog.current_setting('event_triggers', true), pg_catalog.current_setting('is_superuser')"
)
# The view must belong to the extension and a superuser: its schema may belong to another account.
_EXTENSION_SCHEMA = (
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
_STATISTICS = (
    "SELECT d.datname, pg_catalog.left(s.query, {text}), s.queryid, s.calls, s.rows"
    " FROM {schema}.pg_stat_statements s"
    " JOIN pg_catalog.pg_database d ON d.oid OPERATOR(pg_catalog.=) s.dbid ORDER BY s.calls DESC LIMIT {rows}"
)


class CountedStatement(NamedTuple):
    """Counters of one statement for all users: calls, rows sent or changed, and the server's number of it."""

    calls: int
    rows: int
    query_id: int | None


Statistics = dict[tuple[str | None, str], CountedStatement]
"""Counters by database and text; the text has parameters instead of values."""


def find_statistics_database(login: Login, databases: Iterable[str]) -> Login | None:
    """Return the login at the first of `postgres` and these databases that has pg_stat_statements; None without one.

    Only databases of superusers are tried: the owner of a database can choose code that runs in each session.
    """
    try:
        with sql.connect(login.in_database(_FIRST_DATABASE), limits=sql.WORD_LIMITS) as connection:
            trusted = {str(name) for (name,) in sql.fetch_rows(connection, _SUPERUSER_DATABASES, columns=1)}
            if has_login_triggers(connection):
                login = login.with_session_options(NO_LOGIN_TRIGGERS)
            if _FIRST_DATABASE in trusted and _find_extension_schema(connection) is not None:
                return login.in_database(_FIRST_DATABASE)
    except PowerprofError:
        return None
    for database in sorted(trusted & set(databases) - {_FIRST_DATABASE})[: _MAX_DATABASES - 1]:
        try:
            with sql.connect(login.in_database(database), limits=sql.WORD_LIMITS) as connection:
                if _find_extension_schema(connection) is not None:
                    return login.in_database(database)
        except PowerprofError:
            continue
    return None


def has_login_triggers(connection: Sql) -> bool:
    """Return whether triggers can run at a login that this account may do without. Raise StatementError."""
    return sql.fetch_rows(connection, _EVENT_TRIGGERS, columns=2) == [("on", "on")]


def read_statistics(connection: Sql) -> Statistics:
    """Return the counters since the last reset; empty if the server refuses.

    Raise StatementError for a lost connection.
    """
    statistics: Statistics = {}
    schema = _find_extension_schema(connection)
    if schema is None:
        return statistics
    query = _STATISTICS.format(schema='"' + schema.replace('"', '""') + '"', text=_MAX_STATISTICS_TEXT, rows=_MAX_ROWS)
    try:
        rows = sql.fetch_rows(connection, query, columns=5)
    except StatementError as error:
        if not error.number:
            raise
        return statistics  # The extension exists and is not loaded, for example.
    for database, text, number, calls, sent in rows:
        name = (printable(str(database)[:_MAX_NAME]), str(text or ""))
        old = statistics.get(name, CountedStatement(0, 0, None))
        query_id = int(number) if number and str(number).lstrip("-").isdigit() else old.query_id
        statistics[name] = CountedStatement(
            old.calls + (sql.parse_count(calls) or 0), old.rows + (sql.parse_count(sent) or 0), query_id
        )
    return statistics


def subtract_statistics(before: Statistics, after: Statistics) -> Statistics:
    """Return the difference of two readings, for the statements that were executed in between."""
    moved = {}
    for name, now in after.items():
        then = before.get(name, CountedStatement(0, 0, None))
        if now.calls < then.calls:  # The counters were reset in between.
            then = CountedStatement(0, 0, None)
        if now.calls > then.calls:
            moved[name] = CountedStatement(now.calls - then.calls, now.rows - then.rows, now.query_id)
    return moved


def _find_extension_schema(connection: Sql) -> str | None:
    rows = sql.fetch_rows(connection, _EXTENSION_SCHEMA, columns=1)
    return str(rows[0][0]) if rows else None
