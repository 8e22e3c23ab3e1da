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
from collections.abc import Iterator
from typing import Any

import pytest

from powerprof.cli import live
from powerprof.report.screen import ScreenView
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


class _Numbers:
    """A history that keeps the intervals."""

    def __init__(self) -> None:
        self.kept: list[int] = []

    def add(self, interval: Any, /) -> None:
        self.kept.append(interval)


def test_each_key_changes_the_view(monkeypatch: pytest.MonkeyPatch) -> None:
    views: list[ScreenView] = []
    drawn: list[list[int]] = []

    class Still:
        """A screen that is drawn on request, without a terminal."""

        def __init__(self, draw: Any, on_key: Any) -> None:
            self._draw, self.key = draw, on_key

        def __enter__(self) -> Still:
            return self

        def __exit__(self, *_: object) -> None:
            pass

        def refresh(self) -> None:
            self._draw(80, 24)

    def draw(history: _Numbers, view: ScreenView, width: int, height: int) -> list[str]:
        views.append(view)
        drawn.append(list(history.kept))
        return []

    monkeypatch.setattr(live, "Screen", Still)
    view = live.LiveView(_Numbers(), draw, ("rate", "C0", "name"), lambda: "saved as x-0001")

    def intervals() -> Iterator[int]:
        keys = ["s", "s", "s", "a", "down", "j", "up", "enter", "/", "b", "backspace", "c", "enter", "?", "x", " ", "w"]
        for number, key in enumerate(keys):
            view._key(key)
            yield number

    view.run(intervals())
    assert [each.sort for each in views[1:5]] == ["C0", "name", "rate", "rate"]
    assert views[4].all and [each.chosen for each in views[5:8]] == [1, 2, 1]
    assert views[8].opened and views[9].typing and [each.wanted for each in views[10:14]] == ["b", "", "c", "c"]
    assert not views[13].typing and views[14].help and not views[15].help
    # A paused screen keeps its figures, and the newest interval can still be saved.
    assert views[16].paused and drawn[16] == drawn[17] == list(range(15))
    assert (drawn[15], views[17].message) == (list(range(15)), "saved as x-0001")
