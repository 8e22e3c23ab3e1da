# SPDX-License-Identifier: Apache-2.0
"""Count the calls of functions and their own CPU time, with probes in a running process.

GLOB selects functions of the program ('handle_slave*'); libc.so*:mem* selects functions of a library. If an exception
can pass through a function, powerprof probes its return instructions, which is safe.
"""

from __future__ import annotations

from typing import ClassVar

import msgspec

from powerprof.cli.options import CommandOptions, backend, cost_bound, max_cost, top
from powerprof.cli.output import check_saving, deliver
from powerprof.cli.outputs import TABLES, Outputs, Saving, output_files
from powerprof.cli.parameters import EXPERT_HEADING, argument, flag, group, whole_number
from powerprof.cli.targets import TargetOptions
from powerprof.cli.terminal import confirm, print_text, progress_printer
from powerprof.cli.window_options import duration


class ProbeOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The kind and number of the probes."""

    HEADING: ClassVar[str] = "Probes"

    max_functions: int = whole_number(
        "--max-functions",
        "N",
        "Maximum number of probed functions.",
        default=200,
        low=1,
        high=1022,
        heading=EXPERT_HEADING,
    )
    backend: str = backend()
    allow_unwinding_risk: bool = flag(
        "--allow-unwinding-risk",
        "Use return probes: cheaper, but an exception that passes through one ENDS THE PROCESS.",
        heading=EXPERT_HEADING,
    )
    yes: bool = flag("--yes", "Do not ask before using --allow-unwinding-risk.", needs=("--allow-unwinding-risk",))


class Options(CommandOptions, frozen=True, kw_only=True):
    """The options of `functions`."""

    pattern: str = argument("GLOB", "Functions to count: GLOB or MODULE:GLOB.", is_required=True, example="handle_*")
    target: TargetOptions = group(TargetOptions)
    duration: float = duration(10.0)
    max_cost: float | None = max_cost("the target")
    probes: ProbeOptions = group(ProbeOptions)
    top: int = top()
    outputs: Outputs = output_files(*TABLES)
    saving: Saving = group(Saving)


def _agree(danger: str, yes: bool) -> None:
    """Print the danger on stderr and ask on a terminal. Raise UsageError without a terminal, Declined after a no."""
    print_text(f"warning: {danger}", error=True)
    if not yes:
        remedy = "leave out --allow-unwinding-risk"
        confirm("Place these probes?", without_terminal=f"add --yes, or {remedy}", declined="no probe was placed")


def command(options: Options) -> None:
    """Count calls with probes, save and print."""
    saving, probes = check_saving(options.saving, options.outputs), options.probes
    if probes.backend == "dtrace":
        options.refuse_without_effect("with --backend dtrace", ("--max-cost",))
    from powerprof.attribution.profile import count_functions
    from powerprof.attribution.requests import FunctionsRequest
    from powerprof.report.document import View

    request = FunctionsRequest(
        duration_s=options.duration,
        pattern=options.pattern,
        limit=probes.max_functions,
        backend=probes.backend,
        unwinding_risk=probes.allow_unwinding_risk,
        settle=True,
        max_cost=cost_bound(options.max_cost),
    )
    record = count_functions(
        options.target, request, progress_printer(saving), lambda danger: _agree(danger, probes.yes)
    )
    deliver(record, "functions", saving, view=View(top=options.top))
