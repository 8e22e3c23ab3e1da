# SPDX-License-Identifier: Apache-2.0
"""Clients that say nothing."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import pytest

from powerprof.database import sql
from powerprof.database.connections import IdleConnections
from powerprof.database.private_server import PrivateServer
from powerprof.system.errors import PowerprofError
from tests.system.database.conftest import Room

pytestmark = pytest.mark.usefixtures("mariadbd")
Pool = Callable[..., PrivateServer]


def _connected(server: PrivateServer) -> int:
    with server.connect() as connection:
        return int(sql.fetch_rows(connection, "SHOW GLOBAL STATUS LIKE 'Threads_connected'")[0][1]) - 1


def _connections_so_far(server: PrivateServer) -> int:
    """Return the number of connections since the start, refused ones and this one included."""
    with server.connect() as connection:
        return int(sql.fetch_rows(connection, "SHOW GLOBAL STATUS LIKE 'Connections'")[0][1])


def _open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_five_hundred_are_held_and_closed(room: Room) -> None:
    handles = _open_files()
    with PrivateServer(connections=500) as server:
        with IdleConnections(server, 500) as clients:
            assert _connected(server) == 500
            assert clients.lost_count() == 0
            with server.connect() as connection:
                sent = sql.fetch_rows(connection, "SHOW GLOBAL STATUS LIKE 'Questions'")
                time.sleep(0.2)
                later = sql.fetch_rows(connection, "SHOW GLOBAL STATUS LIKE 'Questions'")
            assert int(later[0][1]) - int(sent[0][1]) == 1, "only the question itself"
        deadline = time.monotonic() + 10
        while _connected(server):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        with server.connect() as connection:
            aborted = sql.fetch_rows(connection, "SHOW GLOBAL STATUS LIKE 'Aborted_clients'")
        assert aborted[0][1] == "0"
    assert _open_files() <= handles + 1


@pytest.mark.parametrize("family", ["mariadb", "postgresql"])
def test_at_the_end_the_server_has_none_of_them(room: Room, family: Literal["mariadb", "postgresql"]) -> None:
    """Or those of the next window find no room: a hundred where a hundred and twenty are allowed."""
    with PrivateServer(family=family, connections=100) as server:
        for _ in range(2):
            clients = IdleConnections(server, 100)
            with clients, server.connect() as connection:
                assert sql.dialect_of(connection).read_room(connection)[2] == 101
                clients.end()
                assert sql.dialect_of(connection).read_room(connection)[2] <= 2


def test_zero_clients_hold_no_connection(pooled_server: Pool) -> None:
    server = pooled_server()
    with IdleConnections(server, 0) as clients:
        assert _connected(server) == 0
        assert clients.lost_count() == 0


def test_lost_clients_are_counted(room: Room) -> None:
    with PrivateServer(settings={"wait-timeout": 1}) as server, IdleConnections(server, 5) as clients:
        deadline = time.monotonic() + 20
        while clients.lost_count() < 5:
            assert time.monotonic() < deadline
            time.sleep(0.1)


@pytest.mark.parametrize(
    ("count", "message"),
    [(40, r"room for \d+ more connections, 40 are wanted"), (20, "allows 10 connections per user, 20 are wanted")],
    ids=["server", "user"],
)
def test_too_many_clients_are_refused_before_the_first_connects(pooled_server: Pool, count: int, message: str) -> None:
    server = pooled_server(**{"max-connections": 30, "max-user-connections": 10})
    before_count = _connections_so_far(server)
    with pytest.raises(PowerprofError, match=message):
        IdleConnections(server, count).__enter__()
    # One connection reads the limits, and one this count.
    assert _connections_so_far(server) == before_count + 2


def test_a_server_that_dies_meanwhile_loses_all(room: Room) -> None:
    with PrivateServer() as server, IdleConnections(server, 3) as clients:
        os.kill(server.pid, 9)
        deadline = time.monotonic() + 10
        while clients.lost_count() < 3:
            assert time.monotonic() < deadline
            time.sleep(0.05)


def test_a_refused_account_is_one_connection(pooled_server: Pool) -> None:
    """Broken handshakes add up to max_connect_errors, after which a server admits nobody from this host."""
    server = pooled_server()
    before = _connections_so_far(server)
    with pytest.raises(PowerprofError, match="Access denied"):
        sql.connect(server.login.with_account("nobody_here", "wrong"))
    assert _connections_so_far(server) == before + 2
