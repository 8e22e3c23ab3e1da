# SPDX-License-Identifier: Apache-2.0
"""Type commands in a terminal of 80 columns, as a user does: `python3 typed.py SECONDS <COMMANDS >RESULTS`.

Questions get the answer y. A command that does not end in time gets Ctrl-C. Where a name fits servers of other roots of
the host too, the printed command for the own one is typed next. Commands are lines, results JSON lines. It needs
nothing but Python, so it also runs on a machine where nothing is installed.
"""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import select
import struct
import sys
import termios
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

_CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b[=>78]")
_QUESTION = re.compile(r"\[y/N\]:? *$")
CHOICE = re.compile(r"\d+ servers (are called|run on this host)")
_CHOSEN = re.compile(r"^ +(powerprof [^\n]*--pid (\d+)[^\n]*)$", re.M)
_PATIENCE_S = 30.0


@dataclass(frozen=True)
class Typed:
    """A command, its exit status (negative: a signal), the last state of its screen, and its duration in s."""

    command: str
    status: int
    output: str
    seconds: float


def type_command(command: str, timeout_s: float, columns: int = 80) -> Typed:
    """Run a command line by `sh` in a terminal, to its end."""
    began_s = time.monotonic()
    pid, terminal = pty.fork()
    if pid == 0:
        os.execvp("sh", ["sh", "-c", command])
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    text, stop_s, signals = "", began_s + timeout_s, 0
    with suppress(OSError):  # EIO: the last process has closed the terminal
        while True:
            if select.select([terminal], [], [], 0.2)[0]:
                piece = os.read(terminal, 65536).decode(errors="replace")
                if not piece:
                    break
                text += piece
                if _QUESTION.search(_CONTROL.sub("", text[-400:])):
                    os.write(terminal, b"y\n")
            if time.monotonic() > stop_s:
                signals += 1
                if signals > 2:
                    os.kill(pid, 9)
                    break
                os.write(terminal, b"\x03")
                stop_s += _PATIENCE_S
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    os.close(terminal)
    return Typed(command, status, seen(text), round(time.monotonic() - began_s, 1))


def seen(text: str) -> str:
    """Return what a terminal shows in the end: a line that was written again has its last text."""
    lines = (line.rstrip("\r").rpartition("\r")[2] for line in _CONTROL.sub("", text).split("\n"))
    return "\n".join(line.rstrip() for line in lines).strip("\n")


def chosen(typed: Typed) -> str | None:
    """Return the command that a list of servers prints for the one in this root, if the list was the answer."""
    if typed.status != 2 or not CHOICE.search(typed.output):
        return None
    before = re.match(r"(?:\S+ )*?(?=\S*powerprof )", typed.command)  # such as `timeout 12 sudo `
    for command, pid in _CHOSEN.findall(re.sub(r" \\\n\s*", " ", typed.output)):
        with suppress(OSError):
            root = Path(f"/proc/{pid}/root")
            # A server may run in a folder of this root, but not in another mount namespace.
            if root.samefile("/") or root.samefile(root.readlink()):
                return (before[0] if before else "") + str(command)
    return None


def main() -> None:
    """Type the lines of stdin."""
    for line in sys.stdin:
        typed = type_command(line.strip(), float(sys.argv[1]))
        if (command := chosen(typed)) is not None:
            typed = type_command(command, float(sys.argv[1]))
        print(json.dumps(asdict(typed)), flush=True)


if __name__ == "__main__":
    main()
