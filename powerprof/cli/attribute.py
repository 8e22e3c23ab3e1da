# SPDX-License-Identifier: Apache-2.0
"""Find the function and thread that wake the CPUs. Every idle exit of a process has a stack.

--pid takes process ids and names (mysqld also finds mariadbd). --from needs no root. Related commands: profile (CPU
time by function), functions (calls and self time), offcpu (sleeps, and the wakers that end them).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import msgspec
from msgspec.structs import replace

from powerprof.cli.meter_options import EnergyOptions
from powerprof.cli.options import CommandOptions, check_by, cost_bound, max_cost, source_lines, top
from powerprof.cli.output import check_saving, deliver
from powerprof.cli.outputs import STACKS, TABLES, Outputs, Saving, output_files
from powerprof.cli.parameters import Mode, flag, group, option, whole_number
from powerprof.cli.targets import OWN_SERVER, ServerOptions, TargetOptions
from powerprof.cli.terminal import progress_printer
from powerprof.cli.window_options import duration

if TYPE_CHECKING:
    from powerprof.report.document import Extras


class ViewOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The content of the report, and its capture."""

    HEADING: ClassVar[str] = "Report"

    by: str | None = option(
        "--by", "WHAT", "Group rows by stack, function, thread, device or unit (service, container, pod)."
    )
    top: int | None = top(
        "Rows to print (default: those with at least 1 % of the wake-ups).", default=None, excludes=("--all",)
    )
    everything: bool = flag("--all", "Print all rows.")
    lines: bool = source_lines()
    from_run: str | None = option("--from", "RUN", "Analyse a saved capture again.")


class Options(CommandOptions, frozen=True, kw_only=True):
    """The options of `attribute`."""

    MODES: ClassVar[tuple[Mode, ...]] = (
        Mode(
            words=("--from",),
            refuses=(
                *("--pid", "--cgroup", "--system", "--only", "--duration", "--max-cost", "--stack-buffer", "--meter"),
                "--no-save",
                *OWN_SERVER,
            ),
        ),
    )

    target: TargetOptions = group(TargetOptions)
    duration: float = duration(10.0)
    max_cost: float | None = max_cost("the target")
    view: ViewOptions = group(ViewOptions)
    server: ServerOptions = group(ServerOptions)
    energy: EnergyOptions = group(EnergyOptions)
    stack_buffer: int = whole_number(
        "--stack-buffer", "KIB", "Ring buffer for stacks in KiB, a power of two.", default=4096, low=4, high=1 << 20
    )
    outputs: Outputs = output_files(*TABLES, *STACKS, "perfetto")
    saving: Saving = group(Saving)


def command(options: Options) -> None:
    """Trace the wake-ups, or read a saved capture; then save and print them."""
    target, view, saving = options.target, options.view, options.saving
    if view.from_run is not None:
        saving = replace(saving, no_save=True)
    from powerprof.report.document import ALL_ROWS

    rows = ALL_ROWS if view.everything else view.top
    saving = check_saving(saving, options.outputs)
    from powerprof.attribution import attribute
    from powerprof.attribution.requests import AttributeRequest

    if view.by is not None or view.lines:
        from powerprof.report.wakeup_groups import BY

        check_by(view.by, BY, lines=view.lines)
    if view.from_run is None:
        request = AttributeRequest(
            duration_s=options.duration,
            stack_buffer_kib=options.stack_buffer,
            max_cost=cost_bound(options.max_cost),
            energy=options.energy.request,
            settle=True,
        )
        result = attribute.attribute(target, options.server, request, progress_printer(saving))
    else:
        result = attribute.replay(view.from_run, saving.runs_dir)
    # This import comes after the window, which it would delay.
    from powerprof.report.document import View

    def extras_of_result() -> Extras:
        from powerprof.report.exports import extras_of_capture

        return extras_of_capture(result.capture)

    deliver(
        result.record,
        "attribute",
        saving,
        view=View(by=view.by, top=rows, sources=view.lines),
        raw=None if saving.no_save else result.files(),
        extras=extras_of_result,
    )
