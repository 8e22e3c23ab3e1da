# SPDX-License-Identifier: Apache-2.0
"""List the saved runs, or where one is."""

from __future__ import annotations

from typing import Annotated

import typer

from powerprof.cli.options import Json, RunsDir
from powerprof.cli.output import check_targets, say, write_json
from powerprof.errors import UsageError

Name = Annotated[str | None, typer.Argument(metavar="[RUN]", help="A run: its file is printed.", show_default=False)]


def command(name: Name = None, runs_dir: RunsDir = None, json: Json = None) -> None:
    """List, oldest first."""
    check_targets(json)
    from powerprof.report import runs
    from powerprof.runs import RunStore, schema_of

    store = RunStore(runs_dir)
    if name is not None:
        if json is not None:
            raise UsageError("--json lists the runs, and one was named", f"powerprof report {name} --json FILE")
        path = store.find(name)
        schema_of(path)
        say(str(path))
        return
    found = store.list()
    write_json({"schema": "powerprof.runs/1", "runs": found}, json)
    if json is None:
        say("\n".join(runs.lines(found, store.directory)))
