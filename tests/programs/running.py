# SPDX-License-Identifier: Apache-2.0
"""A program of known behaviour that a test talks to: it says its pid, works when told to, and says what came of it."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import TextIO


class Running:
    """The program, started; `end` kills it."""

    def __init__(self, program: Path) -> None:
        self.process = subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.pid = int(self.line())

    @property
    def _stdout(self) -> TextIO:
        assert self.process.stdout is not None
        return self.process.stdout

    @property
    def descriptor(self) -> int:
        """Readable when it says something."""
        return self._stdout.fileno()

    def line(self) -> str:
        """What it says next; empty once it is dead."""
        return self._stdout.readline()

    def begin(self) -> None:
        """Let it work. Raises BrokenPipeError where it is dead."""
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def end(self) -> None:
        """Kill it."""
        self.process.kill()
        self.process.wait()
