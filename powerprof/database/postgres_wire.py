# SPDX-License-Identifier: Apache-2.0
"""Connections to untrusted servers of PostgreSQL, bounded in time and size.

libpq keeps an answer whole, however large the server makes it, and allocates what a message announces. It therefore
talks to one end of a socket pair, and `_Relay` passes on at most the bytes of an answer.
"""

from __future__ import annotations

import os
import re
import select
import socket
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from powerprof.database.base import Limits, Login, StatementError
from powerprof.database.wire import LOOK_S, connect_socket, explain_silence
from powerprof.model.identities import Family
from powerprof.system.closeable import Closeable
from powerprof.system.errors import CapabilityError, reason_of
from powerprof.system.foreign_text import printable

if TYPE_CHECKING:
    from psycopg.pq.abc import PGconn, PGresult

# ALTER DATABASE and ALTER ROLE set session defaults, and a database's owner may use the former. Start-up options take
# precedence: names resolve in pg_catalog alone, the role stays that of the login, and no library is loaded.
_OWN_SESSION = "-c role=none -c local_preload_libraries="
SAFE_OPTIONS = f"-c search_path= {_OWN_SESSION}"
# For the statements of a workload, in a database of powerprof (`sql`, create_schema).
WORKLOAD_OPTIONS = f"-c search_path=public {_OWN_SESSION}"
# Event triggers can run at a login in PostgreSQL 17 and later. Only a superuser may set this option.
NO_LOGIN_TRIGGERS = f"{SAFE_OPTIONS} -c event_triggers=off"
_LOG = "the server's error log says why"
_RUNNING = "does it run?"
# libpq's words for an answer of another protocol.
_OTHER_PROTOCOL = re.compile("received invalid response to SSL negotiation|expected authentication request from server")
_NO_ROLE = re.compile('role ".*" does not exist')
# A server that starts, stops or recovers answers nobody.
_REFUSED = re.compile("FATAL: +(?!the database system is )")
_SQLSTATE = ord("C")  # PG_DIAG_SQLSTATE, postgres_ext.h
_CHUNK_BYTES = 64 << 10
_SHORT_LOOK_S = 60.0
# libpq names our own socket.
_PLACE = re.compile(r"connection to server (?:at|on) .*? failed: ")
# libpq connects again without TLS, or with it, where the server refused the other.
_MOST_CONNECTS = 4


class _TooLargeError(Exception):
    """The server sent more than the bytes of an answer."""


class _Relay(Closeable):
    """The bytes between libpq and a server. Neither end is read before the other has taken what was read."""

    def __init__(self, server: socket.socket, library: int) -> None:
        """Connect a server to libpq's descriptor `library`, whose connection is replaced."""
        self.server = server
        self._ours, theirs = socket.socketpair()
        self._library = library
        self._to_server = self._to_library = b""
        self._has_ended = False
        self.left_bytes = 0
        for end in (server, self._ours, theirs):
            end.setblocking(False)
        with theirs:
            os.dup2(theirs.fileno(), library, inheritable=False)

    def pass_on(self, wait_s: float) -> bool:
        """Wait until libpq can go on or one end can be served, and serve it. Return whether that came.

        After the server's end, libpq reads what is left and the end. Raise _TooLargeError.
        """
        poll = select.poll()
        if not self._has_ended:
            poll.register(self.server, select.POLLOUT if self._to_server else 0 if self._to_library else select.POLLIN)
        poll.register(self._ours, select.POLLOUT if self._to_library else 0 if self._to_server else select.POLLIN)
        poll.register(self._library, select.POLLIN)
        if not poll.poll(max(wait_s, 0.0) * 1000):
            return False
        with suppress(BlockingIOError):
            self._to_library = self._to_library or self._receive()
            self._to_library = self._to_library[self._ours.send(self._to_library) :]
            if self._has_ended and not self._to_library:
                self._ours.shutdown(socket.SHUT_WR)
        with suppress(BlockingIOError):
            self._to_server = self._to_server or self._ours.recv(_CHUNK_BYTES)
            try:
                self._to_server = self._to_server[self.server.send(self._to_server) :]
            except ConnectionError:
                self._to_server = b""
        return True

    def _receive(self) -> bytes:
        """Return bytes of the server, empty at its end. Raise BlockingIOError, _TooLargeError."""
        if self._has_ended:
            raise BlockingIOError
        try:
            part = self.server.recv(_CHUNK_BYTES)
        except ConnectionError:
            part = b""
        self._has_ended = not part
        self.left_bytes -= len(part)
        if self.left_bytes < 0:
            raise _TooLargeError
        return part

    def close(self) -> None:
        """Pass on libpq's farewell, and close all ends."""
        with suppress(OSError):
            self.server.send(self._ours.recv(_CHUNK_BYTES))
        for end in (self.server, self._ours):
            end.close()


@contextmanager
def _short_folder() -> Iterator[str]:
    """Return a temporary folder by a name that leaves room for a socket's (107 bytes) and has no comma (libpq)."""
    with tempfile.TemporaryDirectory() as folder:
        handle = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            yield f"/proc/self/fd/{handle}"
        finally:
            os.close(handle)


class PostgresConnection(Closeable):
    """A connection to PostgreSQL with the part of Python's database interface that `sql` uses. Every value is text.

    It uses psycopg's interface to libpq. psycopg's own connections limit neither the size nor the time of an answer.
    Raises StatementError if the server refuses, CapabilityError without the library.
    """

    family: Family = "postgresql"

    def __init__(self, login: Login, patience_s: float, limits: Limits) -> None:
        try:
            from psycopg import conninfo, pq
        except ImportError as error:
            raise CapabilityError(f"PostgreSQL's client library is not there ({error})", "apt install libpq5") from None
        self._limits = limits
        self.patience_s = patience_s
        self._left_s = limits.waiting_s
        self._login = login
        self._relay: _Relay | None = None
        self._handle: PGconn | None = None
        # A server can ask for Kerberos. libpq would open a file in /tmp, which can be a pipe of another account.
        os.environ["KRB5CCNAME"] = "MEMORY:"
        # libpq begins with a socket of ours, of the same kind: TLS depends on it.
        kind = socket.AF_UNIX if login.socket is not None else socket.AF_INET
        try:
            with socket.socket(kind) as listening:
                # libpq connects at once, and does not connect again through a unix socket without TLS. A folder that
                # lasted as long as the answers of the server would stay after a SIGKILL.
                with _short_folder() as folder:
                    listening.bind(f"{folder}/.s.PGSQL.5432" if login.socket is not None else ("127.0.0.1", 0))
                    listening.listen(_MOST_CONNECTS)
                    place = {"host": folder, "port": "5432"}
                    if login.socket is None:
                        port = listening.getsockname()[1]
                        place = {"host": login.host or "127.0.0.1", "hostaddr": "127.0.0.1", "port": str(port)}
                    words = conninfo.make_conninfo("", **self._parameters() | place)
                    self._handle = pq.PGconn.connect_start(words.encode())
                self._shake_hands(self._handle, time.monotonic() + patience_s)
        except BaseException:
            self.close()
            raise

    def _parameters(self) -> dict[str, str]:
        """Set every parameter that the environment or a service file could set otherwise."""
        login = self._login
        return {
            "user": login.user,
            # libpq would search the home directory for an empty password.
            "password": login.password or "none",
            "dbname": login.database or "postgres",
            "sslmode": "disable" if login.socket else "prefer",
            "gssencmode": "disable",
            "options": f"{self._session_options()}{self._timeout_option()}",
            "client_encoding": "UTF8",
            "application_name": "powerprof",
            "connect_timeout": str(max(2, round(self.patience_s))),
        }

    def _session_options(self) -> str:
        return SAFE_OPTIONS if self._login.session_options is None else self._login.session_options

    def _timeout_option(self) -> str:
        """Return the option with which the server ends a statement that a short look no longer waits for."""
        waiting_s = self._limits.waiting_s
        return f" -c statement_timeout={round(1000 * waiting_s)}" if waiting_s <= _SHORT_LOOK_S else ""

    def _shake_hands(self, handle: PGconn, end_s: float) -> None:
        from psycopg import pq

        inode, connects = 0, 0
        while handle.status != pq.ConnStatus.BAD:
            if os.fstat(handle.socket).st_ino != inode:
                connects += 1
                if connects > _MOST_CONNECTS:
                    raise self._unreachable("it ends each connection")
                relay = self._connect(handle.socket, end_s)
                inode = os.fstat(handle.socket).st_ino
            state = handle.connect_poll()
            if state == pq.PollingStatus.OK:
                handle.nonblocking = 1
                return
            if state == pq.PollingStatus.FAILED:
                break
            try:
                left_s = min(LOOK_S, end_s - time.monotonic())
                served = relay.pass_on(left_s if state == pq.PollingStatus.READING else 0.0)
            except _TooLargeError:
                raise self._unreachable(f"its answer is larger than {self._most}") from None
            if not served and (reason := explain_silence(self._login.pid)) is not None:
                raise self._unreachable(reason)
            if not served and time.monotonic() >= end_s:
                raise self._unreachable("it does not answer")
        reason, hint = _clean_message(handle.error_message), "does it run, and let this account in?"
        if _OTHER_PROTOCOL.search(reason):
            reason, hint = "it does not speak PostgreSQL's protocol", "is it MariaDB or MySQL? mysql://user@host:port/"
        elif _NO_ROLE.search(reason):
            hint = f'to let it in: CREATE ROLE "{self._login.user}" LOGIN IN ROLE pg_monitor'
        number = 1 if _REFUSED.match(reason) else 0
        raise StatementError(f"cannot connect to {self._login.text} ({reason})", hint, number)

    def _connect(self, library: int, end_s: float) -> _Relay:
        """Connect to the server, whose listener is compared before anything is sent. Raise StatementError."""
        login, left_s = self._login, max(end_s - time.monotonic(), 0.001)
        try:
            if login.socket is not None:
                server = connect_socket(login.socket, login.account, login.pid, left_s)
            else:
                server = socket.create_connection((login.host or "127.0.0.1", login.tcp_port), left_s)
        except OSError as error:
            raise self._unreachable(reason_of(error)) from None
        if self._relay is not None:
            self._relay.close()
        self._relay = _Relay(server, library)
        self._relay.left_bytes = self._limits.answer_bytes
        return self._relay

    @property
    def _most(self) -> str:
        return f"{self._limits.answer_bytes >> 20} MiB"

    def _unreachable(self, reason: str) -> StatementError:
        return StatementError(f"cannot connect to {self._login.text} ({reason})", _RUNNING, 0)

    def cursor(self) -> Cursor:
        """Return a cursor; one statement at a time."""
        return Cursor(self)

    def fileno(self) -> int:
        """Return the descriptor of the server's socket."""
        return self._open_handle()[1].server.fileno()

    def detach(self) -> int | None:
        """Return a copy of the descriptor that outlives this object; None under TLS, whose keys it lacks."""
        handle, relay = self._open_handle()
        if handle.ssl_in_use:
            return None
        copy = os.dup(relay.server.fileno())
        relay.server.close()  # before libpq can send its farewell
        self.close()
        return copy

    def close(self) -> None:
        """Close the connection. A second call does nothing."""
        handle, self._handle = self._handle, None
        relay, self._relay = self._relay, None
        if handle is not None:
            handle.finish()
        if relay is not None:
            relay.close()

    _force_close = close

    def _open_handle(self) -> tuple[PGconn, _Relay]:
        if self._handle is None or self._relay is None:
            raise StatementError("the connection was closed", _LOG, 0)
        return self._handle, self._relay

    def run(self, statement: str) -> tuple[list[str], list[tuple[str | None, ...]]]:
        """Return column names and rows of the last result. Raise StatementError."""
        from psycopg import pq
        from psycopg.errors import OperationalError

        handle, relay = self._open_handle()
        answer: tuple[list[str], list[tuple[str | None, ...]]] = ([], [])
        refused: StatementError | None = None
        relay.left_bytes = self._limits.answer_bytes
        began_s = time.monotonic()
        end_s = began_s + min(self.patience_s, self._left_s)
        try:
            handle.send_query(statement.encode())
            while result := self._wait_for_result(handle, relay, end_s):
                if result.status == pq.ExecStatus.TUPLES_OK:
                    answer = self._read_rows(result)
                elif result.status in (pq.ExecStatus.COPY_IN, pq.ExecStatus.COPY_OUT, pq.ExecStatus.COPY_BOTH):
                    # libpq would return it again and again.
                    self.close()
                    raise StatementError("the server begins a copy of data, which nobody asked for", None, 0)
                elif result.status not in (pq.ExecStatus.COMMAND_OK, pq.ExecStatus.EMPTY_QUERY):
                    code, reason = result.error_field(_SQLSTATE), _clean_message(result.error_message)
                    refused = StatementError(f"{reason}{f' [{code.decode()}]' if code else ''}", None, 1)
        except OperationalError as error:
            self.close()
            raise StatementError(_clean_message(str(error).encode()) or "the connection was lost", _LOG, 0) from None
        finally:
            self._left_s -= time.monotonic() - began_s
        if refused is not None:
            raise refused
        return answer

    def _wait_for_result(self, handle: PGconn, relay: _Relay, end_s: float) -> PGresult | None:
        """Return the next result. The wait returns to Python now and then, so that signals are handled."""
        while handle.flush() or handle.is_busy():
            try:
                is_served = relay.pass_on(min(LOOK_S, end_s - time.monotonic()))
            except _TooLargeError:
                self.close()
                raise StatementError(f"the server's answer is larger than {self._most}", None, 0) from None
            reason = None if is_served else explain_silence(self._login.pid)
            if not is_served and reason is None and time.monotonic() >= end_s:
                reason = f"the server did not answer in {self.patience_s:g} s"
            if reason is not None:
                self.close()
                raise StatementError(reason, _LOG, 0)
            handle.consume_input()
        return handle.get_result()

    def _read_rows(self, result: PGresult) -> tuple[list[str], list[tuple[str | None, ...]]]:
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

    def __init__(self, connection: PostgresConnection) -> None:
        self._connection = connection
        self._rows: list[tuple[str | None, ...]] = []
        self.description: list[tuple[str]] | None = None

    def execute(self, statement: str, arguments: Sequence[Any] | None = None) -> None:
        """Run a statement without arguments. `sql` writes and quotes the values of statements for PostgreSQL."""
        if arguments:
            raise StatementError("statements with arguments are not for PostgreSQL here", None, 1)
        names, self._rows = self._connection.run(statement)
        self.description = [(name,) for name in names]

    def fetchall(self) -> list[tuple[str | None, ...]]:
        """Return all rows."""
        return self._rows

    def __enter__(self) -> Cursor:
        return self

    def __exit__(self, *_: object) -> None:
        self._rows = []


def _clean_message(text: bytes | None) -> str:
    words = _PLACE.sub("", " ".join((text or b"").decode("utf-8", "replace").split()))
    return printable(words)[:300].removeprefix("ERROR: ")
