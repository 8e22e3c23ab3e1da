# SPDX-License-Identifier: Apache-2.0
"""Lists of `powerprof servers`: servers of other releases, and connectors."""

from __future__ import annotations

from collections.abc import Sequence

from powerprof.database import historical
from powerprof.database.historical import Connector, HistoricalServer, format_size, is_fetched
from powerprof.system.next_steps import command_line


def server_record(thing: HistoricalServer | Connector) -> dict[str, object]:
    """Return a server or a connector of `powerprof.servers/1`."""
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


def server_lines(things: Sequence[HistoricalServer | Connector]) -> list[str]:
    """Return two lines per server or connector: description and availability."""
    printed = []
    for thing in things:
        machine = thing.source.machine if isinstance(thing, HistoricalServer) else None
        size = f"{machine}, {format_size(thing)}" if machine else format_size(thing)
        state = f"fetched: {thing.place}" if is_fetched(thing) else command_line("servers fetch {}", thing.name)
        printed += [f"{thing.name}  {thing.description}", f"  {size} to download, {thing.licence} · {state}"]
    return printed


def fetched_lines(server: HistoricalServer, state: str) -> list[str]:
    """Return the location and the licence of a fetched server."""
    build = historical.load_build(server.name)
    return [
        f"{server.name} {state}: {server.place}",
        f"{build.name}, licence {server.licence} ({server.licence_text}). {server.doubt}.",
    ]
