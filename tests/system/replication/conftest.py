# SPDX-License-Identifier: Apache-2.0
"""Servers that replicate."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from powerprof.database.private_server import PrivateServer
from tests.programs.option_files import write_options


@pytest.fixture
def option_file(tmp_path: Path) -> Callable[[PrivateServer], Path]:
    """An option file with the account of a private server."""

    def write(server: PrivateServer) -> Path:
        return write_options(tmp_path / f"{server.options.name}.cnf", server.login)

    return write
