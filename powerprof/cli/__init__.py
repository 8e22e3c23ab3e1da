"""The command line: parse, call one function, render. No logic lives here.

One module a subcommand: its `command` function is the command, its docstring the help.
"""

from __future__ import annotations

import sys

from powerprof import interrupts
from powerprof.errors import Interrupted


def main() -> None:
    """Entry point of the `powerprof` script."""
    interrupts.install()
    try:
        # Half of a short command's time is spent in this import: an interrupt there must be no traceback either.
        from powerprof.cli.app import run_app

        code = run_app(sys.argv[1:])
    except Interrupted as error:
        print(f"error: {error.message}", file=sys.stderr)
        code = error.exit_code
    # The interpreter puts back the default handlers when it ends: one more Ctrl-C then would change the exit code.
    interrupts.ignore()
    sys.exit(code)
