# SPDX-License-Identifier: Apache-2.0
"""What PostgreSQL has counted of statements, where pg_stat_statements is loaded: only read."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

from powerprof.database.clients import sql
from powerprof.database.clients.base import Login, StatementError
from powerprof.errors import PowerprofError
from powerprof.untrusted import printable

if TYPE_CHECKING:
    from powerprof.database.clients.base import Sql

_MOST_ROWS, _MOST_TEXT, _MOST_NAME = 20_000, 65_536, 128
_WHERE = (
    "SELECT n.nspname FROM pg_extension e JOIN pg_namespace n ON n.oid = e.extnamespace"
    " WHERE e.extname = 'pg_stat_statements'"
)
_COUNTED = (
    "SELECT d.datname, left(s.query, {text}), s.queryid, s.calls, s.rows FROM {schema}.pg_stat_statements s"
    " JOIN pg_database d ON d.oid = s.dbid ORDER BY s.calls DESC LIMIT {rows}"
)


class CountedStatement(NamedTuple):
    """Of one statement, by all users: how often, rows sent or changed, and the server's number of it."""

    calls: int
    rows: int
    query_id: int | None


Statistics = dict[tuple[str | None, str], CountedStatement]
"""By database and text with parameters for values."""


def database_with(login: Login, databases: Iterable[str]) -> Login | None:
    """The login at the first of these databases in which the extension is; None where it is in none, or no login is let
    in."""
    for database in databases:
        there = login.within(database)
        try:
            with sql.connect(there, limits=sql.A_WORD) as connection:
                if _schema(connection) is not None:
                    return there
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
