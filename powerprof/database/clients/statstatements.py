# SPDX-License-Identifier: Apache-2.0
"""What PostgreSQL has counted of statements, where pg_stat_statements is loaded: only read."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

from powerprof.database.clients import sql
from powerprof.database.clients.base import Login, StatementError
from powerprof.database.clients.libpq import NO_LOGIN_TRIGGERS
from powerprof.errors import PowerprofError
from powerprof.untrusted import printable

if TYPE_CHECKING:
    from powerprof.database.clients.base import Sql

_MOST_ROWS, _MOST_TEXT, _MOST_NAME = 20_000, 65_536, 128
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


def database_with(login: Login, databases: Iterable[str]) -> Login | None:
    """Return the login at the first of `postgres` and these databases that has the extension; None without one.

    Only databases of superusers are tried: the owner of a database decides which code a session in it meets.
    """
    try:
        with sql.connect(login.within(_FIRST), limits=sql.A_WORD) as connection:
            trusted = {str(name) for (name,) in sql.rows(connection, _OF_SUPERUSERS, columns=1)}
            ((triggers, is_superuser),) = sql.rows(connection, _EVENT_TRIGGERS, columns=2)
            if (triggers, is_superuser) == ("on", "on"):
                login = login.started_with(NO_LOGIN_TRIGGERS)
            if _FIRST in trusted and _schema(connection) is not None:
                return login.within(_FIRST)
    except PowerprofError:
        return None
    for database in sorted(trusted & set(databases) - {_FIRST})[: _MOST_DATABASES - 1]:
        try:
            with sql.connect(login.within(database), limits=sql.A_WORD) as connection:
                if _schema(connection) is not None:
                    return login.within(database)
        except PowerprofError:
            continue
    return None


def counted(connection: Sql) -> Statistics:
    """What has been counted since it was reset; nothing where the server refuses it. Raises StatementError where the
    connection is lost."""
    found: Statistics = {}
    schema = _schema(connection)
    if schema is None:
        return found
    asked = _COUNTED.format(schema='"' + schema.replace('"', '""') + '"', text=_MOST_TEXT, rows=_MOST_ROWS)
    try:
        rows = sql.rows(connection, asked, columns=5)
    except StatementError as error:
        if not error.number:
            raise
        return found  # it is there and not loaded, say
    for database, text, number, calls, sent in rows:
        name = (printable(str(database)[:_MOST_NAME]), str(text or ""))
        old = found.get(name, CountedStatement(0, 0, None))
        query_id = int(number) if number and str(number).lstrip("-").isdigit() else old.query_id
        found[name] = CountedStatement(old.calls + (sql.count(calls) or 0), old.rows + (sql.count(sent) or 0), query_id)
    return found


def since(before: Statistics, after: Statistics) -> Statistics:
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
    found = sql.rows(connection, _WHERE, columns=1)
    return str(found[0][0]) if found else None
