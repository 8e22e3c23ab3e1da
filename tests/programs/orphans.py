# SPDX-License-Identifier: Apache-2.0
"""An event that circles in a ring of servers for ever: its server id belongs to none of them."""

from __future__ import annotations

from powerprof.database import sql
from powerprof.database.private_server import PrivateServer
from powerprof.database.server_options import ServerOptions
from powerprof.database.topology import ServerTopology

ORPHAN_ID = 99


def ring() -> ServerTopology:
    """Two servers that would take such an event."""
    return ServerTopology("ring", 2, options=ServerOptions(settings={"binlog-format": "STATEMENT"}))


def orphan(server: PrivateServer) -> None:
    """Set one off."""
    with server.connect() as connection:
        sql.execute(
            *(connection, "CREATE DATABASE shop", "CREATE TABLE shop.t (n BIGINT)", "INSERT INTO shop.t VALUES (0)"),
            *(f"SET SESSION server_id={ORPHAN_ID}", "UPDATE shop.t SET n=n+1"),
        )
