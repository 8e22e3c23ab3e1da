# SPDX-License-Identifier: Apache-2.0
"""An outside program that measures as long as a window does, and leaves its report in a file without a name.

Nothing is left of such a file when we are killed. The program finds it as its stdin, by the name OUTPUT, which Linux
opens again: so it may truncate it, and what else it says goes elsewhere.
"""

from __future__ import annotations

import subprocess
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import IO

from powerprof.model.records import Window
from powerprof.system import paths
from powerprof.system.errors import PowerprofError
from powerprof.system.programs import need, start, stop

# Where the program is to write its report.
OUTPUT = "/dev/fd/0"

_PATIENCE_S = 30.0
_LIMIT_BYTES = 256 << 20


@dataclass(frozen=True)
class Outcome:
    """How it ended: exit status, and the lines that it printed."""

    returncode: int
    messages: list[str]


def open_unnamed_file() -> IO[bytes]:
    """An empty file without a name."""
    return tempfile.TemporaryFile(dir=paths.temporary_base())


def read_from_start(file: IO[bytes]) -> str:
    """What is in it, from its start."""
    file.seek(0)
    return file.read(_LIMIT_BYTES).decode("utf-8", "replace")


class TimedProgram:
    """Starts the program with a window, waits for it at the window's end.

    Raises CapabilityError where the program is not installed.
    """

    def __init__(self, name: str, package: str) -> None:
        self._name = name
        self._program = need(name, package)
        self._report, self._messages = open_unnamed_file(), open_unnamed_file()
        self._process: subprocess.Popen[bytes] | None = None
        self._end_s = 0.0
        self.start_s = 0.0

    def launch(self, arguments: Sequence[str], duration_s: float) -> None:
        """Start it; it is expected to end by itself after `duration_s`."""
        self._process = start(
            [self._program, *arguments],
            stdin=self._report,
            stdout=self._messages,
            stderr=self._messages,
            own_mounts=True,
        )
        self.start_s = time.monotonic()
        self._end_s = self.start_s + duration_s

    def outcome(self) -> Outcome | None:
        """Wait for its end. None where the window ended early: it was stopped, and has no figures.

        Raises PowerprofError where it does not end.
        """
        if self._process is None:
            raise RuntimeError("the window was never opened")
        if self._process.poll() is None and time.monotonic() < self._end_s - 0.5:
            stop(self._process, patience_s=2.0)
            return None
        try:
            code = self._process.wait(_PATIENCE_S + max(0.0, self._end_s - time.monotonic()))
        except subprocess.TimeoutExpired:
            raise PowerprofError(
                f"{self._name} did not finish", "the host may be too busy: try again when it is idle"
            ) from None
        return Outcome(code, read_from_start(self._messages).strip().splitlines())

    def report(self) -> str:
        """What it wrote to OUTPUT."""
        return read_from_start(self._report)

    def unknown_window(self, started_at: str) -> Window:
        """The window that ended too early for the program to say anything."""
        return Window(
            started_at=started_at,
            window_s=time.monotonic() - self.start_s,
            cpus=0,
            c0_percent=None,
            idle_percent=None,
            wakeups_hz=None,
            states=[],
            residency_source=self._name,
            notes=[f"the window ended before {self._name} had measured: nothing is known"],
        )

    def close(self) -> None:
        """Stop it if it still runs."""
        if self._process is not None:
            stop(self._process, patience_s=2.0)
        self._report.close()
        self._messages.close()
