# SPDX-License-Identifier: Apache-2.0
"""The one way to SQL: connections and statements whose failures are one line."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from math import isfinite
from typing import TYPE_CHECKING, Any, TypeVar

from powerprof.database.clients.base import Limits, Login, StatementError
from powerprof.system.errors import PowerprofError
from powerprof.system.files import printable, whole
from powerprof.system.tasks import outer_ids

if TYPE_CHECKING:
    from powerprof.database.clients.base import Sql

Row = tuple[Any, ...]
THREADS_QUERY = "SELECT THREAD_OS_ID, NAME, PROCESSLIST_COMMAND FROM performance_schema.threads"
_WRITE_S = 30.0
_WORK_S = 6 * 3600.0  # tables are made, plans are run
_MOST_NAME = 128
_SYNTAX_ERROR = 1064
Result = TypeVar("Result")


LIMITS = Limits()
# A look at a server: connecting and all questions together.
LOOK_LIMITS = Limits(waiting_s=6.0)
WORD_LIMITS = Limits(waiting_s=3.0)
_HINTS = {
    1045: "give the user and password with --defaults-file, MYSQL_PWD or the prompt",
    1698: "run as the system user of that account, or name another account",
    1040: "raise max_connections, or use fewer --clients",
    2002: "is the server running, and is the socket or port right?",
    2003: "is the server running, and is the socket or port right?",
}


_NOT_LET_IN = (1045, 1698)


def connect(
    login: Login, *, timeout_s: float = 8.0, limits: Limits = LIMITS, database: str | None = None, **options: Any
) -> Sql:
    """A connection with autocommit, in `database` or the login's own; `options` go to PyMySQL. Raises StatementError.

    Nobody vouches for the server: see `wire`. `timeout_s` is for connecting, handshake and log-in together.
    """
    patience_s = max(1.0, min(timeout_s, limits.waiting_s, 3600.0))
    return _DRIVERS[login.family](login.within(database), patience_s, limits, options)


def _postgresql(login: Login, patience_s: float, limits: Limits, _options: Mapping[str, Any]) -> Sql:
    from powerprof.database.clients.wire import PostgresConnection as Connection

    return Connection(login, patience_s, limits)


def _mysql(login: Login, patience_s: float, limits: Limits, options: Mapping[str, Any]) -> Sql:
    from powerprof.database.clients.wire import BoundedConnection

    place: dict[str, Any]
    if login.socket is not None:
        # No TLS within the host: PyMySQL 1.2 would build a context of its own each time (30 ms, 0.8 MB).
        place = {"unix_socket": str(login.socket), "ssl_disabled": True}
    else:
        place = {"host": login.host or "127.0.0.1", "port": login.port or 3306}
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
        if login.account is not None and refused.number in _NOT_LET_IN:
            refused.hint = f"under sudo powerprof connects as {login.account.name}: name an account of theirs"
        raise refused from error


_DRIVERS: Mapping[str, Callable[[Login, float, Limits, Mapping[str, Any]], Sql]] = {
    "mysql": _mysql,
    "postgresql": _postgresql,
}


def _ask(connection: Sql, statement: str, arguments: Sequence[Any] | None) -> tuple[list[str], list[Row]]:
    """Column names and rows. PyMySQL trips over an answer out of form by whatever exception: all are failures."""
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
            # Nobody knows where in its answer the server is now.
            connection._force_close()  # type: ignore[attr-defined]
        raise statement_error(f"{_verb(statement)} failed", error) from error
    if any(len(row) != len(names) for row in answer):
        raise StatementError(f"{_verb(statement)} failed (a row does not fit its header)", None, 0)
    return names, answer


def _verb(statement: str) -> str:
    return statement.split(None, 1)[0].upper()[:20]


def fetch_rows(
    connection: Sql, statement: str, arguments: Sequence[Any] | None = None, *, columns: int | None = None
) -> list[Row]:
    """The rows of one statement, cut to `columns`; fewer are refused. Raises StatementError."""
    names, answer = _ask(connection, statement, arguments)
    if columns is not None and answer and len(names) < columns:
        raise StatementError(
            f"{_verb(statement)} failed (the server answers with {len(names)} columns, not {columns})", None, 0
        )
    return answer if columns is None else [row[:columns] for row in answer]


def fetch_records(connection: Sql, statement: str) -> list[dict[str, Any]]:
    """As `rows`, by column name."""
    names, answer = _ask(connection, statement, None)
    return [dict(zip(names, row, strict=True)) for row in answer]


def run_first_known(ask: Callable[[str], Result], *statements: str) -> Result | None:
    """What is answered to the first of these that the server can parse: other releases have other words for the same.

    None where it knows none. Raises StatementError for what is wrong otherwise.
    """
    for statement in statements:
        try:
            return ask(statement)
        except StatementError as error:
            if error.number != _SYNTAX_ERROR:
                raise
    return None


def execute(connection: Sql, *statements: str) -> None:
    """Run statements whose rows do not matter and that may take their time. Raises StatementError."""
    usual_s = getattr(connection, "patience_s", None)
    if usual_s is not None:
        connection.patience_s = _WORK_S  # type: ignore[attr-defined]
    try:
        for statement in statements:
            _ask(connection, statement, None)
    finally:
        if usual_s is not None:
            connection.patience_s = usual_s  # type: ignore[attr-defined]


def fetch_scalar(connection: Sql, statement: str) -> Any:
    """The first column of the first row; None where there is none."""
    answer = fetch_rows(connection, statement, columns=1)
    return answer[0][0] if answer else None


def parse_number(value: Any) -> float | None:
    """A figure of an answer; None for NULL, for what is none, and for NaN and infinity."""
    if isinstance(value, bool) or not isinstance(value, (int, float, Decimal, str)) or len(str(value)[:41]) > 40:
        return None
    try:
        figure = float(value)
    except (ValueError, OverflowError):
        return None
    return figure if isfinite(figure) else None


def parse_count(value: Any) -> int | None:
    """A whole number of an answer, as a number or as text; None for anything else."""
    return whole(int(value) if isinstance(value, Decimal) and value.is_finite() and value < 1 << 64 else value)


def statement_error(what: str, error: Exception) -> StatementError:
    """A PyMySQL error as one line with its remedy."""
    number = error.args[0] if error.args and isinstance(error.args[0], int) else 0
    reason = str(error.args[1]) if number and len(error.args) > 1 else str(error)
    if not number and not isinstance(error, OSError):
        detail = printable(" ".join(reason.split()))[:60]
        reason = f"it does not speak the MySQL protocol: {detail or type(error).__name__}"
    reason = printable(" ".join(reason.split()))[:300] or type(error).__name__
    return StatementError(f"{what} ({reason})", _HINTS.get(number), number)


def read_thread_names(connection: Sql, pid: int | None) -> dict[int, str]:
    """Kernel thread id → performance_schema name; empty where the schema is off, absent or forbidden.

    `pid` is the server's process where it is known: in a container it counts its threads by other numbers.
    A connection that feeds a replica says so: `thread/sql/one_connection (Binlog Dump)`.
    """
    try:
        threads = fetch_rows(connection, THREADS_QUERY, columns=3)
    except StatementError as error:
        if error.number >= 2000 or error.number == 0:  # the connection was lost, or is of no use
            raise
        return {}
    names = {}
    outer = outer_ids(pid)
    for tid, name, command in threads:
        inner = parse_count(tid)
        thread = outer.get(inner, inner) if inner is not None else None
        if thread and name:
            shown = printable(str(name)[:_MOST_NAME])
            names[thread] = f"{shown} (Binlog Dump)" if _feeds(command) else shown
    return names


def _feeds(command: object) -> bool:
    return str(command or "").startswith("Binlog Dump")
