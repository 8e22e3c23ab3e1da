"""The command line: parse, call one function, render. No logic lives here.

One module a subcommand: its `command` function is the command, its docstring the help.
"""

from __future__ import annotations

import sys

from powerprof.cli.app import run_app


def main() -> None:
    """Entry point of the `powerprof` script."""
    sys.exit(run_app(sys.argv[1:]))
