# SPDX-License-Identifier: Apache-2.0
"""`powerprof servers` for a terminal and as JSON."""

from __future__ import annotations

from collections.abc import Sequence

from powerprof.database import historical
from powerprof.database.historical import HistoricalServer


def record(server: HistoricalServer) -> dict[str, object]:
    """A server of `powerprof.servers/1`."""
    fetched = historical.is_fetched(server)
    return {
        "name": server.name,
        "version": server.version,
        "description": server.description,
        "licence": server.licence,
        "download_bytes": server.download_bytes,
        "machine": server.source.machine,
        "fetched": fetched,
        "path": str(historical.folder(server)) if fetched else None,
    }


def listing(servers: Sequence[HistoricalServer]) -> list[str]:
    """Two lines a server: what it is, and how it is had."""
    printed = []
    for server in servers:
        there = historical.is_fetched(server)
        state = f"fetched: {historical.folder(server)}" if there else f"powerprof servers fetch {server.name}"
        machine = f"{server.source.machine}, " if server.source.machine else ""
        printed += [
            f"{server.name}  {server.description}",
            f"  {machine}{server.download_bytes / 1e6:.0f} MB to download, {server.licence} · {state}",
        ]
    return printed


def ready(server: HistoricalServer, said: str) -> list[str]:
    """That it is there, where, and under which licence."""
    build = historical.build(server.name)
    return [
        f"{server.name} {said}: {historical.folder(server)}",
        f"{build.name}, licence {server.licence} ({server.licence_text}). {server.doubt}.",
    ]
