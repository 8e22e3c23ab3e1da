# SPDX-License-Identifier: Apache-2.0
"""Recognise a PostgreSQL server whose address was given as one of MariaDB or MySQL."""

from __future__ import annotations

import socket
import struct

from powerprof.database.base import Login
from powerprof.database.wire import connect_socket

# SSLRequest: its length and code (PostgreSQL, Message Formats). The answer is one byte.
_REQUEST = struct.pack(">II", 8, 80877103)
_ANSWERS = (b"S", b"N")
_PATIENCE_S = 1.0


def is_postgresql(login: Login) -> bool:
    """Return whether a PostgreSQL server listens there. MariaDB and MySQL speak first, and PostgreSQL waits."""
    try:
        with _connect(login) as channel:
            channel.settimeout(_PATIENCE_S)
            channel.sendall(_REQUEST)
            return channel.recv(2) in _ANSWERS
    except OSError:
        return False


def _connect(login: Login) -> socket.socket:
    if login.socket is not None:
        return connect_socket(login.socket, login.account, login.pid, _PATIENCE_S)
    return socket.create_connection((login.host or "127.0.0.1", login.tcp_port), _PATIENCE_S)
