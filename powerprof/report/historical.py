# SPDX-License-Identifier: Apache-2.0
"""`powerprof servers` for a terminal and as JSON: servers of other releases, and connectors."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from powerprof.database import connectors, historical
from powerprof.database.connectors import Connector
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
        machine = f"{server.source.machine}, " if server.source.machine else ""
        size = f"{machine}{server.download_bytes / 1e6:.0f} MB"
        there = historical.folder(server) if historical.is_fetched(server) else None
        printed += _two_lines(server, size, there)
    return printed


def connector_record(connector: Connector) -> dict[str, object]:
    """A Java connector of `powerprof.servers/1`."""
    fetched = connectors.is_fetched(connector)
    return {
        "name": connector.name,
        "version": connector.artifact.version,
        "description": connector.description,
        "licence": connector.licence,
        "download_bytes": connector.artifact.size_bytes,
        "fetched": fetched,
        "path": str(connectors.place(connector)) if fetched else None,
    }


def connectors_listing(known: Sequence[Connector]) -> list[str]:
    """Two lines a connector, as of a server."""
    printed = []
    for connector in known:
        there = connectors.place(connector) if connectors.is_fetched(connector) else None
        printed += _two_lines(connector, f"{connector.artifact.size_bytes / 1e6:.1f} MB", there)
    return printed


def _two_lines(what: HistoricalServer | Connector, size: str, there: Path | None) -> list[str]:
    state = f"powerprof servers fetch {what.name}" if there is None else f"fetched: {there}"
    return [f"{what.name}  {what.description}", f"  {size} to download, {what.licence} · {state}"]


def ready(server: HistoricalServer, said: str) -> list[str]:
    """That it is there, where, and under which licence."""
    build = historical.build(server.name)
    return [
        f"{server.name} {said}: {historical.folder(server)}",
        f"{build.name}, licence {server.licence} ({server.licence_text}). {server.doubt}.",
    ]
