# SPDX-License-Identifier: Apache-2.0
"""Listening unix sockets and TCP ports of a process.

psutil reads only our own network namespace, and a server may be in a container.
"""

from __future__ import annotations

import os
from itertools import islice
from pathlib import Path

from powerprof.system.files import try_text
from powerprof.system.reader_process import link_of
from powerprof.system.tasks import clean, process_folder

_UNIX_LISTENING = "00010000"  # __SO_ACCEPTCON, include/uapi/linux/net.h
_TCP_LISTENING = "0A"  # TCP_LISTEN, include/net/tcp_states.h
_MAX_LISTENERS = 3
# The first descriptors of a process. Listening sockets are opened early.
_MAX_OPEN_FILES = 20_000
_MAX_PATH = 60


def _list_socket_inodes(pid: int) -> set[str]:
    """Return the inodes of the sockets that a process has open; empty if they are not readable."""
    inodes = set()
    try:
        with os.scandir(process_folder(pid) / "fd") as entries:
            for entry in islice(entries, _MAX_OPEN_FILES):
                if (target := link_of(entry.path) or "").startswith("socket:["):
                    inodes.add(target[8:-1])
    except OSError:
        return set()
    return inodes


def list_unix_sockets(pid: int) -> list[str]:
    """Return the paths of the unix sockets on which a process listens, in its own file system."""
    inodes = _list_socket_inodes(pid)
    sockets = []
    for line in (try_text(process_folder(pid) / "net/unix") or "").split("\n")[1:]:
        words = line.split(maxsplit=7)
        if len(words) == 8 and words[3] == _UNIX_LISTENING and words[6] in inodes and words[7].startswith("/"):
            sockets.append(words[7])
    return sockets


def list_tcp_ports(pid: int) -> list[int]:
    """Return the TCP ports on which a process listens."""
    inodes = _list_socket_inodes(pid)
    ports = set()
    for table in ("net/tcp", "net/tcp6"):
        for line in (try_text(process_folder(pid) / table) or "").splitlines()[1:]:
            words = line.split()
            if len(words) > 9 and words[3] == _TCP_LISTENING and words[9] in inodes:
                ports.add(int(words[1].rpartition(":")[2], 16))
    return sorted(ports)


def describe_listeners(pid: int) -> str:
    """Return `port 3306, /run/mysqld/mysqld.sock`; empty if it does not listen or is not readable."""
    ports = [f"port {port}" for port in list_tcp_ports(pid)[:_MAX_LISTENERS]]
    sockets = [clean(str(Path(path)))[-_MAX_PATH:] for path in list_unix_sockets(pid)[:_MAX_LISTENERS]]
    return ", ".join([*ports, *sockets])
