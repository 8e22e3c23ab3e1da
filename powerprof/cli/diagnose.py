# SPDX-License-Identifier: Apache-2.0
"""Find out why a server keeps waking the CPUs, and how to stop it.

It reports known faults with their evidence and remedy. --pid takes a process id or a name (mysqld also finds mariadbd).
powerprof connects through the server's own socket. The server is not changed. Without the right to trace, powerprof
checks only the server's status. The exit code is 0 with and without faults.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from powerprof.cli.options import CommandOptions
from powerprof.cli.output import check_saving, deliver
from powerprof.cli.outputs import TABLES, Outputs, Saving, output_files
from powerprof.cli.parameters import flag, group
from powerprof.cli.targets import ServerOptions, only, server_pid
from powerprof.cli.terminal import progress_printer
from powerprof.cli.window_options import duration
from powerprof.system.next_steps import command_line

if TYPE_CHECKING:
    from powerprof.diagnosis.evidence import Diagnosis


class Options(CommandOptions, frozen=True, kw_only=True):
    """The options of `diagnose`."""

    pid: str | None = server_pid()
    only: bool = only()
    duration: float = duration(8.0)
    everything: bool = flag("--all", "Also show findings that are normal behaviour.")
    server: ServerOptions = group(ServerOptions)
    outputs: Outputs = output_files(*TABLES)
    saving: Saving = group(Saving)


def command(options: Options) -> None:
    """Observe the server, judge it, save and print."""
    saving, server = check_saving(options.saving, options.outputs), options.server
    from powerprof.diagnosis import diagnose
    from powerprof.report.document import View

    request = diagnose.DiagnosisRequest(
        options.pid, server.server, server.socket, server.defaults_file, options.duration, options.only
    )
    diagnosis, taken = diagnose.run(request, progress_printer(saving))
    deliver(
        diagnosis,
        "diagnose",
        saving,
        raw=None if saving.no_save else taken.files,
        view=View(everything=options.everything),
        next_step=next_step(diagnosis),
    )


def next_step(diagnosis: Diagnosis) -> str | None:
    """Return the command that measures all statements; None if none used CPU time or the process is unknown."""
    window, pid = diagnosis.evidence.statement_window, diagnosis.server.pid
    if window is None or not window.statements or pid is None:
        return None
    return f"All statements: {command_line('queries --pid {}', pid)}"
