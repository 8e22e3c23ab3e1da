# SPDX-License-Identifier: Apache-2.0
"""Clients that say nothing."""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import pytest

from powerprof.database import connections, sql
from powerprof.database.connections import IdleConnections
from powerprof.database.private_server import PrivateServer
from powerprof.system.errors import PowerprofError, UsageError
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


@pytest.mark.parametrize("count", [-1, 10**7])
def test_senseless_counts_are_refused(count: int) -> None:
    with pytest.raises(UsageError):
        IdleConnections(PrivateServer(), count)


def test_a_server_that_dies_meanwhile_loses_all(room: Room) -> None:
    with PrivateServer() as server, IdleConnections(server, 3) as clients:
        os.kill(server.pid, 9)
        deadline = time.monotonic() + 10
        while clients.lost_count() < 3:
            assert time.monotonic() < deadline
            time.sleep(0.05)


def test_too_few_files_are_refused(room: Room) -> None:
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
            os.setresuid(65534, 65534, 65534)

            try:
                connections.raise_open_files(5000)
            except PowerprofError as error:
                code = 0 if "open files are needed and this process may have 256" in error.message else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_few_threads_are_refused(fake_tree: object, monkeypatch: pytest.MonkeyPatch) -> None:

    fake_tree(
        {  # type: ignore[operator]
            "proc/loadavg": "0.1 0.1 0.1 1/300 4242\n",
            "proc/sys/kernel/threads-max": "100000\n",
            "proc/sys/kernel/pid_max": "32768\n",
            "proc/sys/vm/max_map_count": "65530\n",
            "proc/self/cgroup": "8:pids:/box\n0::/\n",
            "sys/fs/cgroup/pids/box/pids.max": "5000\n",
            "sys/fs/cgroup/pids/box/pids.current": "100\n",
            "sys/fs/cgroup/pids/pids.max": "max\n",
            "sys/fs/cgroup/pids/pids.current": "400\n",
        }
    )
    connections.check_threads(4700)
    with pytest.raises(PowerprofError, match=r"pids/box/pids.max leaves 4900") as caught:
        connections.check_threads(4701)
    assert caught.value.hint is not None
    with pytest.raises(PowerprofError, match=r"kernel.pid_max leaves 32468"):
        connections.check_threads(40_000)
    assert Path("/proc/self").exists()
