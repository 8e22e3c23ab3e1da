"""What does this server wake for, and what ends it? Faults in plain words, with the evidence and the remedy.

--pid takes a process id or a name (mysqld finds mariadbd too) and asks the server by its own socket; --socket, --server
and --defaults-file name it or an account. Nothing in the server is changed. Without the right to trace, its status
alone is judged. The exit code is 0 whether or not there is a fault.
"""

from __future__ import annotations

from typing import Annotated

import typer

from powerprof.cli.options import (
    DefaultsFile,
    Duration,
    Json,
    NoSave,
    Quiet,
    RunsDir,
    ServerUrl,
    Socket,
    check_json_target,
    progress,
    save_and_show,
)

Pid = Annotated[str | None, typer.Option("--pid", metavar="ID|NAME", help="The server's process id or name.")]
All = Annotated[bool, typer.Option("--all", help="Also tell what a healthy server wakes for.")]


def command(
    pid: Pid = None,
    duration: Duration = 8.0,
    all_notes: All = False,
    server: ServerUrl = None,
    socket: Socket = None,
    defaults_file: DefaultsFile = None,
    json: Json = None,
    quiet: Quiet = False,
    runs_dir: RunsDir = None,
    no_save: NoSave = False,
) -> None:
    """Look, judge, save, print."""
    check_json_target(json)
    from powerprof.attribution import capture
    from powerprof.diagnosis import session
    from powerprof.report import diagnosis as text

    diagnosis, taken = session.run(
        session.Request(pid, server, socket, defaults_file, duration), lambda said: progress(said, quiet)
    )
    raw = {capture.FILE: capture.encode(taken.capture)} if taken.capture is not None else None
    save_and_show(
        diagnosis,
        "diagnose",
        lambda found, width: text.lines(found, width, all_notes=all_notes),
        json=json,
        quiet=quiet,
        runs_dir=runs_dir,
        no_save=no_save,
        extra=raw,
    )
