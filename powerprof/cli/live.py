# SPDX-License-Identifier: Apache-2.0
"""Intervals as they are measured: on a screen with keys, or as lines."""

from __future__ import annotations

import os
import re
import signal
import sys
import termios
import threading
import tty
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from copy import deepcopy
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, Generic, Protocol, Self, TypeVar

import msgspec
from msgspec.structs import replace

from powerprof.cli.terminal import clear_progress, print_text, terminal_size, terminal_width
from powerprof.model.runs import RunStore
from powerprof.report.screen import ScreenView
from powerprof.system import descriptors
from powerprof.system.errors import Interrupted, PowerprofError
from powerprof.system.folders import write_all
from powerprof.system.foreign_text import printable

# Alternate screen, no cursor, no wrapping; and back.
_ENTER, _LEAVE = "\x1b[?1049h\x1b[?25l\x1b[?7l", "\x1b[?7h\x1b[?25h\x1b[?1049l"
_HOME, _CLEAR_LINE = "\x1b[H", "\x1b[K"
_BOLD, _PLAIN = "\x1b[1m", "\x1b[0m"
_ARROWS = {"\x1b[A": "up", "\x1b[B": "down", "\x1bOA": "up", "\x1bOB": "down"}
# The bytes of one key (ECMA-48, 5.4): ESC [ parameters and a letter, ESC O and a letter, ESC and a character, or one
# character.
_KEY = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]?|O[^\x1b]?|[^\x1b])?|[^\x1b]", re.DOTALL)
_NAMES = {"\r": "enter", "\n": "enter", "\x7f": "backspace", "\x08": "backspace", "\x1b": "escape"}


class Screen:
    """A context manager that takes over the terminal and restores it.

    It draws the lines of `draw(columns, lines)` on `refresh`, after each key and when the size changes. `on_key` is
    called in a separate thread, which sleeps until the next key.
    """

    def __init__(self, draw: Callable[[int, int], Sequence[str]], on_key: Callable[[str], None]) -> None:
        self._draw, self._on_key = draw, on_key
        self._lock = threading.Lock()
        self._in, self._out = sys.stdin.fileno(), sys.stdout.fileno()
        self._saved: list[Any] = []
        self._wake = os.pipe()
        self._before: Any = None
        self._thread = threading.Thread(target=self._read, name="keys", daemon=True)

    def __enter__(self) -> Self:
        self._saved = termios.tcgetattr(self._in)
        tty.setcbreak(self._in)  # Ctrl-C still sends a signal
        clear_progress()
        self._write(_ENTER)
        self._before = signal.signal(signal.SIGWINCH, self._resized)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        signal.signal(signal.SIGWINCH, self._before)
        with suppress(OSError):
            os.write(self._wake[1], b".")
        self._thread.join(2.0)
        with self._lock, suppress(OSError, termios.error):  # the terminal may be gone
            self._write(_LEAVE)
            termios.tcsetattr(self._in, termios.TCSADRAIN, self._saved)

    def refresh(self) -> None:
        """Draw all lines."""
        with self._lock:
            columns, lines = terminal_size(obey_environment=False)
            drawn = [printable(line) for line in self._draw(columns, lines)[:lines]]
            drawn[:1] = [f"{_BOLD}{line}{_PLAIN}" for line in drawn[:1]]
            # Each line is cleared before it is written: after a full line the cursor is still on its last character.
            self._write(_HOME + "\r\n".join(_CLEAR_LINE + line for line in drawn))

    def _write(self, text: str) -> None:
        data = text.encode(sys.stdout.encoding or "utf-8", sys.stdout.errors or "replace")
        with suppress(OSError):
            write_all(self._out, data)

    def _resized(self, number: int, frame: FrameType | None) -> None:
        # The other thread draws: this one may hold the lock.
        with suppress(OSError):
            os.write(self._wake[1], b"r")

    def _read(self) -> None:
        while True:
            ready = descriptors.readable([self._in, self._wake[0]])
            if self._wake[0] in ready:
                if os.read(self._wake[0], 1) == b".":
                    return
                self.refresh()
                continue
            try:
                data = os.read(self._in, 3 << 10)
            except OSError:
                return
            if not data:
                return
            for key in parse_keys(data):
                self._on_key(key)
            self.refresh()


def parse_keys(data: bytes) -> list[str]:
    """Return the keys in one read of the terminal: characters, `up`, `down`, `enter`, `backspace` and `escape`.

    Other keys, and keys with Alt, are left out. A key that is held down is sent several times at once.
    """
    keys = []
    for sequence in _KEY.findall(data.decode("utf-8", "ignore")):
        if len(sequence) > 1:
            keys += [_ARROWS[sequence]] if sequence in _ARROWS else []
        elif sequence in _NAMES or sequence.isprintable():
            keys.append(_NAMES.get(sequence, sequence))
    return keys


T = TypeVar("T")
H = TypeVar("H", bound="History")


def print_lines(intervals: Iterable[T], head: str | None, line: Callable[[T], str]) -> None:
    """Print the heading, if any, and one line per interval."""
    if head:
        print_text(head)
    for interval in intervals:
        print_text(line(interval))
        sys.stdout.flush()


def has_screen(plain: bool, json_lines: bool) -> bool:
    """Return whether intervals are shown on a screen with keys; a dumb terminal cannot move its cursor."""
    is_screen = sys.stdout.isatty() and sys.stdin.isatty() and os.environ.get("TERM") != "dumb"
    return is_screen and not plain and not json_lines


def save_run(runs_dir: Path | None, command: str, record: msgspec.Struct, extra: dict[str, bytes] | None = None) -> str:
    """Save the record as a run of the command and return the message for the screen."""
    try:
        run: Any = RunStore(runs_dir).save(command, record, extra)
    except PowerprofError as error:
        return error.message
    return f"saved as {run.id}"


def line_width() -> int:
    """Return the width of a line for a terminal, or for a log."""
    return terminal_width() if sys.stdout.isatty() else 200


class History(Protocol):
    """The intervals so far."""

    def add(self, interval: Any, /) -> None:
        """Add an interval."""


class LiveView(Generic[H]):
    """A screen of the intervals so far, with keys.

    `draw` returns the lines of the history; `save` saves the newest interval and returns a message.
    """

    def __init__(
        self,
        history: H,
        draw: Callable[[H, ScreenView, int, int], list[str]],
        sorts: Sequence[str],
        save: Callable[[], str],
    ) -> None:
        self._live = self._shown = history
        self._lines, self._sorts, self._save = draw, sorts, save
        self._view = ScreenView(sort=sorts[0])
        self._is_save_due = self._is_quit = False

    def run(self, intervals: Iterable[object]) -> None:
        """Show the intervals until q, an interrupt or the last one."""
        try:
            with Screen(self._draw, self._key) as screen:
                screen.refresh()
                for interval in intervals:
                    self._live.add(interval)
                    if self._is_save_due:
                        self._is_save_due = False
                        self._view = replace(self._view, message=self._save())
                    if not self._view.paused:
                        self._shown = self._live
                    screen.refresh()
        except Interrupted:
            if not self._is_quit:
                raise

    def _draw(self, width: int, height: int) -> list[str]:
        return self._lines(self._shown, self._view, width, height)

    def _key(self, key: str) -> None:
        view = replace(self._view, message="")
        if view.typing:
            self._view = _edit_filter(view, key)
            return
        if key != "q" and view.help:
            view = replace(view, help=False)
        elif key == "q":
            # The main thread sleeps between intervals; a signal ends the sleep, like Ctrl-C.
            self._is_quit = True
            os.kill(os.getpid(), signal.SIGINT)
        elif key == "s":
            view = replace(view, sort=self._sorts[(self._sorts.index(view.sort) + 1) % len(self._sorts)])
        elif key in ("?", "h"):
            view = replace(view, help=True)
        elif key == "a":
            view = replace(view, all=not view.all)
        elif key == "escape":
            view = replace(view, wanted="", opened=False)
        elif key == "/":
            view = replace(view, typing=True, wanted="")
        elif key in ("up", "k"):
            view = replace(view, chosen=max(0, view.chosen - 1))
        elif key in ("down", "j"):
            view = replace(view, chosen=view.chosen + 1)
        elif key == "enter":
            view = replace(view, opened=not view.opened)
        elif key == " ":
            self._shown = self._live if view.paused else deepcopy(self._live)
            view = replace(view, paused=not view.paused)
        elif key == "w":
            self._is_save_due = True
            view = replace(view, message="saving at the end of this interval")
        self._view = view


def _edit_filter(view: ScreenView, key: str) -> ScreenView:
    if key in ("enter", "escape"):
        return replace(view, typing=False, wanted="" if key == "escape" else view.wanted)
    if key == "backspace":
        return replace(view, wanted=view.wanted[:-1])
    return replace(view, wanted=view.wanted + key) if len(key) == 1 else view
