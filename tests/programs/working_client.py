# SPDX-License-Identifier: Apache-2.0
"""A client that sends a statement again and again."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from powerprof.database import sql
from powerprof.database.private_server import PrivateServer


@contextmanager
def working(server: PrivateServer, pause_s: float) -> Iterator[None]:
    """Send SELECT 1 to the server, each after a pause, until the block ends."""
    ended = threading.Event()

    def work() -> None:
        with server.connect() as connection:
            while not ended.wait(pause_s):
                sql.fetch_rows(connection, "SELECT 1")

    client = threading.Thread(target=work)
    client.start()
    try:
        yield
    finally:
        ended.set()
        client.join()
