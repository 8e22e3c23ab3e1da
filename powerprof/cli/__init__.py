# SPDX-License-Identifier: Apache-2.0
"""The command line: parse the options, call one function, render its record.

Each command is one module: its docstring is the help, its `Options` are the options, its `command` runs.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from io import BufferedReader, BufferedWriter, TextIOWrapper

from powerprof.model.text import STAND_IN
from powerprof.system import signals
from powerprof.system.descriptors import WaitingFile
from powerprof.system.errors import Interrupted, reason_of


def _prepare_streams() -> None:
    """Open the standard streams so that they wait, and let stdout and stderr replace characters of other encodings.

    A stream that was closed (`>&-`) leaves its number free. The next open file would take it and receive the output:
    closed streams are opened on /dev/null. A parent may have made the others non-blocking, which loses output.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            # open() takes the lowest free number, which is the number of this stream.
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: PTH123, SIM115 - open until the end
        elif isinstance(stream := getattr(sys, name), TextIOWrapper):
            setattr(sys, name, _open_waiting(stream, mode))


def _open_waiting(stream: TextIOWrapper, mode: str) -> TextIOWrapper:
    """Return a stream of the same descriptor that waits while it is full or empty."""
    file = WaitingFile(stream.fileno(), mode, closefd=False)
    return TextIOWrapper(
        BufferedReader(file) if mode == "r" else BufferedWriter(file),
        encoding=stream.encoding,
        errors=stream.errors if mode == "r" else STAND_IN,
        line_buffering=stream.line_buffering or stream.write_through,
    )


def _end_output(code: int) -> int:
    """Write the buffered output and return the exit code: 1 if stdout cannot be written and the command succeeded.

    Output that cannot be written is dropped. The interpreter would try again and end with a traceback and code 120.
    """
    from powerprof.cli.terminal import clear_progress

    clear_progress()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError as error:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
            if code == 0 and stream is sys.stdout and not isinstance(error, BrokenPipeError):
                code = 1
                with suppress(OSError):
                    print(f"error: cannot write to stdout ({reason_of(error)})", file=sys.stderr)
                    print("hint: redirect it to another file", file=sys.stderr)
    return code


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
            from powerprof.system.next_steps import set_running_command

            set_running_command(sys.argv)
            code = _end_output(run_app(sys.argv[1:]))
        except Interrupted as error:
            code = error.exit_code
            with suppress(OSError):  # the terminal may be gone
                print(f"error: {error.message}", file=sys.stderr)
        # The interpreter restores the default handlers at exit; another Ctrl-C would then change the exit code.
        signals.ignore()
    except Interrupted:  # arrived after the command had ended
        signals.ignore()
    sys.exit(code)
