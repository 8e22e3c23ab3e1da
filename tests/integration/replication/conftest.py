"""Servers that replicate. What needs the historical server is collected only where it has been fetched."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from powerprof.database import historical
from powerprof.database.server import PrivateServer

# Fetching is a user's decision and needs the network: absent, this is no test that could be skipped.
collect_ignore = [] if historical.is_fetched(historical.MYSQL_5_5_9) else ["test_mysql_5_5_9.py"]


@pytest.fixture
def option_file(tmp_path: Path) -> Callable[[PrivateServer], Path]:
    """An option file with the account of a private server."""

    def write(server: PrivateServer) -> Path:
        path = tmp_path / f"{server.options.name}.cnf"
        path.touch(mode=0o600)
        path.write_text(
            f'[client]\nuser={server.login.user}\npassword="{server.login.password}"\nsocket={server.login.socket}\n'
        )
        return path

    return write
