# SPDX-License-Identifier: Apache-2.0
"""What comes interval by interval: on a screen with keys, or a line each."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

import msgspec

from powerprof.cli.output import say, terminal_width
from powerprof.cli.screen import Screen
from powerprof.errors import Interrupted, PowerprofError
from powerprof.report.screens.screen import ScreenView
from powerprof.runs import RunStore

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
