# SPDX-License-Identifier: Apache-2.0
"""Options of private servers."""

from __future__ import annotations

import socket
from contextlib import nullcontext
from typing import Any

import pytest

from powerprof.database.server_options import ServerOptions, choose_port
from powerprof.system.errors import PowerprofError, UsageError


@pytest.mark.parametrize(
    ("field", "value", "refused"),
    [
        ("port", 0, True),
        ("port", 1, False),
        ("port", 65535, False),
        ("port", 65536, True),
        ("name", "a" * 24, False),
        ("name", "a" * 25, True),
        ("name", "Server", True),
        ("connections", -1, True),
        ("environment", {"A=B": "x"}, True),
        ("environment", {"A": "x\0"}, True),
        ("environment", {"": "x"}, True),
        ("settings", {"datadir": "/x"}, True),
        ("affinity", (), True),
        ("affinity", (4096,), True),
    ],
)
def test_invalid_options_are_refused(field: str, value: Any, refused: bool) -> None:
    with pytest.raises(UsageError) if refused else nullcontext():
        ServerOptions(**{field: value})


def test_a_taken_port_is_refused_and_a_free_one_is_chosen() -> None:
    assert choose_port(None) is None
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(PowerprofError, match=f"port {port} on 127.0.0.1 is taken"):
            choose_port(port)
        assert choose_port(port, "127.0.0.9") == port
        free = choose_port("ephemeral")
        assert free is not None and free > 1023 and free != port
