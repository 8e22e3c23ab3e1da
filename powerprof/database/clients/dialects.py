# SPDX-License-Identifier: Apache-2.0
"""What differs between the products in how they are asked: schemas, plans, counters, room for clients."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from powerprof.database.clients import sql
from powerprof.system.errors import PowerprofError

if TYPE_CHECKING:
    from powerprof.database.clients.base import Server, Sql

# The table by which a schema is known as one that powerprof made.
MARK = "powerprof_made_this"
# Rows that the storage engine handed over: every Handler_read_* counts one (MariaDB, Server Status Variables).
ROWS = (
    "Handler_read_first",
    "Handler_read_key",
    "Handler_read_last",
    "Handler_read_next",
    "Handler_read_prev",
    "Handler_read_rnd",
    "Handler_read_rnd_next",
)
_COUNTED = (
    *("Questions", "Qcache_hits", "Connections"),
    *("Com_commit", "Com_stmt_prepare", "Com_stmt_execute", "Com_stmt_close"),
    *ROWS,
)
# Every name and operator of PostgreSQL is qualified: otherwise a session's search_path decides whose object it is.
_DATABASE = "SELECT 1 FROM pg_catalog.pg_database d WHERE d.datname OPERATOR(pg_catalog.=) '{}'"
_MARKED = f"SELECT 1 FROM pg_catalog.pg_tables t WHERE t.tablename OPERATOR(pg_catalog.=) '{MARK}'"  # noqa: S608
_ROOM = (
    "SELECT pg_catalog.current_setting('max_connections'),"
    " pg_catalog.current_setting('superuser_reserved_connections'),"
    " (SELECT pg_catalog.count(*) FROM pg_catalog.pg_stat_activity a"
    " WHERE a.backend_type OPERATOR(pg_catalog.=) 'client backend')"
)


class Dialect(Protocol):
    """How one product is asked. A schema is what a workload's tables lie in: a schema or a database."""

    def owner_of(self, server: Server, schema: str) -> bool | None:
        """True for a schema that powerprof made, False for somebody else's, None where there is none."""

    def create(self, server: Server, schema: str) -> None:
        """Make it, and mark it as made by powerprof."""

    def drop(self, server: Server, schema: str) -> None:
        """Remove it with its tables."""

    def explain(self, connection: Sql, statement: str) -> list[dict[str, Any]]:
        """The plan by tables: `table`, `type` (how it is read), `key` and `rows` among others."""

    def counters(self, connection: Sql) -> dict[str, int]:
        """The server's counters of statements and rows; empty where it counts none to the moment."""

    def room(self, connection: Sql) -> tuple[int, int, int]:
        """Most connections, most of one user (0: no limit), and those there are."""


class _MySql:
    def owner_of(self, server: Server, schema: str) -> bool | None:
        with server.connect() as connection:
            there = sql.fetch_rows(
                connection, "SELECT 1 FROM information_schema.schemata WHERE schema_name = %s", [schema]
            )
            ours = sql.fetch_rows(
                connection,
                "SELECT 1 FROM information_schema.tables WHERE table_schema = %s AND table_name = %s",
                [schema, MARK],
            )
        return bool(ours) if there else None

    def create(self, server: Server, schema: str) -> None:
        with server.connect() as connection:
            sql.execute(
                connection,
                f"CREATE DATABASE `{schema}` DEFAULT CHARACTER SET latin1",
                f"CREATE TABLE `{schema}`.{MARK} (made TIMESTAMP NOT NULL DEFAULT CURRENT_TIMESTAMP)",
            )

    def drop(self, server: Server, schema: str) -> None:
        with server.connect() as connection:
            sql.execute(connection, f"DROP DATABASE `{schema}`")

    def explain(self, connection: Sql, statement: str) -> list[dict[str, Any]]:
        rows = sql.fetch_records(connection, "EXPLAIN " + statement)
        return [{name.lower(): value for name, value in row.items()} for row in rows]

    def counters(self, connection: Sql) -> dict[str, int]:
        names = ", ".join(f"'{name}'" for name in _COUNTED)
        rows = sql.fetch_rows(connection, f"SHOW GLOBAL STATUS WHERE Variable_name IN ({names})", columns=2)
        return {str(name): sql.parse_count(value) or 0 for name, value in rows}

    def room(self, connection: Sql) -> tuple[int, int, int]:
        variables = sql.fetch_rows(connection, "SELECT @@max_connections, @@max_user_connections", columns=2)
        status = sql.fetch_rows(connection, "SHOW GLOBAL STATUS LIKE 'Threads_connected'", columns=2)
        most, per_user = (sql.parse_count(value) or 0 for value in (variables or [(0, 0)])[0])
        return most, per_user, (sql.parse_count(status[0][1]) or 1) if status else 1


class _PostgreSql:
    def owner_of(self, server: Server, schema: str) -> bool | None:
        with server.connect() as connection:
            if not sql.fetch_rows(connection, _DATABASE.format(schema)):
                return None
        with server.connect(database=schema) as connection:
            return bool(sql.fetch_rows(connection, _MARKED))

    def create(self, server: Server, schema: str) -> None:
        with server.connect() as connection:
            sql.execute(connection, f'CREATE DATABASE "{schema}"')
        with server.connect(database=schema) as connection:
            sql.execute(
                connection,
                f"CREATE TABLE public.{MARK} (made pg_catalog.timestamptz NOT NULL DEFAULT pg_catalog.now())",
            )

    def drop(self, server: Server, schema: str) -> None:
        with server.connect() as connection:
            sql.execute(connection, f'DROP DATABASE "{schema}"')

    def explain(self, connection: Sql, statement: str) -> list[dict[str, Any]]:
        text = sql.fetch_scalar(connection, f"EXPLAIN (FORMAT JSON) {statement}")
        try:
            (plan,) = json.loads(text)
            return list(_tables(plan["Plan"]))
        except (TypeError, ValueError, KeyError, AttributeError) as error:
            raise PowerprofError(f"cannot read the plan of {statement[:60]!r}", None) from error

    def counters(self, connection: Sql) -> dict[str, int]:
        # Its processes report what they did up to a second later (PGSTAT_MIN_INTERVAL): too late for a window.
        return {}

    def room(self, connection: Sql) -> tuple[int, int, int]:
        rows = sql.fetch_rows(connection, _ROOM, columns=3)
        most, reserved, there = (sql.parse_count(value) or 0 for value in (rows or [(0, 0, 0)])[0])
        return most - reserved, 0, there


def _tables(node: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The nodes of a plan that read a table, outermost first. A bitmap heap scan has its index from the scan below."""
    inner = [child for child in node.get("Plans", []) if isinstance(child, dict)]
    if "Relation Name" in node:
        keys = [child["Index Name"] for child in (node, *inner) if "Index Name" in child]
        yield {
            "table": node["Relation Name"],
            "type": node["Node Type"],
            "key": keys[0] if keys else None,
            "rows": node.get("Plan Rows"),
        }
    for child in inner:
        yield from _tables(child)


_DIALECTS: Mapping[str, Dialect] = {"mysql": _MySql(), "postgresql": _PostgreSql()}


def dialect_of(connection: Sql) -> Dialect:
    """The dialect that is spoken on a connection."""
    return _DIALECTS[connection.family]


def dialect_of_server(server: Server) -> Dialect:
    """The dialect of a server."""
    return _DIALECTS[server.login.family]
