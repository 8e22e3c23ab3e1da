# SPDX-License-Identifier: Apache-2.0
"""Option files with the account of a server, as its users have them."""

from __future__ import annotations

from pathlib import Path

from powerprof.database.base import Login


def write_options(path: Path, login: Login, *, password: bool = True, socket: bool = True) -> Path:
    """Write the account and the socket of a login to an option file that only its owner may read. Return the file."""
    lines = [
        "[client]",
        f"user={login.user}",
        *([f'password="{login.password}"'] if password and login.password else []),
        *([f"socket={login.socket}"] if socket and login.socket else []),
    ]
    path.touch(0o600)
    path.write_text("\n".join(lines) + "\n")
    return path
