# SPDX-License-Identifier: Apache-2.0
"""Servers that replicate."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from powerprof.database.private_server import PrivateServer


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
