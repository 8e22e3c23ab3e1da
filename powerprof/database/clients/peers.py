# SPDX-License-Identifier: Apache-2.0
"""Who is at the other end of a unix socket: a path may lead to another process than the one that is meant."""

from __future__ import annotations

import errno
import os
import socket
import struct
from typing import TYPE_CHECKING

from powerprof import paths
from powerprof.files import read_fields
from powerprof.untrusted import whole

if TYPE_CHECKING:
    from powerprof.database.clients.base import Sql

_INIT = 1


def listener_of(connection: Sql) -> int:
    """As `listener`, of a connection by a unix socket."""
    with socket.socket(fileno=os.dup(connection.fileno())) as channel:
        return listener(channel)


def listener(channel: socket.socket) -> int:
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
