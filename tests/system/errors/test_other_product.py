# SPDX-License-Identifier: Apache-2.0
"""Every command with an address recognises a PostgreSQL behind the name of a socket of MariaDB and MySQL."""

from __future__ import annotations

from pathlib import Path

import pytest

from powerprof.database.private_server import PrivateServer
from tests.conftest import Cli
from tools.pages.cli import commands

_WORDS = {
    "run": ["index", "--repeat", "2"],
    "compare": ["index", "no-index"],
    "sweep": ["index", "--clients", "1,2"],
    "queries": ["--no-save"],
    "cure": ["--set", "max_connections=7", "--pid", "{pid}"],
    "doctor": ["--pid", "{pid}"],
}
_NAMES = [name for name, command in commands().items() if any(each.name == "--socket" for each in command.options)]


@pytest.mark.usefixtures("root_bpf")
@pytest.mark.parametrize("name", _NAMES)
def test_a_socket_of_the_other_product_is_recognised(
    name: str, postgresql_server: PrivateServer, powerprof_cli: Cli, tmp_path: Path
) -> None:
    socket = tmp_path / "mysqld.sock"
    socket.symlink_to(postgresql_server.socket)
    words = [word.format(pid=postgresql_server.pid) for word in _WORDS.get(name, [])]
    result = powerprof_cli([name, *words, "--socket", str(socket)])
    assert result.code in (1, 2) and result.out == "", result.err
    assert f"{socket} is a PostgreSQL server" in result.err
    assert "hint: name " in result.err
