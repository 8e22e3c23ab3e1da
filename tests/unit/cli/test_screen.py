# SPDX-License-Identifier: Apache-2.0
"""The terminal afterwards: as it was, whatever ended the screen; and it is drawn anew when its size changes."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time

import pytest

from tests.conftest import REPOSITORY

_PROGRAM = """
import os, signal, sys
from powerprof.system import signals
from powerprof.cli.live import Screen
from powerprof.system.errors import Interrupted
from powerprof.measure.window import wait_and_read
keys = []
def on_key(key):
    keys.append(key)
    if key == "q":
        os.kill(os.getpid(), signal.SIGINT)
signals.install()
try:
    with Screen(lambda width, height: [f"{width}x{height}", "keys " + "".join(keys)], on_key) as screen:
        screen.refresh()
        wait_and_read((), 600)
except Interrupted as error:
    sys.exit(error.exit_code)
"""


class Terminal:
    """A program on a terminal of its own."""

    def __init__(self) -> None:
        self.master, slave = pty.openpty()
        self.resize(24, 80)
        self.before = termios.tcgetattr(slave)
        self.process = subprocess.Popen(
            [sys.executable, "-c", _PROGRAM], stdin=slave, stdout=slave, stderr=slave, cwd=REPOSITORY
        )
        self.slave = slave
        self.seen = b""

    def resize(self, lines: int, columns: int) -> None:
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def wait_for(self, words: bytes) -> None:
        deadline = time.monotonic() + 60
        while words not in self.seen:
            assert time.monotonic() < deadline, self.seen
            if select.select([self.master], [], [], 0.2)[0]:
                self.seen += os.read(self.master, 65536)


@pytest.mark.parametrize(("ending", "code"), [("q", 130), ("int", 130), ("term", 130), ("hup", 129)])
def test_the_terminal_is_as_it_was(ending: str, code: int) -> None:
    terminal = Terminal()
    terminal.wait_for(b"80x24")
    assert not termios.tcgetattr(terminal.slave)[3] & termios.ICANON
    terminal.resize(60, 200)
    terminal.process.send_signal(signal.SIGWINCH)
    terminal.wait_for(b"200x60")
    os.write(terminal.master, b"ab")
    terminal.wait_for(b"keys ab")
    if ending == "q":
        os.write(terminal.master, b"q")
    else:
        terminal.process.send_signal({"int": signal.SIGINT, "term": signal.SIGTERM, "hup": signal.SIGHUP}[ending])
    terminal.wait_for(b"\x1b[?1049l")
    assert terminal.process.wait(30) == code
    assert termios.tcgetattr(terminal.slave) == terminal.before
    os.close(terminal.master)
    os.close(terminal.slave)


def test_a_terminal_that_is_lost_ends_it() -> None:
    terminal = Terminal()
    terminal.wait_for(b"80x24")
    os.close(terminal.slave)
    os.close(terminal.master)
    terminal.process.send_signal(signal.SIGHUP)
    assert terminal.process.wait(30) == 129
