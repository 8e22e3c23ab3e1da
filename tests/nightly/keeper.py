# SPDX-License-Identifier: Apache-2.0
"""Runs commands for a test, and undoes them however the test ends: `python -m tests.nightly.keeper FOLDER`.

Each line on stdin is a command (JSON: a list of words), each line on stdout its exit status. At the end of stdin, which
comes also when the test is killed, everything that the commands started is killed, and FOLDER is removed. Orphans
become this process's children (PR_SET_CHILD_SUBREAPER), so that no daemon gets away.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import subprocess
import sys
import time

import psutil

_PR_SET_CHILD_SUBREAPER = 36  # include/uapi/linux/prctl.h


def _kill_all() -> None:
    """Kill every descendant, and those that they start meanwhile."""
    while children := psutil.Process().children(recursive=True):
        for child in children:
            with contextlib.suppress(psutil.NoSuchProcess):
                child.kill()
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        time.sleep(0.05)


def _run(argv: list[str]) -> int | None:
    """Its exit status, after everything that it left behind is killed; None where stdin ended first."""
    process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=sys.stderr)
    while process.poll() is None:
        if select.select([sys.stdin], [], [], 0.2)[0]:
            return None
    _kill_all()
    return process.returncode


def main() -> None:
    """Work until stdin ends."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    folder = sys.argv[1]
    try:
        while line := sys.stdin.readline():
            status = _run(json.loads(line))
            if status is None:
                break
            print(status, flush=True)
    finally:
        _kill_all()
        # What is mounted in there is mounted in namespaces that ended with their processes.
        subprocess.run(["rm", "-rf", "--one-file-system", folder], check=False)


if __name__ == "__main__":
    main()
