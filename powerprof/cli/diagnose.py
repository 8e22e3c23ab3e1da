# SPDX-License-Identifier: Apache-2.0
"""What does this server wake for, and what ends it? Faults in plain words, with the evidence and the remedy.

--pid takes a process id or a name (mysqld finds mariadbd too) and asks the server by its own socket; --socket, --server
and --defaults-file name it or an account. Nothing in the server is changed. Without the right to trace, its status
alone is judged. The exit code is 0 whether or not there is a fault.
"""

from __future__ import annotations

from functools import partial
from typing import Annotated

import typer

from powerprof.cli.options import Duration, Given, Saving, Tables, files_of
from powerprof.cli.output import check, deliver, say_to

Pid = Annotated[str | None, typer.Option("--pid", metavar="ID|NAME", help="The server's process id or name.")]
All = Annotated[bool, typer.Option("--all", help="Also show what is no fault.")]


def command(
    *, pid: Pid = None, duration: Duration = 8.0, all_notes: All = False, given: Given, tables: Tables, saving: Saving
) -> None:
    """Look, judge, save, print."""
    files = files_of(tables)
    saving = check(saving, files)
    from powerprof.diagnosis import diagnose
    from powerprof.report.diagnosis import render_terminal

    request = diagnose.DiagnosisRequest(pid, given.server, given.socket, given.defaults_file, duration)
    diagnosis, taken = diagnose.run(request, say_to(saving))
    deliver(
        diagnosis,
        "diagnose",
        saving,
        files,
        raw=None if saving.no_save else taken.files,
        lines=partial(render_terminal, all_notes=all_notes),
    )
