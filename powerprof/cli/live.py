# SPDX-License-Identifier: Apache-2.0
"""What comes interval by interval: on a screen with keys, or a line each."""

from __future__ import annotations

import os
import re
import signal
import sys
import termios
import threading
import tty
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, Generic, Protocol, Self, TypeVar

import msgspec

from powerprof.cli.output import say, terminal_width
from powerprof.model.runs import RunStore
from powerprof.report.watch import ScreenView
from powerprof.system import files
from powerprof.system.errors import Interrupted, PowerprofError
from powerprof.system.files import printable

# A terminal taken over for a while: keys one by one, lines drawn in place, and everything as it was afterwards.

# Alternate screen, no cursor, no wrapping; and back.
_ENTER, _LEAVE = "\x1b[?1049h\x1b[?25l\x1b[?7l", "\x1b[?7h\x1b[?25h\x1b[?1049l"
_HOME, _CLEAR_LINE = "\x1b[H", "\x1b[K"
_BOLD, _PLAIN = "\x1b[1m", "\x1b[0m"
_ARROWS = {"\x1b[A": "up", "\x1b[B": "down", "\x1bOA": "up", "\x1bOB": "down"}
# What one key sends (ECMA-48, 5.4): ESC [ parameters and a letter, ESC O and a letter, ESC and a character, or one.
_SENT = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]?|O[^\x1b]?|[^\x1b])?|[^\x1b]", re.DOTALL)
_NAMED = {"\r": "enter", "\n": "enter", "\x7f": "backspace", "\x08": "backspace", "\x1b": "escape"}


class Screen:
    """Draws what `draw` gives for the terminal's size, on `refresh`, after each key and when the size changes.

    A context manager. `on_key` is called in a thread of its own, which sleeps until a key comes.
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
        # Ctrl-C stays a signal.
        tty.setcbreak(self._in)
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
        """Draw again."""
        with self._lock:
            try:
                columns, lines = os.get_terminal_size(self._out)
            except OSError:
                return
            drawn = [printable(line) for line in self._draw(columns, lines)[:lines]]
            body = [f"{_BOLD}{line}{_PLAIN}" if at == 0 else line for at, line in enumerate(drawn)]
            # Cleared before it is written: behind a full line the cursor stands on its last character.
            self._write(_HOME + "\r\n".join(_CLEAR_LINE + line for line in body))

    def _write(self, words: str) -> None:
        data = words.encode(sys.stdout.encoding or "utf-8", sys.stdout.errors or "replace")
        with suppress(OSError):
            while data:
                data = data[os.write(self._out, data) :]

    def _resized(self, number: int, frame: FrameType | None) -> None:
        # Drawing here could wait for the lock that this very thread holds: the other one does it.
        with suppress(OSError):
            os.write(self._wake[1], b"r")

    def _read(self) -> None:
        while True:
            ready = files.readable([self._in, self._wake[0]])
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
            for key in keys_of(data):
                self._on_key(key)
            self.refresh()


def keys_of(data: bytes) -> list[str]:
    """The keys of what a terminal sent at once, several where one is held down: characters, and `up`, `down`, `enter`,
    `backspace`, `escape`. Other keys, and those with Alt, are none.
    """
    keys = []
    for sent in _SENT.findall(data.decode("utf-8", "ignore")):
        if len(sent) > 1:
            keys += [_ARROWS[sent]] if sent in _ARROWS else []
        elif sent in _NAMED or sent.isprintable():
            keys.append(_NAMED.get(sent, sent))
    return keys


T = TypeVar("T")
H = TypeVar("H", bound="Keeps")


def print_lines(intervals: Iterable[T], head: str | None, line: Callable[[T], str]) -> None:
    """A line each."""
    if head:
        say(head)
    for interval in intervals:
        say(line(interval))
        sys.stdout.flush()


def on_screen(plain: bool, json_lines: bool) -> bool:
    """Whether it is shown on a screen with keys."""
    return not plain and not json_lines and sys.stdout.isatty() and sys.stdin.isatty()


def saved(runs_dir: Path | None, command: str, record: msgspec.Struct, extra: dict[str, bytes] | None = None) -> str:
    """Save what is on the screen as a run of that command; what to say of it."""
    try:
        run: Any = RunStore(runs_dir).save(command, record, extra)
    except PowerprofError as error:
        return error.message
    return f"saved as {run.id}"


def width() -> int:
    """Of a line for a terminal or a log."""
    return terminal_width() if sys.stdout.isatty() else 200


class Keeps(Protocol):
    """What remembers intervals."""

    def add(self, interval: Any, /) -> None:
        """One more."""


class Live(Generic[H]):
    """A screen of what comes interval by interval, and what its keys do.

    `draw` gives the lines of what is remembered, `save` saves the newest interval and says so.
    """

    def __init__(
        self,
        history: H,
        draw: Callable[[H, ScreenView, int, int], list[str]],
        sorts: Sequence[str],
        save: Callable[[], str],
    ) -> None:
        self._live = self._shown = history
        self._lines, self._sorts, self._saved = draw, sorts, save
        self._view = ScreenView(sort=sorts[0])
        self._save = self._quit = False

    def run(self, intervals: Iterable[object]) -> None:
        """Until q, an interrupt or the last interval."""
        with self._until_quit(), Screen(self._draw, self._key) as screen:
            screen.refresh()
            for interval in intervals:
                self._live.add(interval)
                if self._save:
                    self._save = False
                    self._view = replace(self._view, message=self._saved())
                if not self._view.paused:
                    self._shown = self._live
                screen.refresh()

    @contextmanager
    def _until_quit(self) -> Iterator[None]:
        """What q ends is no interrupt."""
        try:
            yield
        except Interrupted:
            if not self._quit:
                raise

    def _draw(self, width: int, height: int) -> list[str]:
        return self._lines(self._shown, self._view, width, height)

    def _key(self, key: str) -> None:
        view = replace(self._view, message="")
        if view.typing:
            self._view = _typed(view, key)
            return
        if key != "q" and view.help:
            view = replace(view, help=False)
        elif key == "q":
            # The loop sleeps in the main thread: a signal ends that, as Ctrl-C does.
            self._quit = True
            os.kill(os.getpid(), signal.SIGINT)
        elif key == "s":
            view = replace(view, sort=self._sorts[(self._sorts.index(view.sort) + 1) % len(self._sorts)])
        elif key in ("?", "h"):
            view = replace(view, help=True)
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
            self._save = True
            view = replace(view, message="saved when this interval ends")
        self._view = view


def _typed(view: ScreenView, key: str) -> ScreenView:
    if key in ("enter", "escape"):
        return replace(view, typing=False, wanted="" if key == "escape" else view.wanted)
    if key == "backspace":
        return replace(view, wanted=view.wanted[:-1])
    return replace(view, wanted=view.wanted + key) if len(key) == 1 else view
