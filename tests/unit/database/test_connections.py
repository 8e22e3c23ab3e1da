# SPDX-License-Identifier: Apache-2.0
"""Room for connections: limits of the server, of this host, and of open files."""

from __future__ import annotations

import resource
import socket
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from powerprof.database import connections
from powerprof.database.connections import (
    SPARE_FILES,
    IdleConnections,
    check_clients,
    check_connections,
    check_threads,
    raise_open_files,
)
from powerprof.system import open_files
from powerprof.system.errors import PowerprofError, UsageError
from tests.conftest import Tree
from tests.programs.answers import Answers


def _server(most: int | None, per_user: int, present: int, *, pid: int | None = None, private: bool = False) -> Any:
    answers = {"@@max_connections": [(most, per_user)], "Threads_connected": [("Threads_connected", str(present))]}
    return SimpleNamespace(connect=lambda: Answers(answers), pid=pid, private=private)


def test_the_own_connection_makes_room() -> None:
    # 151 in all, 48 present with the one of the query, which is closed: 104 remain.
    assert check_connections(_server(151, 0, 48), 104) == 48
    with pytest.raises(PowerprofError, match="room for 104 more connections, 105 are wanted") as error:
        check_connections(_server(151, 0, 48), 105)
    assert error.value.hint == "set max_connections to 152, or use fewer --clients"
    with pytest.raises(PowerprofError, match="does not say how many"):
        check_connections(_server(None, 0, 1), 1)


@pytest.mark.parametrize(("per_user", "count", "refused"), [(0, 90, False), (90, 90, False), (89, 90, True)])
def test_a_user_may_have_fewer_connections(per_user: int, count: int, refused: bool) -> None:
    with pytest.raises(PowerprofError, match="allows 89 connections per user") if refused else nullcontext():
        check_connections(_server(500, per_user, 3), count)


# 120 of 457 entities run; 700 tasks of 1,000 are allowed in the group, 950 of 1,000 in its parent.
_HOST = {
    "proc/loadavg": "0.5 0.4 0.3 120/457 9999\n",
    "proc/sys/vm/max_map_count": "65530\n",
    "proc/sys/kernel/threads-max": "30457\n",
    "proc/sys/kernel/pid_max": "32768\n",
    "proc/self/cgroup": "0::/outer/inner\n",
    "sys/fs/cgroup/outer/inner/pids.max": "max\n",
    "sys/fs/cgroup/outer/inner/pids.current": "40\n",
    "sys/fs/cgroup/outer/pids.max": "9000\n",
    "sys/fs/cgroup/outer/pids.current": "800\n",
}


@pytest.fixture
def host(fake_tree: Tree) -> Path:
    return fake_tree(_HOST)


def test_the_room_for_threads_is_what_the_present_ones_leave(host: Path) -> None:
    room = {name.rpartition("fs/cgroup")[2] or name: left for name, left in connections._thread_room()}
    assert room == {
        "kernel.threads-max": 30000,
        "kernel.pid_max": 32311,
        "vm.max_map_count": 32015,
        "/outer/pids.max": 8200,
    }


def test_each_connection_and_200_more_need_a_thread(host: Path) -> None:
    check_threads(8000)
    with pytest.raises(PowerprofError, match=r"8001 connections need 8001 server threads, and .*outer/pids.max leaves"):
        check_threads(8001)
    check_connections(_server(9999, 0, 1, pid=7), 8000)
    check_connections(_server(9999, 0, 1, pid=7, private=True), 8001)
    check_connections(_server(9999, 0, 1), 8001)
    with pytest.raises(PowerprofError, match=r"outer/pids\.max leaves 8200"):
        check_connections(_server(9999, 0, 1, pid=7), 8001)


def test_control_groups_of_version_1_limit_tasks(fake_tree: Tree) -> None:
    host = fake_tree(
        {
            "proc/self/cgroup": "9:cpu,cpuacct:/other\n4:pids:/a/b\n",
            "sys/fs/cgroup/pids/a/pids.max": "77\n",
            "sys/fs/cgroup/pids/a/pids.current": "7\n",
        }
    )
    assert connections._thread_room() == [(f"{host}/sys/fs/cgroup/pids/a/pids.max", 70)]


@pytest.mark.parametrize(("uid", "refused"), [(None, False), (0, False), (999, True)])
def test_the_kernel_limits_no_process_of_root(
    fake_tree: Tree, monkeypatch: pytest.MonkeyPatch, uid: int | None, refused: bool
) -> None:
    fake_tree({})
    monkeypatch.setattr(resource, "getrlimit", lambda _: (250, 500))
    check_threads(50, server_uid=uid)
    with pytest.raises(PowerprofError, match="the process limit is 250") if refused else nullcontext():
        check_threads(51, server_uid=uid)


@pytest.mark.parametrize("allowed", [True, False])
def test_open_files_are_raised_by_the_clients_and_the_spare_ones(
    monkeypatch: pytest.MonkeyPatch, allowed: bool
) -> None:
    counts: list[int] = []

    def allow(count: int, *, beyond_hard: bool) -> bool:
        counts.append(count)
        return allowed and beyond_hard

    monkeypatch.setattr(open_files, "allow", allow)
    with nullcontext() if allowed else pytest.raises(PowerprofError, match="powerprof needs 1,530"):
        raise_open_files(30)
    assert counts == [SPARE_FILES + 30]


@pytest.mark.parametrize(("count", "refused"), [(0, False), (60_000, False), (-1, True), (60_001, True)])
def test_clients_that_no_process_can_hold_are_refused(count: int, refused: bool) -> None:
    with pytest.raises(UsageError) if refused else nullcontext():
        check_clients(count)


@pytest.fixture
def sockets() -> Iterator[list[Any]]:
    pairs = [socket.socketpair() for _ in range(3)]
    yield pairs
    for pair in pairs:
        for end in pair:
            end.close()


def test_closed_and_written_connections_are_lost(sockets: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    handles = iter(ours.detach() for ours, _ in sockets)
    answers = {"@@max_connections": [(151, 0)], "Threads_connected": [("Threads_connected", "2")]}

    def connect(**options: Any) -> Any:
        connection: Any = Answers(answers)
        connection.detach = lambda: next(handles) if options else None
        return connection

    monkeypatch.setattr(connections, "raise_open_files", lambda _: None)
    server: Any = SimpleNamespace(connect=connect, pid=None, private=True)
    with IdleConnections(server, 3) as clients:
        assert clients.lost_count() == 0
        sockets[0][1].send(b"bye")
        sockets[2][1].close()
        assert clients.lost_count() == 2
    assert sockets[1][1].recv(9) == b"\x01\x00\x00\x00\x01"
