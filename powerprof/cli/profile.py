# SPDX-License-Identifier: Apache-2.0
"""Show which functions of a process use CPU time, or cause page faults (--event page-faults).

Every CPU is sampled. Each row is a function's share of the target's CPU time, with its sampling error as a 95 %
interval. Sampling wakes the CPUs, so the report has no energy figures.
"""

from __future__ import annotations

from powerprof.cli.options import CommandOptions, check_by, cost_bound, max_cost, source_lines, top
from powerprof.cli.output import check_saving, deliver
from powerprof.cli.outputs import STACKS, TABLES, Outputs, Saving, output_files
from powerprof.cli.parameters import EXPERT_HEADING, group, option, whole_number
from powerprof.cli.targets import ServerOptions, TargetOptions
from powerprof.cli.terminal import progress_printer
from powerprof.cli.window_options import duration


class Options(CommandOptions, frozen=True, kw_only=True):
    """The options of `profile`."""

    target: TargetOptions = group(TargetOptions)
    duration: float = duration(10.0)
    max_cost: float | None = max_cost("the target", "the frequency is lowered")
    event: str = option("--event", "NAME", "Event to count: cpu-clock or page-faults.", default="cpu-clock")
    frequency: int = whole_number(
        "--frequency", "HZ", "Samples per second and CPU.", default=99, low=1, high=10_000, heading=EXPERT_HEADING
    )
    by: str | None = option("--by", "WHAT", "Group rows by function, stack or thread.")
    top: int = top()
    lines: bool = source_lines()
    server: ServerOptions = group(ServerOptions)
    outputs: Outputs = output_files(*TABLES, *STACKS)
    saving: Saving = group(Saving)


def command(options: Options) -> None:
    """Sample the CPUs, save and print."""
    saving = check_saving(options.saving, options.outputs)
    from powerprof.attribution.profile import profile_target
    from powerprof.attribution.requests import ProfileRequest
    from powerprof.report.document import View
    from powerprof.report.profile import BY

    check_by(options.by, BY, lines=options.lines, default="function")
    if options.event == "page-faults":
        options.refuse_without_effect("with --event page-faults", ("--frequency", "--max-cost"))
    request = ProfileRequest(
        duration_s=options.duration,
        event=options.event,
        frequency_hz=options.frequency,
        settle=True,
        max_cost=cost_bound(options.max_cost),
    )
    record = profile_target(options.target, options.server, request, progress_printer(saving))
    deliver(record, "profile", saving, view=View(by=options.by, top=options.top, sources=options.lines))
