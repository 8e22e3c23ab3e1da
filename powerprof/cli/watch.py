# SPDX-License-Identifier: Apache-2.0
"""Watch this host live: idle states, watts, and which functions wake the CPUs. It runs until q or Ctrl-C.

On a terminal a screen that is drawn anew each interval, else a line each interval (--plain); --json-lines prints a
document each. Keys: s sorts, / filters, the arrows choose a row and Enter shows its stack, space pauses, w saves what
is seen as a run, q quits. Findings of `diagnose` appear as servers of this host are asked for their state.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from powerprof.cli.options import Energy, Watched
from powerprof.cli.output import progress, say, terminal_width
from powerprof.errors import Interrupted, UsageError

if TYPE_CHECKING:
    from powerprof.live.monitor import Monitor
    from powerprof.report.watch import View

Plain = Annotated[bool, typer.Option("--plain", help="Print a line each interval.")]
JsonLines = Annotated[bool, typer.Option("--json-lines", help="Print a JSON document each interval.")]
Count = Annotated[int | None, typer.Option("--count", metavar="N", min=1, max=1_000_000, help="End after N intervals.")]
RunsDir = Annotated[
    Path | None, typer.Option("--runs-dir", metavar="DIR", help="Where w saves (default: the state directory).")
]


def command(
    *,
    watched: Watched,
    energy: Energy,
    plain: Plain = False,
    json_lines: JsonLines = False,
    count: Count = None,
    runs_dir: RunsDir = None,
) -> None:
    """Open, measure, show."""
    if plain and json_lines:
        raise UsageError("--plain and --json-lines exclude each other", "leave one out")
    from powerprof.live.monitor import Monitor, MonitorPlan
    from powerprof.processes.targets import resolve

    words = tuple(watched.pid or ())
    target = resolve(words, cgroup=None, system=not words)
    plan = MonitorPlan(
        target=target,
        interval_s=watched.interval,
        energy_source=energy.energy_source,
        meter_log=energy.meter_log,
        ask_servers=not watched.no_ask,
        ask_every_s=watched.ask_every,
        accounts=tuple(watched.defaults_file or ()),
    )
    on_screen = not plain and not json_lines and sys.stdout.isatty() and sys.stdin.isatty()
    with Monitor(plan, progress) as monitor:
        if on_screen:
            _Live(monitor, f"powerprof watch · {target.label}", runs_dir).run(count)
        else:
            _print(monitor, count, json_lines)


def _print(monitor: Monitor, count: int | None, json_lines: bool) -> None:
    import json
    from itertools import islice

    from powerprof.report.watch import PLAIN_HEAD, document, plain_line

    if not json_lines:
        say(PLAIN_HEAD)
    for interval in islice(monitor.intervals(), count):
        said = json.dumps(document(interval), ensure_ascii=True) if json_lines else plain_line(interval, _wide())
        say(said)
        sys.stdout.flush()


def _wide() -> int:
    return terminal_width() if sys.stdout.isatty() else 200


class _Live:
    """The screen, and what its keys do."""

    def __init__(self, monitor: Monitor, title: str, runs_dir: Path | None) -> None:
        from powerprof.live.history import History
        from powerprof.report.watch import View

        self._monitor, self._title, self._runs_dir = monitor, title, runs_dir
        self._live, self._shown, self._view = History(), History(), View()
        self._save = self._quit = False

    def run(self, count: int | None) -> None:
        """Until q, an interrupt or `count` intervals."""
        from itertools import islice

        from powerprof.cli.screen import Screen

        with self._until_quit(), Screen(self._draw, self._key) as screen:
            screen.refresh()
            for interval in islice(self._monitor.intervals(), count):
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
        from powerprof.report.watch import screen

        return screen(self._shown, self._view, self._title, width, height)

    def _saved(self) -> str:
        """Save the interval that is on the screen, as `attribute` would; what to say of it."""
        from powerprof.attribution import capture
        from powerprof.errors import PowerprofError
        from powerprof.runs import RunStore

        newest = self._monitor.newest()
        if newest is None:
            return "nothing to save yet"
        taken, record = newest
        try:
            saved = RunStore(self._runs_dir).save("attribute", record, {capture.FILE: capture.encode(taken)})
        except PowerprofError as error:
            return error.message
        return f"saved as {saved.id}"

    def _key(self, key: str) -> None:
        from copy import deepcopy

        from powerprof.report.watch import SORTS

        view = replace(self._view, message="")
        if view.typing:
            self._view = _typed(view, key)
            return
        if key == "q":
            # The loop sleeps in the main thread: a signal ends that, as Ctrl-C does.
            self._quit = True
            os.kill(os.getpid(), signal.SIGINT)
        elif key == "s":
            view = replace(view, sort=SORTS[(SORTS.index(view.sort) + 1) % len(SORTS)])
            view = replace(view, message=f"by {view.sort}")
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


def _typed(view: View, key: str) -> View:
    if key in ("enter", "escape"):
        return replace(view, typing=False, wanted="" if key == "escape" else view.wanted)
    if key == "backspace":
        return replace(view, wanted=view.wanted[:-1])
    return replace(view, wanted=view.wanted + key) if len(key) == 1 else view
