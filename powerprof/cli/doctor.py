# SPDX-License-Identifier: Apache-2.0
"""What can this host do, and what fixes the rest?

Looks at every capability that powerprof can use and really tries the ones that often fail, such as loading a
BPF program. Needs no privileges, changes nothing and always ends with 0 when it could look.

ok: works. missing: the command after the arrow provides it. none: this host has no such hardware. limited:
works in part, or for root.

With --pid it shows instead which programs and libraries of a process have names for their functions, and the one
command that gets the missing names: the distribution's debug package, else debuginfod. --duration traces wake-ups to
show which names matter. --from uses a saved run of attribute. --fetch downloads debug files after a question.
"""

from __future__ import annotations

from typing import Annotated

import typer

from powerprof.cli.options import Json, Quiet, RunsDir, TargetOptions, Top, refuse_without_effect
from powerprof.cli.output import check_targets, consent, progress, say, show, terminal_width, write_json
from powerprof.system.errors import UsageError

From = Annotated[str | None, typer.Option("--from", metavar="RUN", help="Show the names in a saved run of attribute.")]
Seconds = Annotated[
    float | None, typer.Option("--duration", metavar="S", min=0.3, max=3600, help="Trace wake-ups for so long.")
]
Fetch = Annotated[bool, typer.Option("--fetch", help="Download debug files from the servers in DEBUGINFOD_URLS.")]
Yes = Annotated[bool, typer.Option("--yes", help="Agree to the download; for scripts.")]


def command(
    *,
    context: typer.Context,
    target: TargetOptions,
    duration: Seconds = None,
    from_run: From = None,
    fetch: Fetch = False,
    yes: Yes = False,
    top: Top = 20,
    runs_dir: RunsDir = None,
    json: Json = None,
    quiet: Quiet = False,
) -> None:
    """Print the capabilities of the host, or the names of a process. Raises UsageError."""
    check_targets(json)
    if from_run is None and not (target.pid or target.cgroup or target.system):
        refuse_without_effect(context, "without --pid, --cgroup, --system or --from", but=("json",))
        from powerprof.host import capabilities, describe
        from powerprof.report.catalogue import capability_text

        capabilities_here = capabilities()
        write_json({"schema": "powerprof.doctor/1", "host": describe(), "capabilities": capabilities_here}, json)
        if json != "-":
            say(capability_text(capabilities_here))
        return
    if from_run is not None and duration is not None:
        raise UsageError("--duration has no effect with a saved run, which measures nothing", "leave it out")
    if from_run is None and runs_dir is not None:
        raise UsageError("--runs-dir has no effect without a saved run: doctor saves none", "leave it out")
    if yes and not fetch:
        raise UsageError("--yes agrees to a download, and there is none without --fetch", "add --fetch")
    from powerprof.attribution.symbols import SymbolsRequest, find_symbols
    from powerprof.report.catalogue import symbols_lines

    request = SymbolsRequest(run=from_run, runs_dir=runs_dir, duration_s=duration, fetch=fetch)
    record = find_symbols(target, request, lambda text: progress(text, quiet), lambda question: consent(question, yes))
    write_json(record, json)
    if json != "-" and not quiet:
        show(symbols_lines(record, terminal_width(), top=top))
