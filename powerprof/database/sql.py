# SPDX-License-Identifier: Apache-2.0
"""SQL on any server: connections, statements with one-line failures, and the dialects of the products."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from decimal import Decimal
from math import isfinite
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from powerprof.database.base import Limits, Login, StatementError
from powerprof.system.errors import PowerprofError
from powerprof.system.foreign_text import printable, whole
from powerprof.system.pid_namespaces import read_outer_ids

if TYPE_CHECKING:
    from powerprof.database.base import Server, Sql


Row = tuple[Any, ...]
Result = TypeVar("Result")
THREADS_QUERY = "SELECT THREAD_OS_ID, NAME, PROCESSLIST_COMMAND FROM performance_schema.threads"
_DEFAULT_LIMITS = Limits()
# Limits for connecting and all questions of one look at a server, and for a few words.
LOOK_LIMITS = Limits(waiting_s=6.0)
WORD_LIMITS = Limits(waiting_s=3.0)
_WRITE_S = 30.0
_WORK_S = 6 * 3600.0  # for creating tables and running plans
_MAX_NAME = 128
_SYNTAX_ERROR = 1064
_ACCESS_DENIED = (1045, 1698)
_CLIENT_ERRORS = range(2000, 3000)
_HINTS = {
    1045: "give the user and password with --defaults-file or MYSQL_PWD",
    1698: "run as the system user of that account, or name another account",
    1040: "raise max_connections, or use fewer --clients",
    2006: "the server's error log says why",
    2002: "is the server running, and is the socket or port right?",
    2003: "is the server running, and is the socket or port right?",
}
# The exceptions in texts of PyMySQL: (BrokenPipeError(32, 'Broken pipe')), ([Errno 104] Connection reset by peer).
_NESTED = re.compile(r"\((?:\w+\(\d+, ['\"]([^'\"]*)['\"]\)|\[Errno -?\d+\] ([^)]*))\)")
# This table marks a schema that powerprof made.
OWN_TABLE = "powerprof_made_this"
# Each Handler_read_* counts rows read from the storage engine (MariaDB, Server Status Variables).
ROWS = (
    *("Handler_read_first", "Handler_read_key", "Handler_read_last", "Handler_read_next", "Handler_read_prev"),
    *("Handler_read_rnd", "Handler_read_rnd_next"),
)
_COUNTED = (
    *("Questions", "Qcache_hits", "Connections"),
    *("Com_commit", "Com_stmt_prepare", "Com_stmt_execute", "Com_stmt_close"),
    *ROWS,
)
# One row per table. Since 9.7 MySQL answers a plain EXPLAIN with one text; before 5.6 it has no formats.
EXPLAIN = "EXPLAIN /*!50600 FORMAT=TRADITIONAL */ "
# All names and operators of PostgreSQL are qualified. Otherwise the session's search_path could choose other objects.
_DATABASE = (
    "SELECT pg_catalog.pg_get_userbyid(d.datdba) OPERATOR(pg_catalog.=) CURRENT_USER::pg_catalog.name"
    " FROM pg_catalog.pg_database d WHERE d.datname OPERATOR(pg_catalog.=) '{}'"
)
_MARKED = f"SELECT 1 FROM pg_catalog.pg_tables t WHERE t.tablename OPERATOR(pg_catalog.=) '{OWN_TABLE}'"  # noqa: S608
_VERSION = "SELECT pg_catalog.current_setting('server_version_num')"
_ROOM = (
    "SELECT pg_catalog.current_setting('max_connections'),"
    " pg_catalog.current_setting('superuser_reserved_connections'),"
    " (SELECT pg_catalog.count(*) FROM pg_catalog.pg_stat_activity a"
    " WHERE a.backend_type OPERATOR(pg_catalog.=) 'client backend')"
)


def connect(
    login: Login,
    *,
    timeout_s: float = 8.0,
    limits: Limits = _DEFAULT_LIMITS,
    database: str | None = None,
    **options: Any,
) -> Sql:
    """Return a connection with autocommit, in `database` or the login's own; `options` go to PyMySQL.

    The server is untrusted: see `wire`. `timeout_s` covers connecting, handshake and log-in. Raises StatementError.
    """
    patience_s = max(1.0, min(timeout_s, limits.waiting_s, 3600.0))
    login = login.in_database(database)
    if login.family == "mysql":
        return _connect_mysql(login, patience_s, limits, options)
    from powerprof.database.postgres_wire import PostgresConnection

    return PostgresConnection(login, patience_s, limits)


def _connect_mysql(login: Login, patience_s: float, limits: Limits, options: Mapping[str, Any]) -> Sql:
    from powerprof.database.postgres_greeting import is_postgresql
    from powerprof.database.wire import BoundedConnection

    place: dict[str, Any]
    if login.socket is not None:
        # No TLS within the host: PyMySQL 1.2 would build a context for each connection (30 ms, 0.8 MB).
        place = {"unix_socket": str(login.socket), "ssl_disabled": True}
    else:
        place = {"host": login.host or "127.0.0.1", "port": login.tcp_port}
    tls = {f"ssl_{name}": value for name, value in login.tls.items()}
    try:
        return BoundedConnection(
            limits,
            patience_s,
            login.account,
            login.pid,
            **{
                "user": login.user,
                "password": login.password,
                "database": login.database,
                "autocommit": True,
                "connect_timeout": patience_s,
                "write_timeout": _WRITE_S,
                "charset": "utf8mb4",
                "program_name": "powerprof",
                **place,
                **tls,
                **options,
            },
        )
    except PowerprofError:
        raise
    except Exception as error:
        refused = statement_error(f"cannot connect to {login.text}", error)
        # An error of the server itself is an answer in its own protocol. Another try would count as a broken one there.
        if (refused.number == 0 or refused.number in _CLIENT_ERRORS) and is_postgresql(login):
            raise StatementError(
                f"{login.text} is a PostgreSQL server", "name it as postgresql://user@host:port/, or by its socket", 0
            ) from error
        refused.hint = refused.hint or _HINTS[2002]
        if login.account is not None and refused.number in _ACCESS_DENIED:
            refused.hint = f"under sudo powerprof connects as {login.account.name}: name an account of theirs"
        raise refused from error


def _run(connection: Sql, statement: str, arguments: Sequence[Any] | None) -> tuple[list[str], list[Row]]:
    """Return column names and rows. Raise StatementError for every exception of PyMySQL."""
    import pymysql

    try:
        with connection.cursor() as cursor:
            cursor.execute(statement, arguments)
            names = [str(column[0]) for column in cursor.description or ()]
            answer = [tuple(row) for row in cursor.fetchall()]
    except StatementError as error:
        raise StatementError(f"{_verb(statement)} failed ({error.message})", error.hint, error.number) from error
    except Exception as error:
        if not isinstance(error, pymysql.MySQLError):
            # The position in the answer is unknown now.
            connection._force_close()  # type: ignore[attr-defined]
        raise statement_error(f"{_verb(statement)} failed", error) from error
    if any(len(row) != len(names) for row in answer):
        raise StatementError(f"{_verb(statement)} failed (a row does not fit its header)", None, 0)
    return names, answer


def _verb(statement: str) -> str:
    words = statement.split(None, 1)
    return words[0].upper()[:20] if words and words[0].isalpha() else "a statement"


def fetch_rows(
    connection: Sql, statement: str, arguments: Sequence[Any] | None = None, *, columns: int | None = None
) -> list[Row]:
    """Return the rows of one statement, cut to `columns`. Raise StatementError, also if there are fewer columns."""
    names, answer = _run(connection, statement, arguments)
    if columns is not None and answer and len(names) < columns:
        raise StatementError(
            f"{_verb(statement)} failed (the server answers with {len(names)} columns, not {columns})", None, 0
        )
    return answer if columns is None else [row[:columns] for row in answer]


def fetch_records(connection: Sql, statement: str) -> list[dict[str, Any]]:
    """Return the rows of one statement by column name. Raise StatementError."""
    names, answer = _run(connection, statement, None)
    return [dict(zip(names, row, strict=True)) for row in answer]


def run_first_known(ask: Callable[[str], Result], *statements: str) -> Result | None:
    """Return the result of the first statement that the server can parse: releases differ in their words.

    The result is None without such a statement. Raises StatementError for other errors.
    """
    for statement in statements:
        try:
            return ask(statement)
        except StatementError as error:
            if error.number != _SYNTAX_ERROR:
                raise
    return None


def execute(connection: Sql, *statements: str) -> None:
    """Run statements without rows that may take hours. Raise StatementError."""
    usual_s = getattr(connection, "patience_s", None)
    if usual_s is not None:
        connection.patience_s = _WORK_S  # type: ignore[attr-defined]
    try:
        for statement in statements:
            _run(connection, statement, None)
    finally:
        if usual_s is not None:
            connection.patience_s = usual_s  # type: ignore[attr-defined]


def fetch_scalar(connection: Sql, statement: str) -> Any:
    """Return the first column of the first row; None without rows."""
    answer = fetch_rows(connection, statement, columns=1)
    return answer[0][0] if answer else None


def parse_number(value: Any) -> float | None:
    """Return a figure of an answer; None for NULL, NaN, infinity and anything else."""
    if isinstance(value, bool) or not isinstance(value, (int, float, Decimal, str)) or len(str(value)[:41]) > 40:
        return None
    try:
        figure = float(value)
    except (ValueError, OverflowError):
        return None
    return figure if isfinite(figure) else None


def parse_count(value: Any) -> int | None:
    """Return a whole number of an answer, from a number or text; None for anything else."""
    return whole(int(value) if isinstance(value, Decimal) and value.is_finite() and value < 1 << 64 else value)


def statement_error(what: str, error: Exception) -> StatementError:
    """Return a PyMySQL error as one line with its remedy."""
    number = error.args[0] if error.args and isinstance(error.args[0], int) else 0
    reason = str(error.args[1]) if number and len(error.args) > 1 else str(error)
    reason = _NESTED.sub(lambda inner: f"({(inner[1] or inner[2]).lower()})", reason)
    if not number and not isinstance(error, OSError):
        detail = printable(" ".join(reason.split()))[:60]
        reason = f"it does not speak the MySQL protocol: {detail or type(error).__name__}"
    reason = printable(" ".join(reason.split()))[:300] or type(error).__name__
    return StatementError(f"{what} ({reason})", _HINTS.get(number), number)


def read_thread_names(connection: Sql, pid: int | None) -> dict[int, str]:
    """Return performance_schema names by kernel thread id; empty if the schema is off, absent or forbidden.

    `pid` is the server's process if it is known: in a container the server counts its threads by other numbers.
    """
    try:
        threads = fetch_rows(connection, THREADS_QUERY, columns=3)
    except StatementError as error:
        if error.number >= 2000 or error.number == 0:  # The connection is lost or unusable.
            raise
        return {}
    names = {}
    outer = read_outer_ids(pid)
    for tid, name, command in threads:
        inner = parse_count(tid)
        thread = outer.get(inner, inner) if inner is not None else None
        if thread and name:
            names[thread] = mark_feed(printable(str(name)[:_MAX_NAME]), command)
    return names


def mark_feed(name: str, command: object) -> str:
    """Return a thread name; connections that feed a replica get the suffix ` (Binlog Dump)`."""
    return f"{name} (Binlog Dump)" if str(command or "").startswith("Binlog Dump") else name


class Dialect(Protocol):
    """The SQL of one product. A schema is the schema or database of a workload's tables."""

    def is_own(self, server: Server, schema: str) -> bool | None:
        """Return True for a schema that powerprof made, False for another, None if there is none."""

    def create_schema(self, server: Server, schema: str) -> None:
        """Create a schema and mark it as made by powerprof."""

    def drop_schema(self, server: Server, schema: str) -> None:
        """Drop a schema with its tables."""

    def explain(self, connection: Sql, statement: str) -> list[dict[str, Any]]:
        """Return the plan by tables: `table`, `type` (the access), `key` and `rows` among others."""

    def read_counters(self, connection: Sql) -> dict[str, int]:
        """Return the server's counters of statements and rows; empty if it updates them with a delay."""

    def read_version(self, connection: Sql) -> str | None:
        """Return product and version, such as `MariaDB 10.11.19`; None if the server reports none."""

    def read_room(self, connection: Sql) -> tuple[int, int, int]:
        """Return the limits of connections for all users and one user (0: no limit), and the present number."""


class _MySqlDialect:
    def is_own(self, server: Server, schema: str) -> bool | None:
        with server.connect() as connection:
            there = fetch_rows(connection, "SELECT 1 FROM information_schema.schemata WHERE schema_name = %s", [schema])
            ours = fetch_rows(
                connection,
                "SELECT 1 FROM information_schema.tables WHERE table_schema = %s AND table_name = %s",
                [schema, OWN_TABLE],
            )
        return bool(ours) if there else None

    def create_schema(self, server: Server, schema: str) -> None:
        with server.connect() as connection:
            execute(
                connection,
                f"CREATE DATABASE `{schema}` DEFAULT CHARACTER SET latin1",
                f"CREATE TABLE `{schema}`.{OWN_TABLE} (made TIMESTAMP NOT NULL DEFAULT CURRENT_TIMESTAMP)",
            )

    def drop_schema(self, server: Server, schema: str) -> None:
        with server.connect() as connection:
            execute(connection, f"DROP DATABASE `{schema}`")

    def explain(self, connection: Sql, statement: str) -> list[dict[str, Any]]:
        rows = fetch_records(connection, EXPLAIN + statement)
        return [{name.lower(): value for name, value in row.items()} for row in rows]

    def read_counters(self, connection: Sql) -> dict[str, int]:
        names = ", ".join(f"'{name}'" for name in _COUNTED)
        rows = fetch_rows(connection, f"SHOW GLOBAL STATUS WHERE Variable_name IN ({names})", columns=2)
        return {str(name): parse_count(value) or 0 for name, value in rows}

    def read_version(self, connection: Sql) -> str | None:
        version = fetch_scalar(connection, "SELECT @@version")
        number = re.match(r"[0-9.]{1,20}", version) if isinstance(version, str) else None
        return number and f"{'MariaDB' if 'mariadb' in str(version).lower() else 'MySQL'} {number[0]}"

    def read_room(self, connection: Sql) -> tuple[int, int, int]:
        variables = fetch_rows(connection, "SELECT @@max_connections, @@max_user_connections", columns=2)
        status = fetch_rows(connection, "SHOW GLOBAL STATUS LIKE 'Threads_connected'", columns=2)
        most, per_user = (parse_count(value) or 0 for value in (variables or [(0, 0)])[0])
        return most, per_user, (parse_count(status[0][1]) or 1) if status else 1


class _PostgresDialect:
    def is_own(self, server: Server, schema: str) -> bool | None:
        with server.connect() as connection:
            owned = fetch_rows(connection, _DATABASE.format(schema), columns=1)
        if not owned or owned[0][0] != "t":
            # Nothing runs in a database of another account, which may contain its functions.
            return False if owned else None
        with server.connect(database=schema) as connection:
            return bool(fetch_rows(connection, _MARKED))

    def create_schema(self, server: Server, schema: str) -> None:
        with server.connect() as connection:
            # Statements of a workload find their names in the schema public. No other account has been there: template0
            # admits nobody, and the new database only its owner.
            execute(
                connection,
                f'CREATE DATABASE "{schema}" TEMPLATE template0 ALLOW_CONNECTIONS false',
                f'REVOKE ALL ON DATABASE "{schema}" FROM PUBLIC',
                f'ALTER DATABASE "{schema}" ALLOW_CONNECTIONS true',
            )
        with server.connect(database=schema) as connection:
            execute(
                connection,
                f"CREATE TABLE public.{OWN_TABLE} (made pg_catalog.timestamptz NOT NULL DEFAULT pg_catalog.now())",
            )

    def drop_schema(self, server: Server, schema: str) -> None:
        with server.connect() as connection:
            execute(connection, f'DROP DATABASE "{schema}"')

    def explain(self, connection: Sql, statement: str) -> list[dict[str, Any]]:
        text = fetch_scalar(connection, f"EXPLAIN (FORMAT JSON) {statement}")
        try:
            (plan,) = json.loads(text)
            return list(list_plan_tables(plan["Plan"]))
        except (TypeError, ValueError, KeyError, AttributeError) as error:
            raise PowerprofError(f"cannot read the plan of {statement[:60]!r}", None) from error

    def read_counters(self, connection: Sql) -> dict[str, int]:
        # Its processes report their work up to a second later (PGSTAT_MIN_INTERVAL): too late for a window.
        return {}

    def read_version(self, connection: Sql) -> str | None:
        number = parse_count(fetch_scalar(connection, _VERSION))
        return None if number is None else f"PostgreSQL {number // 10_000}.{number % 10_000}"

    def read_room(self, connection: Sql) -> tuple[int, int, int]:
        rows = fetch_rows(connection, _ROOM, columns=3)
        most, reserved, there = (parse_count(value) or 0 for value in (rows or [(0, 0, 0)])[0])
        return most - reserved, 0, there


# Steps of a plan above a table that cost memory or disk.
_PLAN_WORK = frozenset(("Sort", "Incremental Sort", "Materialize"))
# A row in the memory of a sort has a header of 24 bytes (relation_byte_size, costsize.c).
_ROW_HEADER_BYTES = 24


def list_plan_tables(
    node: Mapping[str, Any], memory_bytes: float = float("inf"), above: tuple[str, ...] = ()
) -> Iterator[dict[str, Any]]:
    """Yield the nodes of a plan that read a table, outermost first. A bitmap heap scan gets the index of its child.

    `extra` has the filter, and the sorts above the table up to the next join: larger than `memory_bytes` on disk.
    """
    inner = [child for child in node.get("Plans", []) if isinstance(child, dict)]
    kind, rows = str(node["Node Type"]), node.get("Plan Rows")
    if kind in _PLAN_WORK:
        width = -(-(parse_count(node.get("Plan Width")) or 0) // 8) * 8 + _ROW_HEADER_BYTES
        is_large = kind == "Sort" and (parse_count(rows) or 0) * width > memory_bytes
        above = (*above, f"{kind} on disk" if is_large else kind)
    if "Relation Name" in node:
        keys = [child["Index Name"] for child in (node, *inner) if "Index Name" in child]
        words = [*(["Filter"] if "Filter" in node else []), *reversed(above)]
        yield {
            "table": node["Relation Name"],
            "type": kind,
            "key": keys[0] if keys else None,
            "rows": rows,
            "extra": "; ".join(words) or None,
            **({"schema": node["Schema"]} if "Schema" in node else {}),
        }
    for child in inner:
        yield from list_plan_tables(child, memory_bytes, above if len(inner) == 1 else ())


_DIALECTS: Mapping[str, Dialect] = {"mysql": _MySqlDialect(), "postgresql": _PostgresDialect()}


def dialect_of(connection: Sql) -> Dialect:
    """Return the dialect of a connection."""
    return _DIALECTS[connection.family]


def dialect_of_server(server: Server) -> Dialect:
    """Return the dialect of a server."""
    return _DIALECTS[server.login.family]


def read_version(connection: Sql) -> str:
    """Return product and version, such as `MariaDB 10.11.19`. Raise PowerprofError if the server reports none."""
    version = dialect_of(connection).read_version(connection)
    if version is None:
        raise PowerprofError("SELECT failed (the server does not say its version)", "is it MySQL or MariaDB?")
    return version
