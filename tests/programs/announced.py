# SPDX-License-Identifier: Apache-2.0
"""A command on a terminal of its own, until it announces its window and until its end."""

from __future__ import annotations

import os
import pty
import re
import select
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence

from tests.conftest import REPOSITORY, CliResult

_WINDOW = re.compile(rb"(tracing|following|sampling|counting) .*left, until")
_CONTROL = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")


class Announced:
    """A running command; its progress goes to a terminal."""

    def __init__(self, words: Sequence[str], environment: Mapping[str, str]) -> None:
        self._master, slave = pty.openpty()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "powerprof", *words],
            env={**environment, "COLUMNS": "400"},
            cwd=REPOSITORY,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=slave,
        )
        os.close(slave)
        self._said, self._out = b"", b""
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._out += line

    def _listen(self, timeout_s: float) -> bool:
        """Read what it says; False after its end."""
        if not select.select([self._master], [], [], timeout_s)[0]:
            return True
        try:
            data = os.read(self._master, 4096)
        except OSError:
            return False
        self._said += data
        return bool(data)

    def until_window(self, patience_s: float = 90.0, pattern: re.Pattern[bytes] = _WINDOW) -> float:
        """Wait for the announcement of its window, or the first line of its output; the time of it (monotonic)."""
        until_s = time.monotonic() + patience_s
        while not pattern.search(self._said) and self._out.count(b"\n") < 2:
            assert self._listen(0.02), self._said
            assert time.monotonic() < until_s, self._said
        return time.monotonic()

    def end(self, patience_s: float = 90.0) -> CliResult:
        """Wait for its end."""
        until_s = time.monotonic() + patience_s
        while self._listen(0.1) and time.monotonic() < until_s:
            pass
        try:
            self.process.wait(max(1.0, until_s - time.monotonic()))
        finally:
            self.process.kill()
            self._reader.join()
            os.close(self._master)
        said = _CONTROL.sub("", self._said.decode(errors="replace")).replace("\r", "\n")
        return CliResult(self.process.returncode, self._out.decode(), said)
