# SPDX-License-Identifier: Apache-2.0
"""A cell at work: one process with a time limit that writes its results as lines of JSON, in a folder of its own."""

from __future__ import annotations

import json
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from powerprof.system.programs import start, stop
from tools.matrix.cells import Cell
from tools.matrix.inside.steps import SAID_ALL

CONSOLE, RESULTS = "console", "results"
# A machine that was suspended cannot always be switched off again. Once it has said all, it may be ended from outside.
_POWER_OFF_S = 60.0


@dataclass(frozen=True)
class Ended:
    """What was said until the end; `why_ended` is None where it came to its own end."""

    results: list[dict[str, Any]]
    console: str
    why_ended: str | None
    seconds: float


class Running:
    """A context manager around the process: at the exit it is killed, and its folder removed.

    `command(folder)` gives the argument list. The process dies with this one as well, whatever ends it.
    """

    def __init__(self, cell: Cell, command: Callable[[Path], Sequence[str | Path]], limit_s: float) -> None:
        self.cell = cell
        self._limit_s = limit_s
        self._command = command
        self._begin_s = time.monotonic()
        self._said_all_s: float | None = None

    def __enter__(self) -> Running:
        self._folder = tempfile.TemporaryDirectory(prefix="powerprof-matrix-")
        self._place = Path(self._folder.name)
        try:
            argv = self._command(self._place)
            with (self._place / "complaints").open("wb") as complaints:
                self._process: subprocess.Popen[bytes] = start(argv, stdout=complaints, stderr=complaints)
        except BaseException:
            self._folder.cleanup()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        stop(self._process, patience_s=2.0)
        self._folder.cleanup()

    def is_over(self) -> bool:
        """It ended, or its time did, or it has said all and does not end."""
        now_s = time.monotonic()
        if self._said_all_s is None and self._has_said_all():
            self._said_all_s = now_s
        is_stuck = self._said_all_s is not None and now_s - self._said_all_s > _POWER_OFF_S
        return self._process.poll() is not None or is_stuck or now_s - self._begin_s > self._limit_s

    def ended(self) -> Ended:
        """What there is to know; ends the process where it still runs."""
        why = None
        is_running = self._process.poll() is None
        if is_running and not self._has_said_all():
            why = f"still running after {self._limit_s:g} s"
        code = stop(self._process, patience_s=2.0)
        if not is_running and code != 0:
            why = f"ended with {code}: {self._text('complaints')[-300:].strip()}"
        console = self._text(CONSOLE)
        if why is None and (at := console.find("Kernel panic")) >= 0:
            why = console[at:].partition("\n")[0].strip()
        return Ended(self._results(), console, why, time.monotonic() - self._begin_s)

    def _text(self, name: str) -> str:
        path = self._place / name
        return path.read_text(errors="replace") if path.exists() else ""

    def _has_said_all(self) -> bool:
        return self._text(RESULTS).endswith(SAID_ALL)

    def _results(self) -> list[dict[str, Any]]:
        found = []
        for line in self._text(RESULTS).splitlines():
            try:
                found.append(json.loads(line))
            except ValueError:
                continue  # half a line of a machine that was ended
        return found
