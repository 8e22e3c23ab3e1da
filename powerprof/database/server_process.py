# SPDX-License-Identifier: Apache-2.0
"""The process of a connected server, if it runs on this host."""

from __future__ import annotations

import ipaddress
import os
import re
import socket
from pathlib import Path
from typing import TYPE_CHECKING

from powerprof.database import sql
from powerprof.database.base import Login
from powerprof.database.wire import read_connection_listener
from powerprof.model.identities import Family
from powerprof.system.errors import PowerprofError
from powerprof.system.processes import name_of
from powerprof.system.reader_process import shared
from powerprof.system.server_names import is_mysql_program, is_postgres_program

if TYPE_CHECKING:
    from powerprof.database.base import Sql

_UNKNOWN_PROCESS = -1


def find_server_pid(connection: Sql, login: Login) -> int | None:
    """Return the server's process id; None if it runs elsewhere or cannot be found."""
    if login.socket is not None:
        pid = read_connection_listener(connection)  # systemd under socket activation
        if _is_server(pid, login.family):
            return pid
    else:
        with socket.socket(fileno=os.dup(connection.fileno())) as channel:
            address, port = channel.getpeername()[:2]
        if not _is_local_address(str(address)):
            return None
        owner = _find_listener(int(port))
        if owner is not None:
            # A tunnel or container proxy may listen for a server of another host.
            return owner if _is_server(owner, login.family) else None
    # PostgreSQL shows the place of its pid file only to an administrator.
    return _read_pid_file(connection) if login.family == "mysql" else None


def _is_server(pid: int, family: Family) -> bool:
    is_program = is_postgres_program if family == "postgresql" else is_mysql_program
    return pid > 0 and is_program(name_of(pid))


def _is_local_address(address: str) -> bool:
    """Return whether an address is a loopback address or belongs to an interface of this host."""
    try:
        ip = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return False
    if ip.is_loopback:
        return True
    family = socket.AF_INET6 if ip.version == 6 else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind((address, 0))
        except OSError:
            return False
    return True


def _find_listener(port: int) -> int | None:
    """Return the process that listens on a TCP port of this host; None if it is not visible."""
    import psutil

    listeners = (entry for entry in psutil.net_connections("tcp") if entry.status == psutil.CONN_LISTEN)
    return next((entry.pid for entry in listeners if entry.pid and entry.laddr[1:] == (port,)), None)


def _read_pid_file(connection: Sql) -> int | None:
    """Return the process of the server's pid file if this host has the file and such a process."""
    try:
        name = sql.fetch_scalar(connection, "SELECT @@pid_file")
    except PowerprofError:
        return None
    # The server chose the path. It may lead to files of any process.
    text = (shared().read(_UNKNOWN_PROCESS, Path(str(name)), 64) or b"").decode("latin-1").strip()
    pid = int(text) if re.fullmatch(r"[0-9]{1,9}", text) else 0
    return pid if _is_server(pid, "mysql") else None
