# SPDX-License-Identifier: Apache-2.0
"""A socket leads to the process that is meant, or nothing is sent there."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from powerprof.database import sql
from powerprof.database.base import Login
from powerprof.database.given import given_server
from powerprof.database.local_login import list_listening_sockets, log_in_locally
from powerprof.database.private_server import PrivateServer
from powerprof.database.wire import check_account, check_listener, read_listener
from powerprof.system.errors import PowerprofError
from tests.conftest import each_release
from tests.programs.option_files import write_options
from tests.system.safety.conftest import Attacker

pytestmark = pytest.mark.usefixtures("root", "mariadbd")


@contextmanager
def forged(path: Path) -> Iterator[tuple[int, Path]]:
    """Another process, which started nobody, listens there: its pid, and the file of what was sent to it."""
    heard = path.with_name("heard")
    heard.touch()
    ready, told = os.pipe()
    pid = os.fork()
    if pid == 0:
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind(str(path))
            listening.listen()
            os.write(told, b"x")
            while True:
                channel, _ = listening.accept()
                with channel, heard.open("ab", buffering=0) as file:
                    while piece := channel.recv(4096):
                        file.write(piece)
    try:
        assert os.read(ready, 1) == b"x"
        yield pid, heard
    finally:
        os.close(ready)
        os.close(told)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


@pytest.mark.parametrize("family", ["mysql", "postgresql"])
def test_a_socket_of_another_process_is_refused(tmp_path: Path, family: str) -> None:
    path = tmp_path / (".s.PGSQL.5432" if family == "postgresql" else "mysqld.sock")
    with forged(path) as (_, heard):
        login = Login(user="u", password="secret", socket=path, family=family, pid=1 << 22)  # type: ignore[arg-type]
        with pytest.raises(PowerprofError):
            sql.connect(login, timeout_s=2.0)
    # libpq begins the conversation before it can be asked whom it reached; the password is not in the beginning.
    assert b"secret" not in heard.read_bytes()
    assert family == "postgresql" or heard.read_bytes() == b""


def test_what_a_server_listens_on_is_left_by_it_for_another(tmp_path: Path) -> None:
    """The name of the socket of a server that was found is taken by somebody else between the look and the visit."""
    with PrivateServer() as server:
        assert server.pid is not None
        (place,) = list_listening_sockets(server.pid)
        with given_server(socket=server.socket, defaults_file=_account(server, tmp_path)) as given:
            assert given.login.pid == server.pid
            given.connect().close()
            server.socket.rename(server.socket.with_suffix(".moved"))
            with forged(server.socket) as (pid, heard):
                assert log_in_locally(server.pid) is None
                for again in (given.connect, server.connect):
                    with pytest.raises(PowerprofError, match=f"process {pid} listens there, not {server.pid}"):
                        again()
                assert heard.read_bytes() == b""
    assert place.name == server.socket.name


def _account(server: PrivateServer, folder: Path) -> Path:
    file = folder / "account.cnf"
    write_options(file, server.login, socket=False)
    return file


def test_a_socket_that_whoever_started_the_server_listens_on_is_its_own() -> None:
    """As systemd does for servers that it activates."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        assert read_listener(ours) == os.getpid()
        pid = os.fork()
        if pid == 0:
            time.sleep(60)
            os._exit(0)
        try:
            check_listener(read_listener(ours), pid)
            check_listener(read_listener(ours), None)
            check_listener(1, pid)
            with pytest.raises(ConnectionRefusedError, match=f"process {pid} listens there, not {os.getpid()}"):
                check_listener(pid, os.getpid())
        finally:
            os.kill(pid, 9)
            os.waitpid(pid, 0)


@each_release("mysql-5.5.9", "mysql-9.7", "postgresql-17")
def test_other_products_are_known_by_their_sockets_too(historical_build: object) -> None:
    with PrivateServer(build=historical_build) as server:
        assert server.login.pid == server.pid
        server.connect().close()


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "::ffff:127.0.0.1", "127.9.9.9"])
def test_the_account_at_the_other_end_of_a_port_is_the_kernels_word(attacker: Attacker, host: str) -> None:
    """A server of both families answers: the tables of the kernel list IPv4 within IPv6."""
    ready, says = os.pipe()

    def answer() -> None:
        signal.alarm(60)
        with socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True) as listening:
            os.write(says, str(listening.getsockname()[1]).encode())
            channel, _ = listening.accept()
            channel.send(b"hello")
            signal.pause()

    pid = attacker._fork(answer)
    try:
        with socket.create_connection((host, int(os.read(ready, 10))), 10) as channel:
            check_account(channel, pid)
            with pytest.raises(ConnectionRefusedError, match="account 65534 answers there, not that of process"):
                check_account(channel, os.getpid())
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
