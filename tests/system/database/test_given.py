# SPDX-License-Identifier: Apache-2.0
"""A server that powerprof did not start (here: one that it did, looked at from outside)."""

from __future__ import annotations

from pathlib import Path

import pytest

from powerprof.database import sandbox, sql
from powerprof.database.connections import IdleConnections
from powerprof.database.given import given_server
from powerprof.database.private_server import PrivateServer
from powerprof.system.errors import PowerprofError
from tests.system.database.conftest import Room

pytestmark = pytest.mark.usefixtures("mariadbd")


def test_by_socket_and_by_port(room: Room, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # A server of the host's is in the host's network.
    monkeypatch.setattr(sandbox, "has_namespaces", lambda: False)
    with PrivateServer(port="ephemeral") as theirs:
        with theirs.connect() as connection:
            sql.execute(
                connection,
                "CREATE USER 'monitor'@'127.0.0.1' IDENTIFIED BY 'pa\"ss'",
                "CREATE USER monitor@localhost IDENTIFIED BY 'other'",
            )
        options = tmp_path / "my.cnf"
        options.write_text("[client]\nuser=monitor\npassword=other\n")
        with given_server(socket=theirs.socket, defaults_file=options) as server:
            assert server.pid == theirs.pid
            assert server.version == theirs.version
            assert not server.private
            assert server.thread_names() == {}, "this account may not read performance_schema"
            server.check()
            with IdleConnections(server, 20) as clients:
                assert clients.lost_count() == 0
        monkeypatch.setenv("MYSQL_PWD", 'pa"ss')
        with given_server(f"mysql://monitor@127.0.0.1:{theirs.port}/") as server:
            assert server.pid == theirs.pid
            with IdleConnections(server, 3) as clients:
                assert clients.lost_count() == 0
        with theirs.connect() as connection:
            schemas = {str(row[0]) for row in sql.fetch_rows(connection, "SHOW DATABASES")}
        assert schemas == {"information_schema", "mysql", "performance_schema", "sys"}, "nothing was changed"


def test_failures_are_one_line_with_a_remedy(room: Room, tmp_path: Path) -> None:
    options = tmp_path / "my.cnf"
    options.write_text("[client]\nuser=stranger\npassword=wrong\n")
    with PrivateServer() as theirs:
        with pytest.raises(PowerprofError, match="Access denied") as caught:
            given_server(socket=theirs.socket, defaults_file=options).__enter__()
        assert "--defaults-file" in str(caught.value.hint)
        gone = theirs.socket
    with pytest.raises(PowerprofError, match="cannot connect to") as caught:
        given_server(socket=gone).__enter__()
    assert "is the server running" in str(caught.value.hint)
