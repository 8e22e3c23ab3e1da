# SPDX-License-Identifier: Apache-2.0
"""Which statements of a live server use the CPU, wake it, and cost the energy? Per statement, and the parts sum.

--pid takes a process id or a name (mysqld finds mariadbd too) and asks the server by its own socket; --socket, --server
and --defaults-file name it or an account. A probe where the server begins a command tells its statements apart; nothing
in the server is changed, and its performance_schema need not be on. Values in texts are shown as ?, and saved so.
"""

from __future__ import annotations

from functools import partial
from typing import Annotated

import typer

from powerprof.cli.options import Duration, Energy, Given, Saving, Tables, files_of
from powerprof.cli.output import check, deliver, say_to

Pid = Annotated[str | None, typer.Option("--pid", metavar="ID|NAME", help="The server's process id or name.")]
Top = Annotated[int, typer.Option("--top", metavar="N", min=1, max=100_000, help="Statements to print.")]


def command(
    *,
    pid: Pid = None,
    duration: Duration = 10.0,
    top: Top = 20,
    given: Given,
    energy: Energy,
    tables: Tables,
    saving: Saving,
) -> None:
    """Trace, join, save, print."""
    files = files_of(tables)
    saving = check(saving, files)
    from powerprof.queries import session
    from powerprof.report.queries import lines

    request = session.Request(
        pid=pid,
        server_url=given.server,
        socket=given.socket,
        defaults_file=given.defaults_file,
        duration_s=duration,
        energy_source=energy.energy_source,
        meter_log=energy.meter_log,
    )
    deliver(session.run(request, say_to(saving)), "queries", saving, files, lines=partial(lines, top=top))
