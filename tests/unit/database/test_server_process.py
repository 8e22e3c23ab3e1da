# SPDX-License-Identifier: Apache-2.0
"""The process of a connected server."""

from __future__ import annotations

import os
import socket

import pytest

from powerprof.database import server_process


@pytest.mark.parametrize(
    ("address", "is_local"),
    [
        ("127.0.0.1", True),
        ("127.9.9.9", True),
        ("::1", True),
        ("192.0.2.7", False),
        ("2001:db8::7", False),
        ("db.example", False),
        ("", False),
    ],
)
def test_only_addresses_of_this_host_are_local(address: str, is_local: bool) -> None:
    assert server_process._is_local_address(address) is is_local


@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6])
def test_listener_of_a_port_is_found(family: socket.AddressFamily) -> None:
    with socket.socket(family, socket.SOCK_STREAM) as channel:
        channel.bind(("::1" if family == socket.AF_INET6 else "127.0.0.1", 0))
        port = channel.getsockname()[1]
        assert server_process._find_listener(port) is None
        channel.listen()
        assert server_process._find_listener(port) == os.getpid()
