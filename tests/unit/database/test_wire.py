# SPDX-License-Identifier: Apache-2.0
"""Connections to untrusted servers: the other end of a connection, and the limits of an answer."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
from pymysql import err

from powerprof.database import wire
from powerprof.database.base import Limits
from powerprof.database.wire import BoundedConnection, check_account, read_listener, read_process_account
from tests.conftest import Tree


def test_an_account_is_that_of_file_accesses(fake_tree: Tree) -> None:
    fake_tree({"proc/7/status": "Name:\tx\nUid:\t1001\t1002\t1003\t1004\nGid:\t5\t5\t5\t5\n"})
    assert read_process_account(7) == 1004
    assert read_process_account(8) is None


# 127.0.0.1:3307 (0CEB) belongs to account 112 and has the client 127.0.0.1:40001 (9C41), which belongs to 1001.
_HEADER = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
_SERVER = "   0: 0100007F:0CEB 0100007F:9C41 01 00000000:00000000 00:00000000 00000000   112        0 9001\n"
_CLIENT = "   1: 0100007F:9C41 0100007F:0CEB 01 00000000:00000000 00:00000000 00000000  1001        0 9002\n"
_MAPPED = _SERVER.replace("0100007F", "0000000000000000FFFF00000100007F")
_LOOPBACK_6 = _SERVER.replace("0100007F", "00000000000000000000000001000000")


def _channel(address: str) -> Any:
    ends = {"getpeername": lambda: (address, 3307), "getsockname": lambda: (address, 40001)}
    return SimpleNamespace(recv=lambda *_: b"x", **ends)


@pytest.mark.parametrize(
    ("tcp", "tcp6", "address", "uid"),
    [
        (_SERVER + _CLIENT, "", "127.0.0.1", 112),
        (_CLIENT + _SERVER, "", "127.0.0.1", 112),
        (_CLIENT, _MAPPED, "127.0.0.1", 112),
        ("", _LOOPBACK_6, "::1", 112),
        (_SERVER, "", "::ffff:127.0.0.1", 112),
        (_CLIENT, "", "127.0.0.1", None),
        (_SERVER.replace("0CEB", "0CEC"), "", "127.0.0.1", None),
        ("", "", "127.0.0.1", None),
    ],
)
def test_the_kernel_shows_the_account_of_the_other_end(
    fake_tree: Tree, tcp: str, tcp6: str, address: str, uid: int | None
) -> None:
    owner = "Uid:\t1\t1\t1\t112\n"
    tree = {"proc/net/tcp": _HEADER + tcp, "proc/net/tcp6": _HEADER + tcp6, "proc/7/status": owner}
    fake_tree({**tree, "proc/8/status": "Uid:\t112\t112\t112\t1001\n"})
    assert wire._read_peer_account(_channel(address)) == uid
    with nullcontext() if uid == 112 else pytest.raises(ConnectionRefusedError, match="no account of this host"):
        check_account(_channel(address), 7)
    with pytest.raises(ConnectionRefusedError):
        check_account(_channel(address), 8)
    with pytest.raises(ConnectionRefusedError):
        check_account(_channel(address), 9)


def test_the_listener_of_a_unix_socket_is_known() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        assert read_listener(ours) == os.getpid()
    wire.check_listener(4711, None)
    wire.check_listener(4711, 4711)
    wire.check_listener(os.getppid(), os.getpid())
    with pytest.raises(ConnectionRefusedError, match=f"process {os.getpid()} listens there, not 1"):
        wire.check_listener(os.getpid(), 1)


@pytest.fixture
def opened() -> Iterator[Callable[..., tuple[BoundedConnection, socket.socket]]]:
    ends: list[socket.socket] = []

    def connect(**limits: Any) -> tuple[BoundedConnection, socket.socket]:
        connection = BoundedConnection(Limits(**limits), 5.0, defer_connect=True, user="u")
        ours, theirs = socket.socketpair()
        ends.append(theirs)
        connection._sock = connection._received_from = ours
        return connection, theirs

    yield connect
    for end in ends:
        end.close()


def test_an_answer_has_at_most_its_bytes(opened: Callable[..., tuple[BoundedConnection, socket.socket]]) -> None:
    connection, theirs = opened(answer_bytes=1000)
    theirs.sendall(bytes(range(200)) * 11)
    connection._start_answer(5.0)
    assert connection._read_bytes(400) == bytes(range(200)) * 2
    assert connection._read_bytes(600) == bytes(range(200)) * 3
    connection._start_answer(5.0)
    assert connection._read_bytes(999) == (bytes(range(200)) * 5)[:999]
    with pytest.raises(err.OperationalError, match="answer is larger than 0 MiB"):
        connection._read_bytes(2)
    assert connection._sock is None
    for _ in range(2):
        connection.close()


def test_an_answer_has_at_most_its_rows(opened: Callable[..., tuple[BoundedConnection, socket.socket]]) -> None:
    connection, theirs = opened(rows=7)
    theirs.sendall(bytes(20_000))
    connection._start_answer(5.0)
    # Two reads for each of 7 rows, 4,096 columns and 8 markers.
    for _ in range(2 * (7 + 4096 + 8)):
        connection._read_bytes(1)
    with pytest.raises(err.OperationalError, match="answer is larger than 7 rows"):
        connection._read_bytes(1)


def test_time_for_all_answers_is_used_up(opened: Callable[..., tuple[BoundedConnection, socket.socket]]) -> None:
    connection, theirs = opened(waiting_s=9.0)
    connection._start_answer(5.0)
    assert connection._granted_s == 5.0
    connection._left_s = 0.125
    connection._start_answer(5.0)
    assert connection._granted_s == 0.125
    with pytest.raises(err.OperationalError, match="did not answer in 9 s in all"):
        connection._read_bytes(1)
    connection, theirs = opened()
    connection._start_answer(0.125)
    before_s = connection._left_s = 5.0
    with pytest.raises(err.OperationalError, match="did not answer in 0 s"):
        connection._read_bytes(1)
    assert 0.1 < before_s - connection._left_s < 4.0
    connection, theirs = opened()
    theirs.close()
    with pytest.raises(err.OperationalError, match="the server closed the connection"):
        connection._read_bytes(1)


def test_bytes_before_tls_are_of_another_sender(opened: Callable[..., tuple[BoundedConnection, socket.socket]]) -> None:
    connection, theirs = opened()
    theirs.sendall(b"early")
    assert connection._read_bytes(1) == b"e"
    connection._sock, before = connection._received_from.dup(), connection._sock
    with before, pytest.raises(err.OperationalError, match="before TLS was established"):
        connection._read_bytes(1)
