# SPDX-License-Identifier: Apache-2.0
"""A client that is a program: started with its output in a private file, waited for, its CPU time kept."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from powerprof import programs
from powerprof.experiment.loads.base import Context, LoadFailed, LoadResult
from powerprof.folders import Folder, give, write_all
from powerprof.sources.procfs import children_cpu_s

_OUTPUT_LIMIT_BYTES = 8 << 20


def private_file(directory: Path, name: str, data: bytes = b"", owner: tuple[int, int] | None = None) -> Path:
    """A file that only we (or `owner`) can read, in our private directory; one of the same name is replaced."""
    with Folder.open(directory) as folder, folder.replacing(name) as handle:
        write_all(handle, data)
        give(handle, owner)
    return directory / name


class ProcessLoad:
    """A program under way. `parse` turns its standard output into a result."""

    def __init__(
        self,
        argv: Sequence[str | Path],
        context: Context,
        parse: Callable[[str, float], LoadResult],
        env: dict[str, str] | None = None,
        user: tuple[int, int] | None = None,
    ) -> None:
        self._name = Path(argv[0]).name
        self._parse = parse
        self._output = private_file(context.directory, "load.out")
        self._children_s = children_cpu_s()
        self._started_s = time.monotonic()
        with self._output.open("wb") as output:
            self._process: subprocess.Popen[bytes] = programs.start(
                argv,
                stdout=output,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                env=env,
                cwd=context.directory,
                affinity=context.affinity,
                user=user,
            )

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
            raise LoadFailed(f"{self._name} {how}: {reason}")
        from dataclasses import replace

        return replace(self._parse(text, elapsed_s), client_cpu_s=cpu_s)

    def kill(self) -> None:
        """End it now."""
        if self._process.poll() is None:
            programs.stop(self._process, patience_s=1.0)

    def text(self) -> str:
        """Its output until now."""
        with self._output.open("rb") as file:
            return file.read(_OUTPUT_LIMIT_BYTES).decode("utf-8", errors="replace")
