# SPDX-License-Identifier: Apache-2.0
"""Which programs and libraries of a process have names for their functions, and what brings the rest?

Shows for each file where its names come from, and prints the one command that gets those that are missing: the
distribution's debug package, else debuginfod. --duration traces wake-ups to see which names matter; RUN takes a saved
run of attribute instead. --fetch downloads debug files from the servers in DEBUGINFOD_URLS, after asking.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from powerprof.cli.options import Json, Quiet, RunsDir, TargetOptions, Top
from powerprof.cli.output import check_targets, consent, progress, show, terminal_width, write_json
from powerprof.system.errors import UsageError

RunName = Annotated[str | None, typer.Argument(metavar="[RUN]", help="A saved run of attribute.")]
Seconds = Annotated[
    float | None, typer.Option("--duration", metavar="S", min=0.3, max=3600, help="Trace wake-ups for so long.")
]
Fetch = Annotated[bool, typer.Option("--fetch", help="Download debug files from the servers in DEBUGINFOD_URLS.")]
Yes = Annotated[bool, typer.Option("--yes", help="Agree to the download; for scripts.")]


def command(
    *,
    run: RunName = None,
    target: TargetOptions,
    duration: Seconds = None,
    fetch: Fetch = False,
    yes: Yes = False,
    top: Top = 20,
    runs_dir: RunsDir = None,
    json: Json = None,
    quiet: Quiet = False,
) -> None:
    """Look, fetch, print."""
    check_targets(json)
    check_options(run, duration, fetch, yes, runs_dir)
    from powerprof.attribution.symbols import SymbolsRequest, find_symbols
    from powerprof.report.catalogue import lines

    request = SymbolsRequest(run=run, runs_dir=runs_dir, duration_s=duration, fetch=fetch)
    record = find_symbols(target, request, lambda text: progress(text, quiet), lambda question: consent(question, yes))
    write_json(record, json)
    if json != "-" and not quiet:
        show(lines(record, terminal_width(), top=top))


def check_options(run: str | None, duration: float | None, fetch: bool, yes: bool, runs_dir: Path | None) -> None:
    """Refuse what would have no effect. Raises UsageError."""
    if run is not None and duration is not None:
        raise UsageError("--duration has no effect with a saved run, which measures nothing", "leave it out")
    if run is None and runs_dir is not None:
        raise UsageError("--runs-dir has no effect without a saved run: symbols saves none", "leave it out")
    if yes and not fetch:
        raise UsageError("--yes agrees to a download, and there is none without --fetch", "add --fetch")
