# SPDX-License-Identifier: Apache-2.0
"""Where a process can be reached: its listening unix sockets and TCP ports."""

from __future__ import annotations

from pathlib import Path

from powerprof import paths
from powerprof.files import try_text
from powerprof.processes.reader_process import link_of
from powerprof.processes.tasks import clean

_UNIX_LISTENING = "00010000"  # __SO_ACCEPTCON, include/uapi/linux/net.h
_TCP_LISTENING = "0A"  # TCP_LISTEN, include/net/tcp_states.h
_MOST = 3
_MOST_PATH = 60


def socket_inodes(pid: int) -> set[str]:
    """The numbers of the sockets that a process has open; none where we may not look."""
    inodes = set()
    try:
        for entry in (paths.procfs() / str(pid) / "fd").iterdir():
            if (target := link_of(entry) or "").startswith("socket:["):
                inodes.add(target[8:-1])
    except OSError:
        return set()
    return inodes


def unix_sockets(pid: int) -> list[str]:
    """The paths of the unix sockets on which it listens, as it knows them."""
    inodes = socket_inodes(pid)
    found = []
    for line in (try_text(paths.procfs() / str(pid) / "net/unix") or "").split("\n")[1:]:
        words = line.split(maxsplit=7)
        if len(words) == 8 and words[3] == _UNIX_LISTENING and words[6] in inodes and words[7].startswith("/"):
            found.append(words[7])
    return found


def tcp_ports(pid: int) -> list[int]:
    """The TCP ports on which it listens."""
    inodes = socket_inodes(pid)
    ports = set()
    for table in ("net/tcp", "net/tcp6"):
        for line in (try_text(paths.procfs() / str(pid) / table) or "").splitlines()[1:]:
            words = line.split()
            if len(words) > 9 and words[3] == _TCP_LISTENING and words[9] in inodes:
                ports.add(int(words[1].rpartition(":")[2], 16))
    return sorted(ports)


def reached_at(pid: int) -> str:
    """`port 3306, /run/mysqld/mysqld.sock`; empty for what listens nowhere, or may not be looked at."""
    ports = [f"port {port}" for port in tcp_ports(pid)[:_MOST]]
    sockets = [clean(str(Path(path)))[-_MOST_PATH:] for path in unix_sockets(pid)[:_MOST]]
    return ", ".join([*ports, *sockets])
