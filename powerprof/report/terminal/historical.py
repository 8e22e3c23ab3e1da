# SPDX-License-Identifier: Apache-2.0
"""`powerprof servers` for a terminal and as JSON: servers of other releases, and connectors."""

from __future__ import annotations

from collections.abc import Sequence

from powerprof.database.fetched import historical
from powerprof.database.fetched.connectors import Connector
from powerprof.database.fetched.historical import HistoricalServer
from powerprof.database.fetched.on_request import is_fetched, size_text


def record(thing: HistoricalServer | Connector) -> dict[str, object]:
    """A server or a connector of `powerprof.servers/1`."""
    fetched = is_fetched(thing)
    machine = {"machine": thing.source.machine} if isinstance(thing, HistoricalServer) else {}
    return {
        "name": thing.name,
        "version": thing.version,
        "description": thing.description,
        "licence": thing.licence,
        "download_bytes": thing.download_bytes,
        **machine,
        "fetched": fetched,
        "path": str(thing.place) if fetched else None,
    }


def listing(things: Sequence[HistoricalServer | Connector]) -> list[str]:
    """Two lines for each: what it is, and how it is had."""
    printed = []
    for thing in things:
        machine = thing.source.machine if isinstance(thing, HistoricalServer) else None
        size = f"{machine}, {size_text(thing)}" if machine else size_text(thing)
        state = f"fetched: {thing.place}" if is_fetched(thing) else f"powerprof servers fetch {thing.name}"
        printed += [f"{thing.name}  {thing.description}", f"  {size} to download, {thing.licence} · {state}"]
    return printed


def ready(server: HistoricalServer, state: str) -> list[str]:
    """That it is there, where, and under which licence."""
    build = historical.build(server.name)
    return [
        f"{server.name} {state}: {server.place}",
        f"{build.name}, licence {server.licence} ({server.licence_text}). {server.doubt}.",
    ]
