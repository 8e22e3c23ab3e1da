# SPDX-License-Identifier: Apache-2.0
"""Clients of a private MariaDB, for what tells its statements by probes and by samples."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from powerprof.database import sql
from powerprof.database.base import Login
from powerprof.database.private_server import PrivateServer

BURN = "SELECT BENCHMARK({}, SHA2('x', 256))"
BURN_TEXT = "SELECT BENCHMARK(?, SHA2(?, …))"


@contextmanager
def asking(
    server: PrivateServer, *texts: str, database: str | None = None, pause_s: float = 0.0, login: Login | None = None
) -> Iterator[None]:
    """A client that executes these until the end."""
    stop = threading.Event()

    def client() -> None:
        connected = server.connect(database=database) if login is None else sql.connect(login)
        with connected as connection, connection.cursor() as cursor:
            while not stop.is_set():
                for text in texts:
                    cursor.execute(text)
                time.sleep(pause_s)

    worker = threading.Thread(target=client)
    worker.start()
    try:
        yield
    finally:
        stop.set()
        worker.join()


@contextmanager
def a_thousand_connections(server: PrivateServer) -> Iterator[list[Any]]:
    """All at once."""
    with ExitStack() as stack:
        yield [stack.enter_context(server.connect()) for _ in range(1000)]


def prepare(connection: Any, text: str) -> int:
    """COM_STMT_PREPARE; the server's number of the statement. PyMySQL has no prepared statements of the protocol."""
    connection._execute_command(22, text)
    packet = connection._read_packet()
    data = packet.get_all_data()
    number, columns, parameters = int.from_bytes(data[1:5], "little"), data[5], data[7]
    for count in (parameters, columns):
        for _ in range(count + 1 if count else 0):
            connection._read_packet()
    return number


def execute(connection: Any, number: int, value: int | None = None) -> None:
    """COM_STMT_EXECUTE without parameters, or with one of four bytes; reads the one row."""
    bound = b"" if value is None else b"\0\1\3\0" + value.to_bytes(4, "little")
    connection._execute_command(23, number.to_bytes(4, "little") + b"\0\1\0\0\0" + bound)
    ends = 0
    while ends < 2:
        packet = connection._read_packet()
        ends += packet.is_eof_packet()


def server_status(connection: Any, name: str) -> int:
    """A counter of the server."""
    with connection.cursor() as cursor:
        cursor.execute(f"SHOW GLOBAL STATUS LIKE '{name}'")
        return int(cursor.fetchall()[0][1])


def wait_until_alone(server: PrivateServer) -> None:
    """Until no client's thread is left: the server's own have names, which no connection's has (MariaDB)."""
    assert server.pid is not None
    until = time.monotonic() + 30
    while time.monotonic() < until:
        names = [path.read_text().strip() for path in Path(f"/proc/{server.pid}/task").glob("*/comm") if path.exists()]
        if "one_connection" not in names:
            return
        time.sleep(0.002)
    raise AssertionError(f"clients are left: {names}")
