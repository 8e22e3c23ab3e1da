# SPDX-License-Identifier: Apache-2.0
"""Show how long threads sleep or wait for a CPU, and which thread wakes them.

The kernel sums sleeps by thread and wait state. A timer or device that wakes a thread is shown as an interrupt.
--backend dtrace traces one process: sleeps in the first window, wake-ups in the second.
"""

from __future__ import annotations

from powerprof.cli.options import CommandOptions, backend, cost_bound, max_cost, top
from powerprof.cli.output import check_saving, deliver
from powerprof.cli.outputs import TABLES, Outputs, Saving, output_files
from powerprof.cli.parameters import group
from powerprof.cli.targets import ServerOptions, TargetOptions
from powerprof.cli.terminal import progress_printer
from powerprof.cli.window_options import duration


class Options(CommandOptions, frozen=True, kw_only=True):
    """The options of `offcpu`."""

    target: TargetOptions = group(TargetOptions)
    duration: float = duration(10.0)
    max_cost: float | None = max_cost("the target")
    backend: str = backend()
    top: int = top()
    server: ServerOptions = group(ServerOptions)
    outputs: Outputs = output_files(*TABLES)
    saving: Saving = group(Saving)


def command(options: Options) -> None:
    """Trace sleeps and wake-ups, save and print."""
    saving = check_saving(options.saving, options.outputs)
    if options.backend == "dtrace":
        options.refuse_without_effect("with --backend dtrace", ("--max-cost",))
    from powerprof.attribution.offcpu import trace_off_cpu
    from powerprof.attribution.requests import OffCpuRequest
    from powerprof.report.document import View

    request = OffCpuRequest(
        duration_s=options.duration, backend=options.backend, settle=True, max_cost=cost_bound(options.max_cost)
    )
    record = trace_off_cpu(options.target, options.server, request, progress_printer(saving))
    deliver(record, "offcpu", saving, view=View(top=options.top))
