# SPDX-License-Identifier: Apache-2.0
"""How often are functions called, and how much CPU time do they use themselves? Counted by probes in a process.

GLOB means functions of the program ('handle_slave*'); libc.so*:mem* those of a library. Where exceptions can pass,
probes are placed where a function is left, which harms nothing; --allow-unwinding-risk takes the cheaper return probes,
and then an exception that passes one ends the process.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from functools import partial
from typing import Annotated

import typer

from powerprof.cli.options import Backend, Duration, Saving, TargetOptions, Top
from powerprof.cli.output import check, deliver, say_to
from powerprof.system.errors import UsageError

Pattern = Annotated[str, typer.Argument(metavar="GLOB", help="Which functions: GLOB or MODULE:GLOB.")]


@dataclass(frozen=True, kw_only=True)
class ProbeOptions:
    """How they are probed."""

    max_functions: Annotated[
        int, typer.Option("--max-functions", metavar="N", min=1, max=1022, help="Most functions to probe.")
    ] = 200
    backend: Backend = "auto"
    allow_unwinding_risk: Annotated[
        bool,
        typer.Option(
            "--allow-unwinding-risk", help="Return probes: cheaper, but an exception that passes one ENDS THE PROCESS."
        ),
    ] = False
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask before what --allow-unwinding-risk allows.")] = False


def agree(danger: str, yes: bool) -> None:
    """Say on stderr what can happen to the target, and ask on a terminal. Raises UsageError where it is not agreed."""
    typer.echo(f"warning: {danger}", err=True)
    if yes:
        return
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise UsageError("confirmation needs a terminal", "add --yes, or leave out --allow-unwinding-risk")
    try:
        agreed = typer.confirm("Place these probes?", err=True)
    except typer.Abort:  # end of input
        agreed = False
    if not agreed:
        raise UsageError("not agreed: nothing was probed", "leave out --allow-unwinding-risk")


def command(
    *,
    pattern: Pattern,
    target: TargetOptions,
    duration: Duration = 10.0,
    probes: ProbeOptions,
    top: Top = 20,
    saving: Saving,
) -> None:
    """Probe, save, print."""
    saving = check(saving)
    if probes.yes and not probes.allow_unwinding_risk:
        raise UsageError("--yes agrees to --allow-unwinding-risk, which was not given", "leave --yes out")
    from powerprof.attribution.functions import count_functions
    from powerprof.attribution.requests import FunctionsRequest
    from powerprof.report.profile import render_functions_terminal

    request = FunctionsRequest(
        duration_s=duration,
        pattern=pattern,
        limit=probes.max_functions,
        backend=probes.backend,
        unwinding_risk=probes.allow_unwinding_risk,
        settle=True,
    )
    record = count_functions(target, request, say_to(saving), lambda danger: agree(danger, probes.yes))
    deliver(record, "functions", saving, lines=partial(render_functions_terminal, top=top))
