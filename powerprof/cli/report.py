"""Show a saved run again, or write it as a file of another kind.

That is HTML, Markdown, CSV, JSON, or a profile for another viewer; the same run always gives the same output. A flame
graph, folded stacks and profiles need an attribution. The page of a comparison has the flame graphs of its own traced
windows, or with --flame-a and --flame-b those of two attributions and their difference.
"""

from __future__ import annotations

from typing import Annotated

import typer

from powerprof.cli.exports import (
    Csv,
    Flame,
    Folded,
    Html,
    Markdown,
    Perfetto,
    Pprof,
    Speedscope,
    check_targets,
    write_exports,
)
from powerprof.cli.options import Json, RunsDir, check_json_target, show, terminal_width, write_json
from powerprof.errors import UsageError

Name = Annotated[str, typer.Argument(metavar="RUN", help="Run id, run folder or JSON file.")]
FlameA = Annotated[str | None, typer.Option("--flame-a", metavar="RUN", help="Attribution of a comparison's A.")]
FlameB = Annotated[str | None, typer.Option("--flame-b", metavar="RUN", help="Attribution of a comparison's B.")]


def command(
    name: Name,
    html: Html = None,
    markdown: Markdown = None,
    csv: Csv = None,
    flame: Flame = None,
    folded: Folded = None,
    pprof: Pprof = None,
    speedscope: Speedscope = None,
    perfetto: Perfetto = None,
    flame_a: FlameA = None,
    flame_b: FlameB = None,
    runs_dir: RunsDir = None,
    json: Json = None,
) -> None:
    """Read and render."""
    check_json_target(json)
    files = {
        "html": html,
        "markdown": markdown,
        "csv": csv,
        "flame": flame,
        "folded": folded,
        "pprof": pprof,
        "speedscope": speedscope,
        "perfetto": perfetto,
    }
    check_targets({**files, "json": json})
    if (flame_a or flame_b) and html is None:
        raise UsageError("--flame-a and --flame-b are for a page", "add --html FILE")
    from powerprof.report.saved import load_saved

    saved = load_saved(name, runs_dir)
    extras = None
    if html is not None or perfetto is not None:
        from powerprof.report.beside import extras_of

        extras = extras_of(name, runs_dir, (flame_a, flame_b))
    taken = write_exports(saved.record, files, extras)
    if json is not None:
        write_json(saved.record, json)
    # Who asked for files wants files: the report is shown where none was asked for.
    if not taken and not any(files.values()) and json != "-":
        show(saved.lines(terminal_width()))
