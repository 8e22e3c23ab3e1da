# SPDX-License-Identifier: Apache-2.0
"""PyMySQL's connection for servers that nobody vouches for: bounded in time and size, and careful with the password.

PyMySQL believes a server: it waits as long as bytes drip in, keeps every row in memory, and sends the password itself
to whoever asks for it (client/server protocol, "Authentication Method Switch"). Here a statement has a deadline, a
conversation may have one, an answer has a size, and the password leaves as a challenge's answer only: itself it goes
through TLS or a unix socket, and where the plugin is a plain one through TLS whose certificate was verified.
"""

from __future__ import annotations

import contextlib
import os
import socket
import ssl
import time
from pathlib import Path
from typing import Any, NoReturn

from pymysql import _auth, err
from pymysql.connections import Connection
from pymysql.constants import CR
from pymysql.protocol import FieldDescriptorPacket, MysqlPacket

from powerprof.caller import HostUser, known_as
from powerprof.database.clients.base import Limits
from powerprof.database.clients.peers import check_account, check_listener, listener
from powerprof.processes.reader_process import process_of, shared

_AUTH: Any = _auth
_CHUNK_BYTES = 64 << 10
_MOST_COLUMNS = 4096  # MySQL and MariaDB allow no more in a table
_PLAIN = ("mysql_clear_password", "dialog")
_HASHED = ("mysql_native_password", "client_ed25519")
_SHA2 = ("caching_sha2_password", "sha256_password")
_REFUSED = "put ssl-ca of the server into --defaults-file, or use an account of another plugin"


# What is overridden has no public name, and no types.
_Connection: Any = Connection


class DoubtingConnection(_Connection):  # type: ignore[misc]
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
                check_listener(listener(sock), self._listener)
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
    def __init__(self, connection: DoubtingConnection) -> None:
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
