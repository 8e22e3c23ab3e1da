# SPDX-License-Identifier: Apache-2.0
"""Connections to PostgreSQL: psycopg's door to libpq, PostgreSQL's own client library, which every server brings along.

Its higher floor has no limit to what an answer may hold, and no time in which it has to come.
"""

from __future__ import annotations

import os
import socket
import tempfile
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from powerprof import files
from powerprof.closeable import Closeable
from powerprof.database.clients.base import Limits, Login, StatementError
from powerprof.database.clients.peers import check_listener, listener_of
from powerprof.errors import CapabilityError
from powerprof.processes.reader_process import process_of, shared
from powerprof.statements.identity import Family
from powerprof.untrusted import printable

if TYPE_CHECKING:
    from psycopg.pq.abc import PGconn, PGresult

# ALTER DATABASE and ALTER ROLE set defaults of a session, and the owner of a database may use the former. Start-up
# options take precedence: names resolve in pg_catalog alone, the role stays the login's, and no library is loaded.
SAFE_OPTIONS = "-c search_path= -c role=none -c local_preload_libraries="
# Only a superuser may add this one, and only PostgreSQL 17 and later know it: event triggers can run at a login there.
NO_LOGIN_TRIGGERS = f"{SAFE_OPTIONS} -c event_triggers=off"
_LOG = "the server's error log says why"
_SQLSTATE = ord("C")  # PG_DIAG_SQLSTATE, postgres_ext.h


def _connect(login: Login, parameters: dict[str, str], patience_s: float) -> PGconn:
    try:
        from psycopg import conninfo, pq
    except ImportError as error:
        raise CapabilityError(f"PostgreSQL's client library is not there ({error})", "apt install libpq5") from None
    if login.socket is None or not process_of(login.socket):
        return pq.PGconn.connect(conninfo.make_conninfo("", **parameters).encode())
    # The path belongs to another process, and the library would look it up itself: it connects to a socket of ours,
    # whose descriptor becomes that of the connection.
    try:
        channel = shared().connect(login.socket)
    except OSError as error:
        raise StatementError(f"cannot connect to {login.text} ({error.strerror})", "does it run?", 0) from None
    with channel, tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX) as listening:
        listening.bind(f"{folder}/{login.socket.name}")
        listening.listen(1)
        handle = pq.PGconn.connect_start(conninfo.make_conninfo("", **parameters | {"host": folder}).encode())
        if handle.status != pq.ConnStatus.BAD:
            channel.setblocking(False)
            os.dup2(channel.fileno(), handle.socket, inheritable=False)
        end_s = time.monotonic() + patience_s
        while (state := handle.connect_poll()) in (pq.PollingStatus.READING, pq.PollingStatus.WRITING):
            left_s = end_s - time.monotonic()
            ready = files.readable if state == pq.PollingStatus.READING else files.writable
            if left_s <= 0 or not ready([handle.socket], left_s):
                handle.finish()
                raise StatementError(f"cannot connect to {login.text} (it does not answer)", "does it run?", 0)
    return handle


class Connection(Closeable):
    """One connection, as much of Python's database interface as `sql` uses; every value comes as text.

    Raises StatementError where the server refuses it, CapabilityError without the library.
    """

    family: Family = "postgresql"

    def __init__(self, login: Login, patience_s: float, limits: Limits) -> None:
        self._limits = limits
        self.patience_s = patience_s
        # Everything that the environment or a service file could set otherwise is set here.
        parameters = {
            "host": str(login.socket.parent) if login.socket else login.host or "127.0.0.1",
            # The name of a socket ends with it: .s.PGSQL.5432
            "port": login.socket.suffix.lstrip(".") if login.socket else str(login.port or 5432),
            "user": login.user,
            # One that is empty would be looked for in the home directory.
            "password": login.password or "none",
            "dbname": login.database or "postgres",
            "sslmode": "disable" if login.socket else "prefer",
            "gssencmode": "disable",
            "options": SAFE_OPTIONS if login.session_options is None else login.session_options,
            "client_encoding": "UTF8",
            "application_name": "powerprof",
            "connect_timeout": str(max(2, round(patience_s))),
        }
        self._handle: PGconn | None = _connect(login, parameters, patience_s)
        if self._handle.status != 0:  # CONNECTION_OK
            reason = _message(self._handle.error_message)
            self.close()
            raise StatementError(
                f"cannot connect to {login.text} ({reason})", "does it run, and let this account in?", 0
            )
        if login.socket is not None:
            try:
                check_listener(listener_of(self), login.pid)
            except OSError as error:
                self.close()
                raise StatementError(
                    f"cannot connect to {login.text} ({error.strerror})", "was the server restarted?", 0
                ) from None

    def cursor(self) -> Cursor:
        """What runs statements; one at a time."""
        return Cursor(self)

    def fileno(self) -> int:
        """The socket."""
        return self._alive().socket

    def detach(self) -> int | None:
        """None: the library says good-bye when its object goes."""
        return None

    def close(self) -> None:
        """Say good-bye; does nothing the second time."""
        if self._handle is not None:
            self._handle.finish()
            self._handle = None

    _force_close = close

    def _alive(self) -> PGconn:
        if self._handle is None:
            raise StatementError("the connection was closed", _LOG, 0)
        return self._handle

    def ask(self, statement: str) -> tuple[list[str], list[tuple[str | None, ...]]]:
        """Column names and rows of the last result. Raises StatementError."""
        from psycopg import pq
        from psycopg.errors import OperationalError

        handle = self._alive()
        answer: tuple[list[str], list[tuple[str | None, ...]]] = ([], [])
        refused: StatementError | None = None
        deadline_s = time.monotonic() + self.patience_s
        try:
            handle.send_query(statement.encode())
            while result := self._next(handle, deadline_s):
                if result.status == pq.ExecStatus.TUPLES_OK:
                    answer = self._rows(result)
                elif result.status not in (pq.ExecStatus.COMMAND_OK, pq.ExecStatus.EMPTY_QUERY):
                    code, reason = result.error_field(_SQLSTATE), _message(result.error_message)
                    refused = StatementError(f"{reason}{f' [{code.decode()}]' if code else ''}", None, 1)
        except OperationalError as error:
            self.close()
            raise StatementError(_message(str(error).encode()) or "the connection was lost", _LOG, 0) from None
        if refused is not None:
            raise refused
        return answer

    def _next(self, handle: PGconn, deadline_s: float) -> PGresult | None:
        """The next result; waited for in the kernel, by turns, so that a signal is heard."""
        while handle.is_busy():
            left_s = deadline_s - time.monotonic()
            if left_s <= 0:
                self.close()
                raise StatementError(f"the server did not answer in {self.patience_s:g} s", _LOG, 0)
            files.readable([handle.socket], left_s)
            handle.consume_input()
        return handle.get_result()

    def _rows(self, result: PGresult) -> tuple[list[str], list[tuple[str | None, ...]]]:
        if result.ntuples > self._limits.rows:
            raise StatementError(f"the server's answer is larger than {self._limits.rows:,} rows", None, 0)
        columns = range(result.nfields)
        names = [(result.fname(column) or b"").decode("utf-8", "replace") for column in columns]

        def value(row: int, column: int) -> str | None:
            raw = result.get_value(row, column)
            return None if raw is None else raw.decode("utf-8", "replace")

        return names, [tuple(value(row, column) for column in columns) for row in range(result.ntuples)]


class Cursor:
    """The last answer of a connection."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._rows: list[tuple[str | None, ...]] = []
        self.description: list[tuple[str]] | None = None

    def execute(self, statement: str, arguments: Sequence[Any] | None = None) -> None:
        """Run it. There are no arguments: a statement with values is written by `dialects`, which quotes them."""
        if arguments:
            raise StatementError("statements with arguments are not for PostgreSQL here", None, 1)
        names, self._rows = self._connection.ask(statement)
        self.description = [(name,) for name in names]

    def fetchall(self) -> list[tuple[str | None, ...]]:
        """All rows."""
        return self._rows

    def __enter__(self) -> Cursor:
        return self

    def __exit__(self, *_: object) -> None:
        self._rows = []


def _message(text: bytes | None) -> str:
    return printable(" ".join((text or b"").decode("utf-8", "replace").split()))[:300].removeprefix("ERROR: ")
