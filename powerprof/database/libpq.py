# SPDX-License-Identifier: Apache-2.0
"""Connections to PostgreSQL by its own client library (libpq.so.5), which every server package brings along."""

from __future__ import annotations

import ctypes
import select
import time
from collections.abc import Sequence
from functools import cache
from types import TracebackType
from typing import Any

from powerprof.database.base import Family, Limits, Login, StatementError
from powerprof.errors import CapabilityError
from powerprof.foreign import printable

_OK = 0  # CONNECTION_OK, libpq-fe.h
_COMMAND_OK, _TUPLES_OK, _EMPTY = 1, 2, 0  # ExecStatusType
_SQLSTATE = ord("C")  # PG_DIAG_SQLSTATE, postgres_ext.h


@cache
def _library() -> ctypes.CDLL:
    try:
        found = ctypes.CDLL("libpq.so.5")
    except OSError as error:
        raise CapabilityError(f"PostgreSQL's client library is not there ({error})", "apt install libpq5") from None
    pointers = ("PQconnectdbParams", "PQgetResult")
    for name in pointers:
        getattr(found, name).restype = ctypes.c_void_p
    texts = ("PQerrorMessage", "PQfname", "PQgetvalue", "PQresultErrorMessage", "PQresultErrorField")
    for name in texts:
        getattr(found, name).restype = ctypes.c_char_p
    for name in ("PQstatus", "PQsocket", "PQerrorMessage", "PQfinish", "PQgetResult", "PQconsumeInput", "PQisBusy"):
        getattr(found, name).argtypes = [ctypes.c_void_p]
    for name in ("PQresultStatus", "PQntuples", "PQnfields", "PQclear", "PQresultErrorMessage"):
        getattr(found, name).argtypes = [ctypes.c_void_p]
    found.PQsendQuery.argtypes = [ctypes.c_void_p, ctypes.c_char_p]
    found.PQfname.argtypes = found.PQresultErrorField.argtypes = [ctypes.c_void_p, ctypes.c_int]
    found.PQgetvalue.argtypes = found.PQgetisnull.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_int]
    return found


class Connection:
    """One connection, as much of Python's database interface as `sql` uses; every value comes as text.

    Raises StatementError where the server refuses it, CapabilityError without the library.
    """

    family: Family = "postgresql"

    def __init__(self, login: Login, patience_s: float, limits: Limits) -> None:
        self._pq = _library()
        self._limits = limits
        self.patience_s = patience_s
        # All that the environment or a service file could say otherwise is said here.
        parameters = {
            "host": str(login.socket.parent) if login.socket else login.host or "127.0.0.1",
            "port": "5432" if login.socket else str(login.port or 5432),
            "user": login.user,
            # One that is empty would be looked for in the home directory.
            "password": login.password or "none",
            "dbname": login.database or "postgres",
            "sslmode": "disable" if login.socket else "prefer",
            "gssencmode": "disable",
            "options": "",
            "client_encoding": "UTF8",
            "application_name": "powerprof",
            "connect_timeout": str(max(2, round(patience_s))),
        }
        names = (ctypes.c_char_p * (len(parameters) + 1))(*(name.encode() for name in parameters), None)
        values = (ctypes.c_char_p * (len(parameters) + 1))(*(value.encode() for value in parameters.values()), None)
        self._handle: int | None = self._pq.PQconnectdbParams(names, values, 0)
        if not self._handle or self._pq.PQstatus(self._handle) != _OK:
            reason = _said(self._pq.PQerrorMessage(self._handle) if self._handle else b"no memory")
            self.close()
            raise StatementError(f"cannot connect to {login.text} ({reason})", None, 0)

    def cursor(self) -> Cursor:
        """What runs statements; one at a time."""
        return Cursor(self)

    def fileno(self) -> int:
        """The socket."""
        return int(self._pq.PQsocket(self._alive()))

    def detach(self) -> int | None:
        """None: the library says good-bye when its object goes."""
        return None

    def close(self) -> None:
        """Say good-bye; does nothing the second time."""
        if self._handle is not None:
            self._pq.PQfinish(self._handle)
            self._handle = None

    _force_close = close

    def __enter__(self) -> Connection:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()

    def _alive(self) -> int:
        if self._handle is None:
            raise StatementError("the connection was closed", None, 0)
        return self._handle

    def ask(self, statement: str) -> tuple[list[str], list[tuple[str | None, ...]]]:
        """Column names and rows of the last result. Raises StatementError."""
        handle = self._alive()
        if not self._pq.PQsendQuery(handle, statement.encode()):
            raise StatementError(_said(self._pq.PQerrorMessage(handle)), None, 0)
        answer: tuple[list[str], list[tuple[str | None, ...]]] = ([], [])
        refused: StatementError | None = None
        deadline_s = time.monotonic() + self.patience_s
        while True:
            self._wait(handle, deadline_s)
            result = self._pq.PQgetResult(handle)
            if not result:
                break
            try:
                status = self._pq.PQresultStatus(result)
                if status == _TUPLES_OK:
                    answer = self._rows(result)
                elif status not in (_COMMAND_OK, _EMPTY):
                    code = self._pq.PQresultErrorField(result, _SQLSTATE)
                    reason = _said(self._pq.PQresultErrorMessage(result))
                    refused = StatementError(f"{reason}{f' [{code.decode()}]' if code else ''}", None, 1)
            finally:
                self._pq.PQclear(result)
        if refused is not None:
            raise refused
        return answer

    def _wait(self, handle: int, deadline_s: float) -> None:
        """Until a result is there: in the kernel, by turns, so that a signal is heard."""
        while self._pq.PQisBusy(handle):
            left_s = deadline_s - time.monotonic()
            if left_s <= 0:
                self.close()
                raise StatementError(f"the server did not answer in {self.patience_s:g} s", None, 0)
            select.select([self._pq.PQsocket(handle)], [], [], left_s)
            if not self._pq.PQconsumeInput(handle):
                reason = _said(self._pq.PQerrorMessage(handle))
                self.close()
                raise StatementError(reason or "the connection was lost", None, 0)

    def _rows(self, result: int) -> tuple[list[str], list[tuple[str | None, ...]]]:
        pq, count, width = self._pq, self._pq.PQntuples(result), self._pq.PQnfields(result)
        if count > self._limits.rows:
            raise StatementError(f"the server's answer is larger than {self._limits.rows:,} rows", None, 0)
        names = [pq.PQfname(result, column).decode("utf-8", "replace") for column in range(width)]

        def value(row: int, column: int) -> str | None:
            if pq.PQgetisnull(result, row, column):
                return None
            return str(pq.PQgetvalue(result, row, column).decode("utf-8", "replace"))

        return names, [tuple(value(row, column) for column in range(width)) for row in range(count)]


class Cursor:
    """The last answer of a connection."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._found: list[tuple[str | None, ...]] = []
        self.description: list[tuple[str]] | None = None

    def execute(self, statement: str, arguments: Sequence[Any] | None = None) -> None:
        """Run it. There are no arguments: a statement with values is written by `dialects`, which quotes them."""
        if arguments:
            raise StatementError("statements with arguments are not for PostgreSQL here", None, 1)
        names, self._found = self._connection.ask(statement)
        self.description = [(name,) for name in names]

    def fetchall(self) -> list[tuple[str | None, ...]]:
        """All rows."""
        return self._found

    def __enter__(self) -> Cursor:
        return self

    def __exit__(self, *_: object) -> None:
        self._found = []


def _said(text: bytes | None) -> str:
    return printable(" ".join((text or b"").decode("utf-8", "replace").split()))[:300].removeprefix("ERROR: ")
