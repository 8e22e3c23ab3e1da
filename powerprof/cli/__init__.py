# SPDX-License-Identifier: Apache-2.0
"""The command line: parse, call one function, render. No logic lives here.

One module a subcommand: its `command` function is the command, its docstring the help.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from io import TextIOWrapper

from powerprof import interrupts
from powerprof.errors import Interrupted
from powerprof.text import STAND_IN


def main() -> None:
    """Entry point of the `powerprof` script."""
    interrupts.install()
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
    interrupts.ignore()
    sys.exit(code)
