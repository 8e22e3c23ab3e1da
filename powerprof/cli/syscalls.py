# SPDX-License-Identifier: Apache-2.0
"""Count the system calls of a process, its file I/O, and its waits for locks.

The kernel counts system calls with their errors and times, reads, writes and syncs by file and thread (such as the page
cleaner or the log writer), and futex waits by thread.
"""

from __future__ import annotations

from powerprof.cli.options import CommandOptions, cost_bound, max_cost, top
from powerprof.cli.output import check_saving, deliver
from powerprof.cli.outputs import TABLES, Outputs, Saving, output_files
from powerprof.cli.parameters import group
from powerprof.cli.targets import ServerOptions, TargetOptions
from powerprof.cli.terminal import progress_printer
from powerprof.cli.window_options import duration


class Options(CommandOptions, frozen=True, kw_only=True):
    """The options of `syscalls`."""

    target: TargetOptions = group(TargetOptions)
    duration: float = duration(10.0)
    max_cost: float | None = max_cost("the target")
    top: int = top()
    server: ServerOptions = group(ServerOptions)
    outputs: Outputs = output_files(*TABLES)
    saving: Saving = group(Saving)


def command(options: Options) -> None:
    """Count system calls, save and print."""
    saving = check_saving(options.saving, options.outputs)
    from powerprof.attribution.offcpu import count_syscalls
    from powerprof.attribution.requests import SyscallRequest
    from powerprof.report.document import View

    request = SyscallRequest(duration_s=options.duration, settle=True, max_cost=cost_bound(options.max_cost))
    record = count_syscalls(options.target, options.server, request, progress_printer(saving))
    deliver(record, "syscalls", saving, view=View(top=options.top))
