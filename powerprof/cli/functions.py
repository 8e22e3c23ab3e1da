# SPDX-License-Identifier: Apache-2.0
"""How often are functions called, and how much CPU time do they use themselves? Counted by probes in a process.

GLOB means functions of the program ('handle_slave*'); libc.so*:mem* those of a library. Where exceptions can pass,
probes are placed where a function is left, which harms nothing; --allow-unwinding-risk takes the cheaper return probes,
and then an exception that passes one ends the process.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from powerprof.cli.options import CommandOptions, Saving, TargetOptions, backend, confirm, duration, top
from powerprof.cli.output import check_saving, deliver, print_text, progress_printer
from powerprof.cli.parameters import argument, flag, group, whole_number
from powerprof.system.errors import UsageError


@dataclass(frozen=True, kw_only=True)
class ProbeOptions:
    """The kind and number of the probes."""

    HEADING: ClassVar[str] = "How they are probed"

    max_functions: int = whole_number("--max-functions", "N", "Most functions to probe.", default=200, low=1, high=1022)
    backend: str = backend()
    allow_unwinding_risk: bool = flag(
        "--allow-unwinding-risk", "Return probes: cheaper, but an exception that passes one ENDS THE PROCESS."
    )
    yes: bool = flag("--yes", "Do not ask before what --allow-unwinding-risk allows.")


@dataclass(frozen=True, kw_only=True)
class Options(CommandOptions):
    """The options of `functions`."""

    pattern: str = argument("GLOB", "Which functions: GLOB or MODULE:GLOB.", is_required=True)
    target: TargetOptions = group(TargetOptions)
    duration: float = duration(10.0)
    probes: ProbeOptions = group(ProbeOptions)
    top: int = top()
    saving: Saving = group(Saving)


def _agree(danger: str, yes: bool) -> None:
    """Print the danger for the target on stderr and ask on a terminal. Raise UsageError without consent."""
    print_text(f"warning: {danger}", error=True)
    if not yes:
        remedy = "leave out --allow-unwinding-risk"
        confirm(
            "Place these probes?",
            without_terminal=f"add --yes, or {remedy}",
            declined=UsageError("not agreed: nothing was probed", remedy),
        )


def command(options: Options) -> None:
    """Count calls with probes, save and print."""
    saving, probes = check_saving(options.saving), options.probes
    if probes.yes and not probes.allow_unwinding_risk:
        raise UsageError("--yes agrees to --allow-unwinding-risk, which was not given", "leave --yes out")
    from powerprof.attribution.profile import count_functions
    from powerprof.attribution.requests import FunctionsRequest
    from powerprof.report.profile import render_functions_terminal

    request = FunctionsRequest(
        duration_s=options.duration,
        pattern=options.pattern,
        limit=probes.max_functions,
        backend=probes.backend,
        unwinding_risk=probes.allow_unwinding_risk,
        settle=True,
    )
    record = count_functions(
        options.target, request, progress_printer(saving), lambda danger: _agree(danger, probes.yes)
    )
    deliver(record, "functions", saving, lines=partial(render_functions_terminal, top=options.top))
