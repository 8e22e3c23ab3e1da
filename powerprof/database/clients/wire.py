# SPDX-License-Identifier: Apache-2.0
"""PyMySQL's connection for servers that nobody vouches for: bounded in time and size, and careful with the password.

PyMySQL believes a server: it waits as long as bytes drip in, keeps every row in memory, and sends the password itself
to whoever asks for it (client/server protocol, "Authentication Method Switch"). Here a statement has a deadline, a
conversation may have one, an answer has a size, and the password leaves as a challenge's answer only: itself it goes
through TLS or a unix socket, and where the plugin is a plain one through TLS whose certificate was verified.
"""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import os
import socket
import ssl
import struct
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from pymysql import _auth, err
from pymysql.connections import Connection
from pymysql.constants import CR
from pymysql.protocol import FieldDescriptorPacket, MysqlPacket

from powerprof.database.clients.base import Limits, Login, StatementError
from powerprof.statements.text import Family
from powerprof.system import files, paths
from powerprof.system.caller import HostUser, known_as
from powerprof.system.closeable import Closeable
from powerprof.system.errors import CapabilityError
from powerprof.system.files import printable, read_fields, try_text, whole
from powerprof.system.reader_process import account_ids, process_of, shared

if TYPE_CHECKING:
    from psycopg.pq.abc import PGconn, PGresult

    from powerprof.database.clients.base import Sql


# The process or account at the other end of a socket: another one may listen at a path or a port than intended.

_INIT = 1


def read_connection_listener(connection: Sql) -> int:
    """As `listener`, of a connection by a unix socket."""
    with socket.socket(fileno=os.dup(connection.fileno())) as channel:
        return read_listener(channel)


def read_listener(channel: socket.socket) -> int:
    """Who called listen() on the other end (SO_PEERCRED, unix(7)); 0 where its namespace hides it from us."""
    pid, _, _ = struct.unpack("3i", channel.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return int(pid)


def check_listener(found: int, pid: int | None) -> None:
    """That the process that was found is `pid`, or one that started it: systemd listens for servers that it
    activates, and a server may begin to listen before it puts itself into the background.

    None: nobody in particular is meant. Raises ConnectionRefusedError.
    """
    if pid is not None and found not in (pid, *_ancestors(pid)):
        raise ConnectionRefusedError(errno.ECONNREFUSED, f"process {found} listens there, not {pid}")


def read_process_account(pid: int) -> int | None:
    """Return the account with which a process opens sockets and files (fsuid); None if it has ended."""
    uids = account_ids(pid)
    return uids[3] if len(uids) == 4 else None


def check_account(channel: socket.socket, pid: int) -> None:
    """Check that the other end of a TCP connection belongs to the account of process `pid` on this host.

    The kernel shows every user the account of each socket, but not its process. Raise ConnectionRefusedError.
    """
    channel.recv(1, socket.MSG_PEEK)  # The server has accepted the connection: until then its account reads 0.
    found, expected = _account_at_other_end(channel), read_process_account(pid)
    if found is None or found != expected:
        owner = "no account of this host" if found is None else f"account {found}"
        raise ConnectionRefusedError(errno.ECONNREFUSED, f"{owner} answers there, not that of process {pid}")


def _account_at_other_end(channel: socket.socket) -> int | None:
    theirs, ours = _as_listed(channel.getpeername()), _as_listed(channel.getsockname())
    for table in ("net/tcp", "net/tcp6"):
        for line in (try_text(paths.procfs() / table) or "").splitlines()[1:]:
            words = line.split()
            if len(words) > 7 and words[1] in theirs and words[2] in ours:
                return whole(words[7])
    return None


def _as_listed(address: tuple[str, int]) -> list[str]:
    """Return an address and port as /proc/net/tcp and tcp6 list it: in words of the host's byte order."""
    ip = ipaddress.ip_address(address[0].partition("%")[0])
    forms = [ip.packed, b"\0" * 10 + b"\xff\xff" + ip.packed] if ip.version == 4 else [ip.packed, ip.packed[12:]]
    return [
        "".join(f"{word:08X}" for word in struct.unpack(f"={len(form) // 4}I", form)) + f":{address[1]:04X}"
        for form in forms
        if ip.version == 4 or len(form) == 16 or ip.ipv4_mapped is not None
    ]


def _ancestors(pid: int) -> list[int]:
    """From its parent up. Whose parent has ended is a child of init, or of a subreaper."""
    found: list[int] = []
    while pid > _INIT and pid not in found[:-1]:
        parent = whole(read_fields(paths.procfs() / str(pid) / "status").get("PPid", ""))
        if not parent:
            break
        found.append(parent)
        pid = parent
    return found


_AUTH: Any = _auth
_CHUNK_BYTES = 64 << 10
_MOST_COLUMNS = 4096  # MySQL and MariaDB allow no more in a table
_PLAIN = ("mysql_clear_password", "dialog")
_HASHED = ("mysql_native_password", "client_ed25519")
_SHA2 = ("caching_sha2_password", "sha256_password")
_REFUSED = "put ssl-ca of the server into --defaults-file, or use an account of another plugin"


# What is overridden has no public name, and no types.
_Connection: Any = Connection


class BoundedConnection(_Connection):  # type: ignore[misc]
    """A connection whose server may be anybody. `patience_s` is how long the next statement may take."""

    family = "mysql"
    _rfile: Any
    _sock: Any

    def __init__(
        self,
        limits: Limits,
        connect_s: float,
        account: HostUser | None = None,
        pid: int | None = None,
        *,
        defer_connect: bool = False,
        **options: Any,
    ) -> None:
        self._limits = limits
        self._account = account
        self._listener = pid
        self.patience_s = limits.answer_s
        self._left_s = limits.waiting_s
        self._received = bytearray()
        self._received_from: Any = None
        self._begin(connect_s)
        plugins = dict.fromkeys(_PLAIN, _Plain) | {"caching_sha2_password": _CachingSha2, "sha256_password": _Sha256}
        # Keys and certificates that an option file names are read here: by who may read them.
        with known_as(account):
            super().__init__(local_infile=False, auth_plugin_map=plugins, defer_connect=True, **options)
        if not defer_connect:
            self.connect()

    def connect(self, sock: Any = None) -> None:
        """Connect, on this host as the login's account: the server asks the kernel who that is (SO_PEERCRED)."""
        if sock is None and self.unix_socket:
            sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                if self._account is None and process_of(Path(self.unix_socket)):
                    sock.close()
                    sock = shared().connect(Path(self.unix_socket))
                    sock.settimeout(self.connect_timeout)
                else:
                    sock.settimeout(self.connect_timeout)
                    with known_as(self._account):
                        sock.connect(self.unix_socket)
                check_listener(read_listener(sock), self._listener)
            except OSError as error:
                sock.close()
                reason = f"Can't connect to MySQL server on {self.unix_socket!r} ({error})"
                raise err.OperationalError(CR.CR_CONN_HOST_ERROR, reason) from error
            except BaseException:
                sock.close()
                raise
            self.host_info, self._secure = "Localhost via UNIX socket", True
        elif sock is None and self._listener is not None:
            sock = self._connect_to_account(self._listener)
        super().connect(sock)

    def _connect_to_account(self, pid: int) -> socket.socket:
        """Return a TCP connection to the account of process `pid`, before anything is sent. Raise OperationalError."""
        try:
            sock = socket.create_connection((self.host, self.port), self.connect_timeout)
            try:
                check_account(sock, pid)
            except BaseException:
                sock.close()
                raise
        except OSError as error:
            reason = f"Can't connect to MySQL server on {self.host!r} ({error})"
            raise err.OperationalError(CR.CR_CONN_HOST_ERROR, reason) from error
        return sock

    @property
    def is_verified(self) -> bool:
        """TLS, and the server's certificate was checked."""
        return isinstance(self._sock, ssl.SSLSocket) and self._sock.context.verify_mode == ssl.CERT_REQUIRED

    @property
    def is_private(self) -> bool:
        """TLS or a unix socket: nobody but the server hears it."""
        return bool(self._secure)

    def fileno(self) -> int:
        """The socket's descriptor. Raises OperationalError where it was given up."""
        if self._sock is None:
            raise err.OperationalError(CR.CR_SERVER_LOST, "a client was closed while it was opened")
        return int(self._sock.fileno())

    def detach(self) -> int | None:
        """A copy of the descriptor, which outlives this object; None under TLS, whose keys are outside the kernel."""
        if isinstance(self._sock, ssl.SSLSocket):
            return None
        copy = os.dup(self.fileno())
        self._force_close()
        return copy

    def close(self) -> None:
        """Also of a connection that was given up: it is closed already."""
        with contextlib.suppress(err.Error):
            super().close()

    def _force_close(self) -> None:
        # PyMySQL's own has a bare `except`, where an interrupt was lost for good: powerprof then ran on to its end.
        rfile, sock = self._rfile, self._sock
        self._rfile = self._sock = None
        for channel in (rfile, sock):
            if channel is not None:
                with contextlib.suppress(Exception):
                    channel.close()

    # What a destructor raises is dropped with a word to sys.unraisablehook, where an interrupt is raised again.
    __del__ = _force_close

    def _begin(self, patience_s: float) -> None:
        self._granted_s = min(patience_s, self._left_s)
        self._until_s = time.monotonic() + self._granted_s
        self._left_bytes = self._limits.answer_bytes
        self._left_columns = _MOST_COLUMNS
        # A packet is read in two parts; beside the rows there are columns and their ends.
        self._left_reads = 2 * (self._limits.rows + _MOST_COLUMNS + 8)

    def _execute_command(self, command: int, sql: Any) -> None:
        self._begin(self.patience_s)
        super()._execute_command(command, sql)

    def _read_packet(self, packet_type: Any = MysqlPacket) -> Any:
        if packet_type is FieldDescriptorPacket:
            self._left_columns -= 1
            if self._left_columns < 0:
                self._refuse(CR.CR_NET_PACKET_TOO_LARGE, f"the server's answer has more than {_MOST_COLUMNS} columns")
        return super()._read_packet(packet_type)

    def _read_bytes(self, num_bytes: int) -> bytes:
        self._left_bytes -= num_bytes
        self._left_reads -= 1
        if self._left_bytes < 0 or self._left_reads < 0:
            most = f"{self._limits.answer_bytes >> 20} MiB" if self._left_bytes < 0 else f"{self._limits.rows:,} rows"
            self._refuse(CR.CR_NET_PACKET_TOO_LARGE, f"the server's answer is larger than {most}")
        if self._sock is not self._received_from:
            if self._received:
                # What came before TLS began is not from the peer of TLS.
                self._refuse(CR.CR_SSL_CONNECTION_ERROR, "the server sent data before TLS was established")
            self._received_from = self._sock
        while len(self._received) < num_bytes:
            self._receive()
        data = bytes(self._received[:num_bytes])
        del self._received[:num_bytes]
        return data

    def _receive(self) -> None:
        began_s = time.monotonic()
        left_s = self._until_s - began_s
        if left_s <= 0 or self._sock is None:
            self._refuse(CR.CR_SERVER_LOST, f"the server did not answer in {self._limits_text()}")
        self._sock.settimeout(left_s)
        self._current_timeout = left_s
        try:
            part = self._sock.recv(_CHUNK_BYTES)
        except TimeoutError:
            return
        except OSError as error:
            self._refuse(CR.CR_SERVER_LOST, f"Lost connection to MySQL server during query ({error})")
        finally:
            self._left_s -= time.monotonic() - began_s
        if not part:
            self._refuse(CR.CR_SERVER_LOST, "Lost connection to MySQL server during query")
        self._received += part

    def _limits_text(self) -> str:
        return f"{self._limits.waiting_s:g} s in all" if self._left_s <= 0 else f"{self._granted_s:.0f} s"

    def _refuse(self, number: int, reason: str) -> NoReturn:
        """Close: what would come next belongs to an answer that was given up."""
        self._received.clear()
        self._force_close()
        raise err.OperationalError(number, reason)

    def _process_auth(self, plugin_name: bytes, auth_packet: Any, handler: Any = None) -> Any:
        if plugin_name.decode("ascii", "replace") not in (*_PLAIN, *_HASHED, *_SHA2):
            # mysql_old_password among them: its hash is broken in seconds.
            raise err.OperationalError(
                CR.CR_AUTH_PLUGIN_CANNOT_LOAD,
                f"the server asks for the authentication plugin {plugin_name.decode('ascii', 'replace')[:40]}",
            )
        return super()._process_auth(plugin_name, auth_packet, handler)


class _Plugin:
    def __init__(self, connection: BoundedConnection) -> None:
        self.connection = connection

    def refuse(self) -> NoReturn:
        raise err.OperationalError(
            CR.CR_AUTH_PLUGIN_ERR, f"the server asks for the password itself, which anybody could read: {_REFUSED}"
        )


class _Plain(_Plugin):
    """The password as it is: only to a server whose certificate was verified."""

    def authenticate(self, packet: Any) -> Any:
        if not self.connection.is_verified:
            self.refuse()
        self.connection.write_packet(bytes(self.connection.password) + b"\0")
        answer = self.connection._read_packet()
        answer.check_error()
        return answer


class _CachingSha2(_Plugin):
    """A hash; the password itself where the server has forgotten it. Never by a key that the server chooses."""

    def authenticate(self, packet: Any) -> Any:
        if packet.is_extra_auth_data() and packet.get_all_data()[1:2] == b"\x04":
            self._itself()
        if packet.is_auth_switch_request() and not self.connection.is_private and self.connection.password:
            return self._switched(packet)
        return _AUTH.caching_sha2_password_auth(self.connection, packet)

    def _switched(self, packet: Any) -> Any:
        salt = packet.read_all().removesuffix(b"\0")
        self.connection.write_packet(_AUTH.scramble_caching_sha2(self.connection.password, salt))
        # Its answer comes back here as extra data.
        return self.connection._read_packet()

    def _itself(self) -> None:
        if not self.connection.is_private:
            self.refuse()


class _Sha256(_Plugin):
    """The password itself, always."""

    def authenticate(self, packet: Any) -> Any:
        if not self.connection.is_private and self.connection.password:
            self.refuse()
        return _AUTH.sha256_password_auth(self.connection, packet)


# Connections to PostgreSQL: psycopg's door to libpq, PostgreSQL's own client library, which every server brings along.
#
# Its higher floor has no limit to what an answer may hold, and no time in which it has to come.

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


class PostgresConnection(Closeable):
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
                check_listener(read_connection_listener(self), login.pid)
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

    def __init__(self, connection: PostgresConnection) -> None:
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
