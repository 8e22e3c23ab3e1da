"""List and fetch servers of the past that a study was made on.

`list` shows those that there are, `fetch NAME` brings one. A fetched server is checked, kept in the cache and run only
on loopback with data of its own. `compare`, `run` and `sweep` take it by --server-build NAME.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from powerprof.cli.options import Json, Quiet, check_json_target, progress, show, write_json
from powerprof.errors import PowerprofError, UsageError

if TYPE_CHECKING:
    from powerprof.database.historical import HistoricalServer

Action = Annotated[str, typer.Argument(metavar="ACTION", help="list or fetch.")]
Name = Annotated[str | None, typer.Argument(metavar="[NAME]", help="Which one to fetch, such as mysql-5.5.9.")]
Yes = Annotated[bool, typer.Option("--yes", help="Agree to the download; for scripts.")]


def command(
    action: Action = "list", name: Name = None, yes: Yes = False, json: Json = None, quiet: Quiet = False
) -> None:
    """List or fetch."""
    check_json_target(json)
    if action == "list":
        if name is not None:
            raise UsageError("list takes no name", "powerprof servers fetch NAME")
        _list(json, quiet)
    elif action == "fetch":
        if name is None:
            raise UsageError("fetch needs a name", "powerprof servers list")
        _fetch(name, yes, json, quiet)
    else:
        raise UsageError(f"servers {action} is no action", "list or fetch")


def _list(json: str | None, quiet: bool) -> None:
    from powerprof.database import historical

    found = [_record(one) for one in historical.CATALOGUE.values()]
    if json is not None:
        write_json({"schema": "powerprof.servers/1", "servers": found}, json)
    if json == "-" or quiet:
        return
    lines = []
    for one in historical.CATALOGUE.values():
        there = historical.is_fetched(one)
        state = f"fetched: {historical.folder(one)}" if there else f"powerprof servers fetch {one.name}"
        lines += [
            f"{one.name}  {one.description}",
            f"  {one.machine}, {one.artifact.size_bytes / 1e6:.0f} MB to download, {one.licence} · {state}",
        ]
    show(lines)


def _record(server: HistoricalServer) -> dict[str, object]:
    from powerprof.database import historical

    return {
        "name": server.name,
        "version": server.version,
        "description": server.description,
        "licence": server.licence,
        "download_bytes": server.artifact.size_bytes,
        "machine": server.machine,
        "fetched": historical.is_fetched(server),
        "path": str(historical.folder(server)) if historical.is_fetched(server) else None,
    }


def _fetch(name: str, yes: bool, json: str | None, quiet: bool) -> None:
    from powerprof.database import historical

    server = historical.find(name)
    before = historical.is_fetched(server)
    build = historical.fetch(name, lambda question: _consent(question, yes), lambda said: progress(said, quiet))
    if json is not None:
        write_json({"schema": "powerprof.servers/1", "servers": [_record(server)]}, json)
    if json != "-" and not quiet:
        said = "was there already" if before else "fetched, checked and started once"
        show(
            [
                f"{name} {said}: {historical.folder(server)}",
                f"{build.name}, licence {server.licence} ({server.licence_text}). "
                "It has known security holes: loopback and throwaway data only.",
            ]
        )


def _consent(question: str, yes: bool) -> bool:
    """Asked at a terminal; elsewhere only --yes agrees."""
    if yes:
        print(f"{question}: agreed by --yes", file=sys.stderr)
        return True
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise PowerprofError("a download needs consent, and there is no terminal to ask at", "give --yes")
    print(f"{question}. Fetch it? [y/N] ", file=sys.stderr, end="", flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")
