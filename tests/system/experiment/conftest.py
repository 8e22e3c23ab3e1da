# SPDX-License-Identifier: Apache-2.0
"""A server of the user's: one that the tests start themselves and powerprof is given."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from powerprof.database.private_server import PrivateServer


@pytest.fixture(scope="module")
def users_server(mariadbd: Path) -> Iterator[PrivateServer]:
    """A running server, with an account that has all rights; its password comes from MYSQL_PWD."""
    with PrivateServer(name="theirs") as server:
        yield server
