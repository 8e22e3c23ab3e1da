# SPDX-License-Identifier: Apache-2.0
"""Idle clients: N connections that are opened, say nothing, and are closed."""

from __future__ import annotations

import contextlib
import os
import select
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from powerprof.database.clients import dialects
from powerprof.database.clients.base import Server
from powerprof.database.isolation import limits
from powerprof.system.closeable import Closeable
from powerprof.system.errors import PowerprofError

if TYPE_CHECKING:
    from powerprof.database.clients.base import Sql

# Packet of length 1, sequence 0, COM_QUIT (client/server protocol): the server need not log an aborted client.
_QUIT = b"\x01\x00\x00\x00\x01"
_EVENTS = select.POLLIN | select.POLLRDHUP
# A hundred of PostgreSQL's processes take some tenths of a second to end.
_END_AT_MOST_S, _LOOK_EVERY_S = 3.0, 0.02


class IdleConnections(Closeable):
    """`with IdleConnections(server, 16) as clients:` holds 16 connections open; nothing is sent meanwhile.

    Only the file descriptors are kept: 10,000 PyMySQL connections would be 90 MB.
    Raises UsageError, or PowerprofError where this host or the server does not allow so many.
    """

    def __init__(self, server: Server, count: int) -> None:
        limits.check_clients(count)
        self.count = count
        self._server = server
        self._handles: list[int] = []
        self._whole: list[Sql] = []
        self._before_count = 0

    def _open(self) -> None:
        if self.count:
            limits.raise_open_files(self.count)
            # Refused before the first connection is what the server would refuse at the last.
            self._before_count = check_connections(self._server, self.count)
            self._open_all()

    def _open_all(self) -> None:
        # Each handshake waits for the server twice or more: eight at a time take a quarter of the time of one.
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
            self._whole.append(connection)
        else:
            self._handles.append(handle)

    def lost_count(self) -> int:
        """How many the server has closed, or written to, which it does only to say that it closes."""
        poll = select.poll()
        handles: list[int] = [*self._handles, *(connection.fileno() for connection in self._whole)]
        for handle in handles:
            poll.register(handle, _EVENTS)
        return len(poll.poll(0))

    def close(self) -> None:
        """Say good-bye and close them all."""
        for connection in self._whole:
            with contextlib.suppress(Exception):
                connection.close()
        for handle in self._handles:
            with contextlib.suppress(OSError):
                os.write(handle, _QUIT)
            os.close(handle)
        self._handles.clear()
        self._whole.clear()

    def end(self) -> None:
        """Close them, and wait until the server has ended their threads or processes: that is no later window's work,
        and until then they take the room of others. Where others come in the meantime, it waits some seconds."""
        self.close()
        if not self.count:
            return
        until_s = time.monotonic() + _END_AT_MOST_S
        with contextlib.suppress(PowerprofError), self._server.connect() as connection:
            room = dialects.dialect_of(connection).room
            while room(connection)[2] > self._before_count and time.monotonic() < until_s:
                time.sleep(_LOOK_EVERY_S)


def check_connections(server: Server, count: int) -> int:
    """How many connections there are, the question's among them.

    Raises PowerprofError where the server or this host has no room for `count` connections more.
    """
    with server.connect() as connection:
        most, per_user, there = dialects.dialect_of(connection).room(connection)
    if not most:
        raise PowerprofError("the server does not say how many connections it allows", "is it MySQL or MariaDB?")
    # One of those that are there was this question's.
    room = most - there + 1
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
        limits.check_threads(count)
    return there
