# SPDX-License-Identifier: Apache-2.0
"""Options of private servers, ports, room, and copies of a data directory that belongs to another user."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from powerprof.database import preparation
from powerprof.database.builds import ServerBuild
from powerprof.database.server_options import ServerOptions
from powerprof.system.errors import PowerprofError


@pytest.mark.parametrize(("length", "reason"), [(107, "the template is next"), (108, "is too long for a socket")])
def test_a_socket_has_at_most_107_bytes(monkeypatch: pytest.MonkeyPatch, length: int, reason: str) -> None:
    """sun_path has 108 bytes with the final NUL (unix(7))."""

    def find(*_: object) -> Path:
        raise PowerprofError("the template is next")

    monkeypatch.setattr(preparation, "find_server_account", lambda: None)
    monkeypatch.setattr(preparation, "find_template", find)
    build = ServerBuild(Path("/usr/sbin/mysqld"), "mysql", (8, 0, 36), "")
    tree: Any = SimpleNamespace(path=Path("/" + "x" * (length - len("//server/mysqld.sock"))))
    with pytest.raises(PowerprofError, match=reason):
        preparation.prepare_directory(build, ServerOptions(), tree)
