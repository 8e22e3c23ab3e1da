# SPDX-License-Identifier: Apache-2.0
"""A private mariadbd: what it offers, and how it refuses."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from powerprof.database import runtree, sandbox, sql
from powerprof.database.base import Login
from powerprof.database.private_server import PrivateServer
from powerprof.measure import oslayer
from powerprof.system.errors import CapabilityError, PowerprofError, UsageError
from tests.programs.waiting import wait_until
from tests.system.database.conftest import Room

pytestmark = pytest.mark.usefixtures("mariadbd")
Pool = Callable[..., PrivateServer]


def test_a_server_answers_on_its_socket_only(pooled_server: Pool) -> None:
    server = pooled_server()
    with server.connect() as connection:
        assert sql.fetch_rows(connection, "SELECT @@skip_networking, @@performance_schema") == [(1, 1)]
    assert server.port is None
    assert server.socket.parent == server.directory
    assert server.datadir.stat().st_mode & 0o777 == 0o700
    process = psutil.Process(server.pid)
    assert process.name() in ("mariadbd", "mysqld")
    assert process.net_connections("inet") == []
    assert server.version.startswith(("MariaDB ", "MySQL "))


def test_threads_have_their_names(pooled_server: Pool) -> None:
    server = pooled_server()
    names = server.thread_names()
    kernel = {int(path.name) for path in Path(f"/proc/{server.pid}/task").iterdir()}
    assert names[server.pid] == "thread/sql/main"
    assert "thread/innodb/page_cleaner_thread" in names.values()
    assert len(set(names) - kernel) <= 1, "only the thread of the asking connection may be gone"


def test_nobody_else_can_log_in_and_no_password_shows(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if the host gives it no network of its own, and every user of the host can connect to its port."""
    monkeypatch.setattr(sandbox, "has_namespaces", lambda: False)
    with PrivateServer(port="ephemeral") as server:
        words = psutil.Process(server.pid).cmdline()
        assert not any(server.login.password in word for word in words)
        assert server.login.password not in repr(server.login)
        assert not (server.directory / "init.sql").exists()
        for user in ("root", "powerprof", ""):
            other = type(server.login)(user=user, host="127.0.0.1", port=server.port)
            with pytest.raises(PowerprofError, match=r"denied|not allowed"):
                sql.connect(other)
        ours = type(server.login)(
            user=server.login.user, password=server.login.password, host="127.0.0.1", port=server.port
        )
        sql.connect(ours).close()


def test_the_template_is_made_once(room: Room, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(
        "XDG_CACHE_HOME", str(tmp_path)
    )  # other tests' servers have templates of their own in the shared one
    with PrivateServer():
        pass
    (template,) = (tmp_path / "powerprof/server-template").iterdir()
    before = template.stat().st_mtime_ns
    with PrivateServer() as server, server.connect() as connection:
        sql.execute(connection, "CREATE DATABASE here")
        assert template.stat().st_mtime_ns == before
        assert not (template / "here").exists()
    assert [path.name for path in template.parent.iterdir()] == [template.name]


def test_settings_environment_and_affinity_reach_the_server(room: Room) -> None:
    cpu = min(os.sched_getaffinity(0))
    with PrivateServer(
        settings={"read_buffer_size": "5M", "skip-innodb-doublewrite": None, "event-scheduler": True},
        environment={"MALLOC_MMAP_THRESHOLD_": "262144"},
        affinity=(cpu,),
    ) as server:
        with server.connect() as connection:
            found = sql.fetch_rows(connection, "SELECT @@read_buffer_size, @@innodb_doublewrite, @@event_scheduler")
        assert found == [(5 << 20, 0, "ON")]
        process = psutil.Process(server.pid)
        assert process.environ()["MALLOC_MMAP_THRESHOLD_"] == "262144"
        assert process.cpu_affinity() == [cpu]


def test_as_root_the_server_runs_as_its_own_user(pooled_server: Pool, root: None) -> None:
    assert psutil.Process(pooled_server().pid).username() == "mysql"


def test_two_servers_live_side_by_side_in_their_own_networks(room: Room, root: None) -> None:
    """Also with a port that a program of the host uses. Their traffic is counted."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with PrivateServer(port=port) as one, PrivateServer(port="ephemeral") as server:
            assert one.pid != server.pid and one.namespaces != server.namespaces and one.datadir != server.datadir
            with one.connect() as connection:
                assert (one.port, sql.fetch_scalar(connection, "SELECT @@port")) == (port, port)
            networks = oslayer.networks_of([server.pid, os.getpid()])
            assert networks == (Path(f"/proc/{server.pid}/net/dev"),)
            login = Login(
                user=server.login.user, password=server.login.password, host=server.options.address, port=server.port
            )
            before = oslayer.parse_network(networks[0].read_text())
            with runtree.enter_namespace(server.namespaces[-1]), sql.connect(login) as connection:
                sql.fetch_rows(connection, "SELECT REPEAT('x', 100000)")
            after = oslayer.parse_network(networks[0].read_text())
            assert before is not None and after is not None and after[0] - before[0] > 100_000
            # The host's own counters only grow, so they are read first.
            host, both = oslayer.read_counters().network, oslayer.read_counters(networks=networks).network
            assert both is not None and host is not None and both[0] - host[0] >= after[0]


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"no_such_setting": 1}, "unknown variable 'no_such_setting=1'"),
        ({"default-storage-engine": "NONE"}, "[Uu]nknown/unsupported storage engine: NONE"),
    ],
)
def test_a_wrong_setting_shows_the_end_of_the_log(room: Room, settings: dict[str, str], said: str) -> None:
    with pytest.raises(PowerprofError, match=said) as caught:
        PrivateServer(settings=settings).__enter__()
    assert "\n" not in caught.value.message
    assert caught.value.message.startswith("the private server did not start, it ended with ")


@pytest.mark.parametrize("settings", [{"bind-address": "0.0.0.0"}, {"skip-grant-tables": None}, {"user": "root"}])
def test_settings_that_would_open_the_server_are_refused(settings: dict[str, str]) -> None:
    with pytest.raises(UsageError):
        PrivateServer(settings=settings)


def test_without_a_server_the_remedy_is_said(room: Room, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("powerprof.system.program_search._SBIN", ())
    with pytest.raises(CapabilityError) as caught:
        PrivateServer().__enter__()
    assert caught.value.exit_code == 3
    assert caught.value.hint == "apt install mariadb-server"


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("absent", None, "no such file"),
        ("plain", "no program", "not an executable file"),
        ("other", "#!/bin/sh\necho hello\n", "is not a MariaDB or MySQL server"),
    ],
)
def test_a_binary_that_is_no_server_is_refused(room: Room, name: str, text: str | None, said: str) -> None:
    binary = room.path / name
    if text is not None:
        binary.write_text(text)
        binary.chmod(0o755 if name == "other" else 0o644)
    with pytest.raises(PowerprofError, match=said):
        PrivateServer(binary=binary).__enter__()


def test_a_missing_tmpdir_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from powerprof.database.runtree import RunTree

    with pytest.raises(PowerprofError, match=r"absent \(no such file or directory\)"):
        PrivateServer(tree=RunTree(tmp_path / "absent").__enter__()).__enter__()


def test_the_janitor_sleeps_and_a_killed_server_is_noticed(room: Room) -> None:
    """The janitor has no wake-up: its context switches stand still while it watches."""
    with PrivateServer() as server:
        status = Path(f"/proc/{server.tree._janitor.pid}/status")

        def switches() -> int:
            lines = status.read_text().splitlines()
            return sum(int(line.split()[1]) for line in lines if "ctxt_switches" in line)

        deadline = time.monotonic() + 10
        while (before := switches()) != (time.sleep(0.3) or switches()):
            assert time.monotonic() < deadline
        time.sleep(1.0)
        assert switches() == before
        server.check()
        os.kill(server.pid, signal.SIGKILL)
        wait_until(lambda: not server.alive(), "the end of the server")
        with pytest.raises(PowerprofError, match=r"was killed by SIGKILL: .*ready for connections"):
            server.check()
        with pytest.raises(PowerprofError, match="was killed by SIGKILL"):
            server.connect()
