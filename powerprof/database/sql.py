"""The one way to SQL: connections and statements whose failures are one line."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from powerprof.database.base import Login
from powerprof.errors import Retryable

if TYPE_CHECKING:
    from powerprof.database.base import Sql

Row = tuple[Any, ...]
_HINTS = {
    1045: "give the user and password by --defaults-file, MYSQL_PWD or the prompt",
    1698: "run as the system user of that account, or name another account",
    1040: "raise max_connections, or use fewer --clients",
    2002: "is the server running, and is the socket or port right?",
    2003: "is the server running, and is the socket or port right?",
}


class StatementError(Retryable):
    """The server refused a statement; `number` is its error code."""

    def __init__(self, message: str, hint: str | None, number: int) -> None:
        super().__init__(message, hint)
        self.number = number


def connect(login: Login, *, timeout_s: float = 10.0, **options: Any) -> Sql:
    """A connection with autocommit; `options` go to PyMySQL. Raises StatementError."""
    import pymysql

    place: dict[str, Any]
    if login.socket is not None:
        # No TLS within the host: PyMySQL 1.2 would build a context of its own each time (30 ms, 0.8 MB).
        place = {"unix_socket": str(login.socket), "ssl_disabled": True}
    else:
        place = {"host": login.host or "127.0.0.1", "port": login.port or 3306}
    tls = {f"ssl_{name}": value for name, value in login.tls.items()}
    try:
        return pymysql.connect(
            **{
                "user": login.user,
                "password": login.password,
                "database": login.database,
                "autocommit": True,
                "connect_timeout": max(1, min(int(timeout_s), 3600)),
                "charset": "utf8mb4",
                "program_name": "powerprof",
                **place,
                **tls,
                **options,
            }
        )
    except (pymysql.MySQLError, OSError, ValueError, RuntimeError) as error:
        raise failure(f"cannot connect to {login.text}", error) from error


def rows(connection: Sql, statement: str, arguments: Sequence[Any] | None = None) -> list[Row]:
    """The rows of one statement. Raises StatementError with the server's words."""
    import pymysql

    try:
        with connection.cursor() as cursor:
            cursor.execute(statement, arguments)
            return [tuple(row) for row in cursor.fetchall()]
    except (pymysql.MySQLError, OSError) as error:
        raise failure(f"{statement.split(None, 1)[0].upper()} failed", error) from error


def records(connection: Sql, statement: str) -> list[dict[str, Any]]:
    """As `rows`, by column name."""
    import pymysql

    try:
        with connection.cursor() as cursor:
            cursor.execute(statement)
            names = [column[0] for column in cursor.description or ()]
            return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]
    except (pymysql.MySQLError, OSError) as error:
        raise failure(f"{statement.split(None, 1)[0].upper()} failed", error) from error


def execute(connection: Sql, *statements: str) -> None:
    """Run statements whose rows do not matter. Raises StatementError."""
    for statement in statements:
        rows(connection, statement)


def scalar(connection: Sql, statement: str) -> Any:
    """The first column of the first row; None where there is none."""
    found = rows(connection, statement)
    return found[0][0] if found else None


def failure(what: str, error: Exception) -> StatementError:
    """A PyMySQL error as one line with its remedy."""
    number = error.args[0] if error.args and isinstance(error.args[0], int) else 0
    reason = str(error.args[1]) if number and len(error.args) > 1 else str(error)
    reason = " ".join(reason.split())[:300] or type(error).__name__
    return StatementError(f"{what} ({reason})", _HINTS.get(number), number)


def thread_names(connection: Sql) -> dict[int, str]:
    """Kernel thread id → performance_schema name; empty where the schema is off, absent or forbidden.

    A connection that feeds a replica says so: `thread/sql/one_connection (Binlog Dump)`.
    """
    try:
        found = rows(connection, "SELECT THREAD_OS_ID, NAME, PROCESSLIST_COMMAND FROM performance_schema.threads")
    except StatementError as error:
        if error.number >= 2000:  # the connection was lost
            raise
        return {}
    return {int(tid): f"{name} (Binlog Dump)" if _feeds(command) else str(name) for tid, name, command in found if tid}


def _feeds(command: object) -> bool:
    return str(command or "").startswith("Binlog Dump")
