# SPDX-License-Identifier: Apache-2.0
"""Idle client connections, and the limits of this host and server on their number."""

from __future__ import annotations

import contextlib
import os
import re
import resource
import select
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from powerprof.database import sql
from powerprof.database.base import Server
from powerprof.system import files, open_files, paths
from powerprof.system.closeable import Closeable
from powerprof.system.errors import PowerprofError, UsageError

if TYPE_CHECKING:
    from powerprof.database.base import Sql


# The end of a connection, so that the server need not log an aborted client: a packet of length 1, sequence 0, COM_QUIT
# (client/server protocol of MySQL), and the message Terminate (frontend/backend protocol of PostgreSQL).
_FAREWELLS: dict[str, bytes] = {"mysql": b"\x01\x00\x00\x00\x01", "postgresql": b"X\x00\x00\x00\x04"}
# A hundred processes of PostgreSQL take some tenths of a second to end.
_MAX_END_S, _POLL_S = 3.0, 0.02
MAX_CLIENTS = 60_000
# MariaDB and MySQL lower max_connections if fewer than 10 + 2 × 400 files remain for tables.
SPARE_FILES = 1500
_SPARE_THREADS = 200


class IdleConnections(Closeable):
    """A number of open connections that send nothing: `with IdleConnections(server, 16) as clients:`.

    Only the file descriptors are kept, except under TLS: 10,000 PyMySQL connections would need 90 MB.
    Raises UsageError, and PowerprofError if this host or the server does not allow so many.
    """

    def __init__(self, server: Server, count: int) -> None:
        check_clients(count)
        self.count = count
        self._server = server
        self._handles: dict[int, bytes] = {}
        self._undetached: list[Sql] = []
        self._before_count = 0

    def _open(self) -> None:
        if not self.count:
            return
        raise_open_files(self.count)
        # Check before the first connection what the server would refuse at the last.
        self._before_count = check_connections(self._server, self.count)
        # Each handshake waits for the server at least twice: eight at a time need a quarter of the time.
        workers = ThreadPoolExecutor(min(8, self.count))
        try:
            list(workers.map(self._open_client, range(self.count)))
        finally:
            workers.shutdown(cancel_futures=True)

    def _open_client(self, number: int) -> None:
        try:
            connection = self._server.connect(autocommit=None)
        except PowerprofError as error:
            raise PowerprofError(f"client {number + 1} of {self.count}: {error.message}", error.hint) from error
        handle = connection.detach()
        if handle is None:
            self._undetached.append(connection)
        else:
            self._handles[handle] = _FAREWELLS[connection.family]

    def lost_count(self) -> int:
        """Return the number of connections that the server has closed, or written to: it writes only to close one."""
        poll = select.poll()
        handles: list[int] = [*self._handles, *(connection.fileno() for connection in self._undetached)]
        for handle in handles:
            poll.register(handle, select.POLLIN | select.POLLRDHUP)
        return len(poll.poll(0))

    def close(self) -> None:
        """Close all connections in order."""
        for connection in self._undetached:
            with contextlib.suppress(Exception):
                connection.close()
        for handle, farewell in self._handles.items():
            with contextlib.suppress(OSError):
                os.write(handle, farewell)
            os.close(handle)
        self._handles.clear()
        self._undetached.clear()

    def end(self) -> None:
        """Close them, and wait up to 3 s until the server has ended their threads or processes.

        Their end would otherwise be work of a later window, and occupy the room of other connections.
        """
        self.close()
        if not self.count:
            return
        until_s = time.monotonic() + _MAX_END_S
        with contextlib.suppress(PowerprofError), self._server.connect() as connection:
            room = sql.dialect_of(connection).read_room
            while room(connection)[2] > self._before_count and time.monotonic() < until_s:
                time.sleep(_POLL_S)


def check_connections(server: Server, count: int) -> int:
    """Return the present number of connections, including the one of this query.

    Raises PowerprofError if the server or this host has no room for `count` more.
    """
    with server.connect() as connection:
        most, per_user, present = sql.dialect_of(connection).read_room(connection)
    if not most:
        raise PowerprofError("the server does not say how many connections it allows", "is it MySQL or MariaDB?")
    # One of the present connections was that of this query.
    room = most - present + 1
    if count > room:
        raise PowerprofError(
            f"the server has room for {room} more connections, {count} are wanted (max_connections {most})",
            f"set max_connections to {most + count - room}, or use fewer --clients",
        )
    if 0 < per_user < count:
        raise PowerprofError(
            f"the server allows {per_user} connections per user, {count} are wanted",
            "raise max_user_connections, or use fewer --clients",
        )
    if server.pid is not None and not server.private:
        check_threads(count)
    return present


def check_clients(count: int) -> None:
    """Raise UsageError for an impossible number of clients."""
    if count < 0:
        raise UsageError(f"{count} clients are not possible", "0 or more")
    if count > MAX_CLIENTS:
        raise UsageError(f"{count} clients are more than {MAX_CLIENTS}", "one process cannot hold that many")


def raise_open_files(needed: int) -> None:
    """Raise the limit of open files of this process and its future children. Raise TooManyFilesError."""
    if not open_files.allow(needed + SPARE_FILES, beyond_hard=True):
        raise open_files.explain_shortage(needed + SPARE_FILES)


def check_threads(count: int, *, server_uid: int | None = None) -> None:
    """Raise PowerprofError if a limit of this host forbids one server thread per connection.

    `server_uid` is the user id of the server.
    """
    needed = count + _SPARE_THREADS
    for name, room in _thread_room():
        if room < needed:
            raise PowerprofError(
                f"{count} connections need {count} server threads, and {name} leaves {room}",
                f"raise {name}, or use fewer --clients",
            )
    soft, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    # The kernel does not apply RLIMIT_NPROC to root (copy_process, CAP_SYS_RESOURCE).
    if server_uid not in (None, 0) and soft != resource.RLIM_INFINITY and soft < needed:
        raise PowerprofError(
            f"{count} connections need {count} server threads, and the process limit is {soft}",
            f"ulimit -u {needed}, or use fewer --clients",
        )


def _thread_room() -> list[tuple[str, int]]:
    kernel = paths.procfs() / "sys"
    # The fourth field of /proc/loadavg is running/all scheduling entities (proc(5)).
    entities = re.search(r"/(\d+)", files.try_text(paths.procfs() / "loadavg") or "")
    running = int(entities[1]) if entities else 0
    maps = files.try_int(kernel / "vm/max_map_count")
    room = []
    for name in ("threads-max", "pid_max"):
        most = files.try_int(kernel / "kernel" / name)
        if most is not None:
            room.append((f"kernel.{name}", most - running))
    if maps is not None:
        # A thread's stack and its guard page are two mappings. The server has some hundred others.
        room.append(("vm.max_map_count", (maps - 1500) // 2))
    for group in _pids_groups():
        allowed = files.try_int(group / "pids.max")
        current = files.try_int(group / "pids.current")
        if allowed is not None and current is not None:
            room.append((f"{group}/pids.max", allowed - current))
    return room


def _pids_groups() -> list[Path]:
    """Return the control groups, from powerprof's to the root, that can limit tasks (version 2, then 1)."""
    text = files.try_text(paths.procfs() / "self/cgroup") or ""
    groups: list[Path] = []
    for line in text.splitlines():
        number, controllers, path = [*line.split(":", 2), "", ""][:3]
        if number == "0" and not controllers:
            roots = [paths.sysfs() / "fs/cgroup", paths.sysfs() / "fs/cgroup/unified"]
        elif "pids" in controllers.split(","):
            roots = [paths.sysfs() / "fs/cgroup/pids"]
        else:
            continue
        for root in roots:
            leaf = Path(os.path.normpath(f"{root}/{path.lstrip('/')}"))
            groups += [group for group in (leaf, *leaf.parents) if group.is_relative_to(root)]
    return groups
