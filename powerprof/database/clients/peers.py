# SPDX-License-Identifier: Apache-2.0
"""The process or account at the other end of a socket: another one may listen at a path or a port than intended."""

from __future__ import annotations

import errno
import ipaddress
import os
import socket
import struct
from typing import TYPE_CHECKING

from powerprof import paths
from powerprof.files import read_fields, try_text
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


def account_of_process(pid: int) -> int | None:
    """Return the account with which a process opens sockets and files (fsuid); None if it has ended."""
    words = read_fields(paths.procfs() / str(pid) / "status").get("Uid", "").split()
    return whole(words[3]) if len(words) == 4 else None


def check_account(channel: socket.socket, pid: int) -> None:
    """Check that the other end of a TCP connection belongs to the account of process `pid` on this host.

    The kernel shows every user the account of each socket, but not its process. Raise ConnectionRefusedError.
    """
    channel.recv(1, socket.MSG_PEEK)  # The server has accepted the connection: until then its account reads 0.
    found, expected = _account_at_other_end(channel), account_of_process(pid)
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
