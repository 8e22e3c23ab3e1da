# SPDX-License-Identifier: Apache-2.0
"""Outside programs that measure as long as a window, and the lines and numbers of their recorded output.

The report goes to an unnamed file, so no file remains if this process is killed. The program gets it as its stdin, by
the name OUTPUT. Linux opens that name anew, so the program may truncate the file. Other output has a separate file.
"""

from __future__ import annotations

import itertools
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO

import msgspec

from powerprof.model.records import Window
from powerprof.system import paths
from powerprof.system.errors import DataError, PowerprofError
from powerprof.system.program_search import need
from powerprof.system.programs import start, stop

# The program writes its report here.
OUTPUT = "/dev/fd/0"
_PATIENCE_S = 30.0
_LIMIT_BYTES = 256 << 20


class Outcome(msgspec.Struct, frozen=True):
    """The exit status of a program and the lines that it printed."""

    returncode: int
    messages: list[str]


def open_unnamed_file() -> IO[bytes]:
    """Return an empty file without a name."""
    return tempfile.TemporaryFile(dir=paths.temporary_base())


def read_from_start(file: IO[bytes]) -> str:
    """Return the text of a file from its start."""
    file.seek(0)
    return file.read(_LIMIT_BYTES).decode("utf-8", "replace")


class TimedProgram:
    """A program that starts with a window and ends with it.

    Raises CapabilityError if the program is not installed.
    """

    def __init__(self, name: str, package: str) -> None:
        self._name = name
        self._program = need(name, package)
        self._report, self._messages = open_unnamed_file(), open_unnamed_file()
        self._process: subprocess.Popen[bytes] | None = None
        self._end_s = 0.0
        self.start_s = 0.0

    def launch(self, arguments: Sequence[str], duration_s: float) -> None:
        """Start the program. It should end by itself after `duration_s`."""
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
        """Wait for the end of the program.

        Return None if the window ended early: the program was stopped without figures.

        Raise PowerprofError if it does not end.
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
        """Return its report."""
        return read_from_start(self._report)

    def unknown_window(self, started_at: str) -> Window:
        """Return a window without figures, for a window that ended too early."""
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
        """Stop the program if it still runs."""
        if self._process is not None:
            stop(self._process, patience_s=2.0)
        self._report.close()
        self._messages.close()


def numbered_lines(text: str, path: Path | str, longest: int = 4096) -> Iterator[tuple[int, str]]:
    """Yield the number, from 1, and the text of each line. Raise DataError at a line above `longest` characters."""
    for number, line in enumerate(text.splitlines(), 1):
        if len(line) > longest:
            raise DataError(path, "line too long", number)
        yield number, line


def parse_number(word: str, low: float = float("-inf"), high: float = float("inf")) -> float | None:
    """Return the number of a word. None for another word, for NaN, and outside of `low` to `high`."""
    try:
        value = float(word)
    except ValueError:
        return None
    return value if low <= value <= high else None


def median_step_s(times_s: Sequence[float]) -> float:
    """Return the median distance of neighbouring times; 0 for fewer than two."""
    steps = sorted(b - a for a, b in itertools.pairwise(times_s)) or [0.0]
    return steps[len(steps) // 2]
