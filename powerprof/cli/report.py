"""Show a saved run again, as text or as its JSON: the same run always gives the same output."""

from __future__ import annotations

from typing import Annotated

import typer

from powerprof.cli.options import Json, RunsDir, check_json_target, show, terminal_width, write_json

Name = Annotated[str, typer.Argument(metavar="RUN", help="Run id, run folder or JSON file.")]


def command(name: Name, runs_dir: RunsDir = None, json: Json = None) -> None:
    """Read and render."""
    check_json_target(json)
    from powerprof.report.saved import load_saved

    saved = load_saved(name, runs_dir)
    if json is not None:
        write_json(saved.record, json)
    if json != "-":
        show(saved.lines(terminal_width()))
