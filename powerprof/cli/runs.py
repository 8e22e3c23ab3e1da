"""List the saved runs, or where one is."""

from __future__ import annotations

from typing import Annotated

import typer

from powerprof.cli.options import Json, RunsDir, check_json_target, write_json

Name = Annotated[str | None, typer.Argument(metavar="[RUN]", help="A run: its file is printed.", show_default=False)]


def command(name: Name = None, runs_dir: RunsDir = None, json: Json = None) -> None:
    """List, oldest first."""
    check_json_target(json)
    import msgspec

    from powerprof.runs import RunStore, schema_of

    store = RunStore(runs_dir)
    if name is not None:
        path = store.find(name)
        schema_of(path)
        print(path)
        return
    found = store.list()
    if json is not None:
        write_json({"schema": "powerprof.runs/1", "runs": [msgspec.to_builtins(run) for run in found]}, json)
        return
    if not found:
        print(f"No runs in {store.directory}.")
    for run in found:
        state = run.problem or ("interrupted" if run.interrupted else "")
        print(f"{run.id:<24}{run.started_at or '?':<26}{run.schema or '?':<26}{state}".rstrip())
