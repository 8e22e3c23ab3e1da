# SPDX-License-Identifier: Apache-2.0
"""Which process of this host is the server at the other end of a connection."""

from __future__ import annotations

import ipaddress
import re
import socket
from pathlib import Path
from typing import TYPE_CHECKING

from powerprof import files, paths
from powerprof.database.clients import sql
from powerprof.database.clients.base import Login
from powerprof.database.clients.peers import listener
from powerprof.errors import PowerprofError
from powerprof.processes.listening import socket_inodes
from powerprof.processes.reader_process import shared
from powerprof.processes.targets import processes

if TYPE_CHECKING:
    from powerprof.database.clients.base import Sql

_NAMES = ("mariadbd", "mysqld", "mysqld-debug")
_UNKNOWN_PROCESS = -1
_LISTENING = "0A"  # TCP_LISTEN, include/net/tcp_states.h


def server_pid(connection: Sql, login: Login) -> int | None:
    """The server's process id; None where it runs elsewhere or cannot be found out."""
    channel = connection._sock  # type: ignore[attr-defined]
    if login.socket is not None and isinstance(channel, socket.socket):
        pid = listener(channel)  # under socket activation that is systemd
        if _is_server(pid):
            return pid
    elif isinstance(channel, socket.socket):
        address, port = channel.getpeername()[:2]
        if not _is_ours(str(address)):
            return None
        owner = _listener(int(port))
        if owner is not None:
            # A tunnel or container proxy may listen for a server of another host.
            return owner if _is_server(owner) else None
    return _from_pid_file(connection)


def _is_server(pid: int) -> bool:
    return pid > 0 and files.try_text(paths.procfs() / str(pid) / "comm") in _NAMES


def _is_ours(address: str) -> bool:
    """True for a loopback address and those of this host's interfaces."""
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


def _listener(port: int) -> int | None:
    """Who listens on a TCP port of this host, as far as we may see it."""
    inodes = set()
    for table in ("net/tcp", "net/tcp6"):
        for line in (files.try_text(paths.procfs() / table) or "").splitlines()[1:]:
            words = line.split()
            if len(words) > 9 and words[3] == _LISTENING and int(words[1].rpartition(":")[2], 16) == port:
                inodes.add(words[9])
    return next((pid for pid in processes() if inodes & socket_inodes(pid)), None) if inodes else None


def _from_pid_file(connection: Sql) -> int | None:
    """What the server's own pid file says, where this host has it and such a process."""
    try:
        name = sql.scalar(connection, "SELECT @@pid_file")
    except PowerprofError:
        return None
    # The server chose the path, which may lead to files of any process.
    text = (shared().read(_UNKNOWN_PROCESS, Path(str(name)), 64) or b"").decode("latin-1").strip()
    pid = int(text) if re.fullmatch(r"[0-9]{1,9}", text) else 0
    return pid if _is_server(pid) else None
