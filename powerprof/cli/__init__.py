# SPDX-License-Identifier: Apache-2.0
"""The command line: parse, call one function, render. No logic lives here.

One module a subcommand: its `command` function is the command, its docstring the help.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from io import TextIOWrapper

from powerprof.model.text import STAND_IN
from powerprof.system import signals
from powerprof.system.errors import Interrupted


def _open_closed_streams() -> None:
    """Open those of stdin, stdout and stderr that were closed (`>&-`): the next file would take the number, and what is
    printed would go into it.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            # Takes the lowest number that is free: its own.
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: PTH123, SIM115 - by mode and for as long as we run


def main() -> None:
    """Entry point of the `powerprof` script."""
    _open_closed_streams()
    signals.install()
    # NumPy's library would start a thread for each CPU, of which nothing here has a use.
    os.environ["OPENBLAS_NUM_THREADS"] = os.environ["OMP_NUM_THREADS"] = "1"
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors=STAND_IN)
    try:
        # Half of a short command's time is spent in this import: an interrupt there must be no traceback either.
        from powerprof.cli.app import run_app

        code = run_app(sys.argv[1:])
    except Interrupted as error:
        code = error.exit_code
        with suppress(OSError):  # the terminal may be gone
            print(f"error: {error.message}", file=sys.stderr)
    # The interpreter puts back the default handlers when it ends: one more Ctrl-C then would change the exit code.
    with suppress(Interrupted):
        signals.ignore()
    signals.ignore()  # where one came in between
    sys.exit(code)
