# SPDX-License-Identifier: Apache-2.0
"""Connections to untrusted servers of MySQL and MariaDB, bounded in time and size, and careful with the password.

PyMySQL trusts a server. It waits as long as bytes arrive, keeps every row in memory, and sends the password to any
server that requests it (client/server protocol, "Authentication Method Switch"). Here each statement has a deadline, a
conversation may have one, and an answer has a maximum size. The password is sent only as the answer to a challenge.
Itself it is sent only through TLS or a unix socket, and for a plain plugin only through TLS with a verified
certificate.
"""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import os
import socket
import ssl
import struct
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from pymysql import _auth, err
from pymysql.connections import Connection
from pymysql.constants import CR
from pymysql.protocol import FieldDescriptorPacket, MysqlPacket

from powerprof.database.base import Limits
from powerprof.system import paths
from powerprof.system.acting import connecting_as
from powerprof.system.caller import HostUser
from powerprof.system.errors import reason_of
from powerprof.system.files import try_text
from powerprof.system.foreign_text import whole
from powerprof.system.reader_process import account_ids, process_of, shared
from powerprof.system.tasks import find_stop, parent_of

if TYPE_CHECKING:
    from powerprof.database.base import Sql


def read_connection_listener(connection: Sql) -> int:
    """Return the listener of a connection through a unix socket, as `read_listener`."""
    with socket.socket(fileno=os.dup(connection.fileno())) as channel:
        return read_listener(channel)


def read_listener(channel: socket.socket) -> int:
    """Return the process that called listen() on the other end (SO_PEERCRED, unix(7)); 0 if its namespace hides it."""
    pid, _, _ = struct.unpack("3i", channel.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return int(pid)


def check_listener(listener_pid: int, pid: int | None) -> None:
    """Raise ConnectionRefusedError unless the listener is process `pid` or one of its ancestors; None accepts any.

    systemd listens for servers that it activates, and a server may listen before it forks into the background.
    """
    if pid is None or listener_pid == pid:
        return
    ancestor = pid
    while ancestor and ancestor != listener_pid:
        ancestor = parent_of(ancestor)
    if not ancestor:
        raise ConnectionRefusedError(errno.ECONNREFUSED, f"process {listener_pid} listens there, not {pid}")


def connect_socket(path: Path, account: HostUser | None, pid: int | None, patience_s: float) -> socket.socket:
    """Return a connection to a unix socket, as `account`, before anything is sent. Raise OSError.

    A path of another process is resolved by the reader process. `pid` must listen there; None accepts any.
    """
    if account is None and process_of(path):
        channel = shared().connect(path)
    else:
        channel = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        channel.settimeout(patience_s)
        if account is not None or not process_of(path):
            with connecting_as(account):
                channel.connect(str(path))
        check_listener(read_listener(channel), pid)
    except BaseException:
        channel.close()
        raise
    return channel


def explain_silence(pid: int | None) -> str | None:
    """Return the reason if the process of a server does not answer because it was stopped."""
    stop = find_stop(pid) if pid is not None else None
    return None if stop is None else f"the server was {stop.how}"


def read_process_account(pid: int) -> int | None:
    """Return the account with which a process opens sockets and files (fsuid); None if it has ended."""
    uids = account_ids(pid)
    return uids[3] if len(uids) == 4 else None


def check_account(channel: socket.socket, pid: int) -> None:
    """Raise ConnectionRefusedError unless the other end of a TCP connection belongs to the account of process `pid`.

    The kernel shows the account of each socket to every user, but not its process.
    """
    channel.recv(1, socket.MSG_PEEK)  # The server has accepted the connection: until then its account reads 0.
    account = _read_peer_account(channel)
    if account is None or account != read_process_account(pid):
        owner = "no account of this host" if account is None else f"account {account}"
        raise ConnectionRefusedError(errno.ECONNREFUSED, f"{owner} answers there, not that of process {pid}")


def _read_peer_account(channel: socket.socket) -> int | None:
    theirs, ours = _list_forms(channel.getpeername()), _list_forms(channel.getsockname())
    for table in ("net/tcp", "net/tcp6"):
        for line in (try_text(paths.procfs() / table) or "").splitlines()[1:]:
            words = line.split()
            if len(words) > 7 and words[1] in theirs and words[2] in ours:
                return whole(words[7])
    return None


def _list_forms(address: tuple[str, int]) -> list[str]:
    """Return the forms of an address and port in /proc/net/tcp and tcp6: words in the host's byte order."""
    ip = ipaddress.ip_address(address[0].partition("%")[0])
    forms = [ip.packed, b"\0" * 10 + b"\xff\xff" + ip.packed] if ip.version == 4 else [ip.packed, ip.packed[12:]]
    return [
        "".join(f"{word:08X}" for word in struct.unpack(f"={len(form) // 4}I", form)) + f":{address[1]:04X}"
        for form in forms
        if ip.version == 4 or len(form) == 16 or ip.ipv4_mapped is not None
    ]


_AUTH: Any = _auth
_CHUNK_BYTES = 64 << 10
# A silent server is looked at this often: a stopped one never answers.
LOOK_S = 1.0
_MAX_COLUMNS = 4096  # MySQL and MariaDB allow no more in a table
_CA_ADVICE = "put ssl-ca of the server into --defaults-file, or use an account of another plugin"


# The overridden methods are private and have no types.
_Connection: Any = Connection


class BoundedConnection(_Connection):  # type: ignore[misc]
    """A connection to an untrusted server. `patience_s` is the time limit of the next statement.

    PyMySQL limits the time of each part that arrives, but not of a statement, and no rows, columns or bytes. Hence the
    private methods: `_execute_command` begins a statement's limits, and `_read_bytes` keeps them. `_read_packet` counts
    columns: a server that sent them without end took 6 s and 144 MiB to be refused, now 0.2 s and 4 MiB.
    """

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
        self._start_answer(connect_s)
        # Keys and certificates of an option file are read with the account's rights.
        with connecting_as(account):
            super().__init__(local_infile=False, auth_plugin_map=_PLUGINS, defer_connect=True, **options)
        if not defer_connect:
            self.connect()

    def connect(self, sock: Any = None) -> None:
        """Connect as the login's account on this host: the server reads it from the kernel (SO_PEERCRED)."""
        try:
            if sock is None and self.unix_socket:
                sock = connect_socket(Path(self.unix_socket), self._account, self._listener, self.connect_timeout)
                self.host_info, self._secure = "Localhost via UNIX socket", True
            elif sock is None and self._listener is not None:
                sock = self._connect_to_account(self._listener)
        except OSError as error:
            reason = f"Can't connect to MySQL server on {self.unix_socket or self.host!r} ({reason_of(error)})"
            raise err.OperationalError(CR.CR_CONN_HOST_ERROR, reason) from error
        super().connect(sock)

    def _connect_to_account(self, pid: int) -> socket.socket:
        """Return a TCP connection to the account of process `pid`, before anything is sent. Raise OSError."""
        sock = socket.create_connection((self.host, self.port), self.connect_timeout)
        try:
            check_account(sock, pid)
        except BaseException:
            sock.close()
            raise
        return sock

    @property
    def is_verified(self) -> bool:
        """Whether the connection uses TLS with a verified certificate."""
        return isinstance(self._sock, ssl.SSLSocket) and self._sock.context.verify_mode == ssl.CERT_REQUIRED

    @property
    def is_private(self) -> bool:
        """Whether the connection uses TLS or a unix socket, so that only the server receives its data."""
        return bool(self._secure)

    def fileno(self) -> int:
        """Return the descriptor of the socket. Raise OperationalError if the connection was closed."""
        if self._sock is None:
            raise err.OperationalError(CR.CR_SERVER_LOST, "a client was closed while it was opened")
        return int(self._sock.fileno())

    def detach(self) -> int | None:
        """Return a copy of the descriptor that outlives this object; None under TLS, whose keys it lacks."""
        if isinstance(self._sock, ssl.SSLSocket):
            return None
        copy = os.dup(self.fileno())
        self._force_close()
        return copy

    def close(self) -> None:
        """Close the connection, even after an error has closed it."""
        with contextlib.suppress(err.Error):
            super().close()

    def _force_close(self) -> None:
        # PyMySQL's version has a bare `except` that swallowed interrupts: powerprof then ran to its end.
        rfile, sock = self._rfile, self._sock
        self._rfile = self._sock = None
        for channel in (rfile, sock):
            if channel is not None:
                with contextlib.suppress(Exception):
                    channel.close()

    # Exceptions of a destructor go to sys.unraisablehook, which raises an interrupt again.
    __del__ = _force_close

    def _start_answer(self, patience_s: float) -> None:
        self._granted_s = min(patience_s, self._left_s)
        self._is_last = self._left_s < patience_s
        self._until_s = time.monotonic() + self._granted_s
        self._left_bytes = self._limits.answer_bytes
        self._left_columns = _MAX_COLUMNS
        # A packet is read in two parts. Besides rows there are columns and end markers.
        self._left_reads = 2 * (self._limits.rows + _MAX_COLUMNS + 8)

    def _execute_command(self, command: int, sql: Any) -> None:
        self._start_answer(self.patience_s)
        super()._execute_command(command, sql)

    def _read_packet(self, packet_type: Any = MysqlPacket) -> Any:
        if packet_type is FieldDescriptorPacket:
            self._left_columns -= 1
            if self._left_columns < 0:
                self._refuse(CR.CR_NET_PACKET_TOO_LARGE, f"the server's answer has more than {_MAX_COLUMNS} columns")
        return super()._read_packet(packet_type)

    def _read_bytes(self, num_bytes: int) -> bytes:
        self._left_bytes -= num_bytes
        self._left_reads -= 1
        if self._left_bytes < 0 or self._left_reads < 0:
            most = f"{self._limits.answer_bytes >> 20} MiB" if self._left_bytes < 0 else f"{self._limits.rows:,} rows"
            self._refuse(CR.CR_NET_PACKET_TOO_LARGE, f"the server's answer is larger than {most}")
        if self._sock is not self._received_from:
            if self._received:
                # Data before TLS may come from another sender.
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
            self._refuse(CR.CR_SERVER_LOST, f"the server did not answer in {self._describe_limit()}")
        self._sock.settimeout(min(left_s, LOOK_S))
        self._current_timeout = left_s
        try:
            part = self._sock.recv(_CHUNK_BYTES)
        except TimeoutError:
            if (reason := explain_silence(self._listener)) is not None:
                self._refuse(CR.CR_SERVER_LOST, reason)
            return
        except OSError as error:
            self._refuse(CR.CR_SERVER_LOST, f"the connection to the server broke ({reason_of(error)})")
        finally:
            self._left_s -= time.monotonic() - began_s
        if not part:
            self._refuse(CR.CR_SERVER_LOST, "the server closed the connection")
        self._received += part

    def _describe_limit(self) -> str:
        return f"{self._limits.waiting_s:g} s in all" if self._is_last else f"{self._granted_s:.0f} s"

    def _refuse(self, number: int, reason: str) -> NoReturn:
        """Close the connection and raise: further data would belong to the abandoned answer."""
        self._received.clear()
        self._force_close()
        raise err.OperationalError(number, reason)


class _Plugin:
    def __init__(self, connection: BoundedConnection) -> None:
        self.connection = connection

    def refuse(self) -> NoReturn:
        raise err.OperationalError(
            CR.CR_AUTH_PLUGIN_ERR, f"the server asks for the password itself, which anybody could read: {_CA_ADVICE}"
        )


class _Plain(_Plugin):
    """A plugin that sends the password itself, only to a server with a verified certificate."""

    def authenticate(self, packet: Any) -> Any:
        if not self.connection.is_verified:
            self.refuse()
        self.connection.write_packet(bytes(self.connection.password) + b"\0")
        answer = self.connection._read_packet()
        answer.check_error()
        return answer


class _CachingSha2(_Plugin):
    """A plugin that sends a hash, or the password itself if the server has no cached hash.

    It never uses the server's key, for which PyMySQL's function asks within a switch of plugins.
    """

    def authenticate(self, packet: Any) -> Any:
        connection = self.connection
        if not connection.is_private and connection.password:
            if packet.is_extra_auth_data() and packet.get_all_data()[1:2] == b"\x04":
                self.refuse()
            if packet.is_auth_switch_request():
                salt = packet.read_all().removesuffix(b"\0")
                connection.write_packet(_AUTH.scramble_caching_sha2(connection.password, salt))
                # The server's answer is passed to this plugin as extra data.
                return connection._read_packet()
        return _AUTH.caching_sha2_password_auth(connection, packet)


class _Sha256(_Plugin):
    """A plugin that always sends the password itself."""

    def authenticate(self, packet: Any) -> Any:
        if not self.connection.is_private and self.connection.password:
            self.refuse()
        return _AUTH.sha256_password_auth(self.connection, packet)


def _refuse_old_password(_: BoundedConnection) -> NoReturn:
    """Refuse a hash that is broken in seconds. PyMySQL names the plugin and lacks it."""
    raise err.OperationalError(CR.CR_AUTH_PLUGIN_CANNOT_LOAD, "the server asks for the plugin mysql_old_password")


# PyMySQL itself has mysql_native_password and client_ed25519, and refuses all others.
_PLUGINS = {
    "mysql_clear_password": _Plain,
    "dialog": _Plain,
    "caching_sha2_password": _CachingSha2,
    "sha256_password": _Sha256,
    "mysql_old_password": _refuse_old_password,
}
