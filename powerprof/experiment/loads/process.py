# SPDX-License-Identifier: Apache-2.0
"""A client that is a program: started with its output in a private file, waited for, its CPU time kept."""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from powerprof import programs
from powerprof.database.isolation import sandbox
from powerprof.experiment.loads.base import Context, LoadFailed, LoadResult
from powerprof.sources.procfs import children_cpu_s

_OUTPUT_LIMIT_BYTES = 8 << 20
# A program reads its account from this pipe, which is empty afterwards: `LOAD DATA LOCAL` finds no password in a file.
STDIN = "/proc/self/fd/0"
# Errors of MariaDB and MySQL for an account that may not log in.
_REFUSED_HINT = "the client is never root: name an account with a password (--defaults-file), or use sudo as its user"
_REFUSED = re.compile(r"\b(1045|1698)\b|Access denied")


class ProcessLoad:
    """A program under way, in its sandbox. `parse` turns its standard output into a result.

    It may read `reads`, and finds `stdin` at `STDIN`. Raises CapabilityError and PowerprofError.
    """

    def __init__(
        self,
        argv: Sequence[str | Path],
        context: Context,
        parse: Callable[[str, float], LoadResult],
        env: dict[str, str] | None = None,
        reads: Sequence[Path] = (),
        stdin: str = "",
    ) -> None:
        self._name = Path(argv[0]).name
        self._parse = parse
        # No name leads to it: its reader is not led to another file.
        self._output = tempfile.TemporaryFile(dir=context.directory)  # noqa: SIM115 - as long as the load
        self._children_s = children_cpu_s()
        self._started_s = time.monotonic()
        own = context.sandbox(reads)
        theirs = _pipe_with(stdin, sandbox.user_of(own.account))
        try:
            self._process: subprocess.Popen[bytes] = sandbox.start(
                argv,
                own,
                output=self._output,
                stdin=theirs,
                env={"TMPDIR": str(context.place), **(env or {})},
                place=context.place,
                affinity=context.affinity,
            )
        finally:
            os.close(theirs)

    @property
    def pids(self) -> Sequence[int]:
        """The client's process."""
        return (self._process.pid,)

    def alive(self) -> bool:
        """False once it has ended."""
        return self._process.poll() is None

    def done(self) -> int | None:
        """It says so when it ends, if at all."""
        return None

    def finish(self, timeout_s: float) -> LoadResult:
        """Wait for its end and read its output. Raises LoadFailed."""
        try:
            code = self._process.wait(max(0.1, timeout_s))
        except subprocess.TimeoutExpired:
            self.kill()
            raise LoadFailed(f"{self._name} did not end in {timeout_s:.0f} s") from None
        elapsed_s = time.monotonic() - self._started_s
        # One client runs at a time and servers are not waited for, so what was reaped since is the client.
        cpu_s = children_cpu_s() - self._children_s
        text = self.text()
        if code != 0:
            errors = [line.strip() for line in text.splitlines() if "FATAL" in line or "rror" in line][:2]
            reason = " / ".join(errors)[:300] or "it reported nothing"
            how = f"was killed by signal {-code}" if code < 0 else f"failed with {code}"
            raise LoadFailed(f"{self._name} {how}: {reason}", _REFUSED_HINT if _REFUSED.search(reason) else None)
        return replace(self._parse(text, elapsed_s), client_cpu_s=cpu_s)

    def kill(self) -> None:
        """End it now."""
        if self._process.poll() is None:
            programs.stop(self._process, patience_s=1.0)

    def text(self) -> str:
        """Its output until now."""
        return os.pread(self._output.fileno(), _OUTPUT_LIMIT_BYTES, 0).decode("utf-8", errors="replace")


def _pipe_with(text: str, user: tuple[int, int] | None) -> int:
    """Return the end of a pipe from which that account reads `text` once. A pipe holds 64 KiB, an account less."""
    ours, theirs = os.pipe()
    with os.fdopen(theirs, "wb") as stream:
        stream.write(text.encode())
    if user is not None:
        os.fchown(ours, *user)
    return ours
