# SPDX-License-Identifier: Apache-2.0
"""The command line: parse the options, call one function, render its record.

Each command is one module: its docstring is the help, its `Options` are the options, its `command` runs.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from io import TextIOWrapper

from powerprof.model.text import STAND_IN
from powerprof.system import signals
from powerprof.system.errors import Interrupted


def _prepare_streams() -> None:
    """Open closed standard streams on /dev/null and let stdout and stderr replace characters of other encodings.

    A stream that was closed (`>&-`) leaves its number free. The next open file would take it and receive the output.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            # open() takes the lowest free number, which is the number of this stream.
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: PTH123, SIM115 - open until the end
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors=STAND_IN)


def main() -> None:
    """Run the command line of this process and exit with its code."""
    try:
        try:
            signals.install()
            _prepare_streams()
            # NumPy's library would start one thread per CPU; no calculation here uses them.
            os.environ["OPENBLAS_NUM_THREADS"] = os.environ["OMP_NUM_THREADS"] = "1"
            # Half of the time of a short command passes in this import. An interrupt during it is reported too.
            from powerprof.cli.app import run_app

            code = run_app(sys.argv[1:])
        except Interrupted as error:
            code = error.exit_code
            with suppress(OSError):  # the terminal may be gone
                print(f"error: {error.message}", file=sys.stderr)
        # The interpreter restores the default handlers at exit; another Ctrl-C would then change the exit code.
        signals.ignore()
    except Interrupted:  # arrived after the command had ended
        signals.ignore()
    sys.exit(code)
