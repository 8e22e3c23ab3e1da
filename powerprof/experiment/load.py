# SPDX-License-Identifier: Apache-2.0
"""What every kind of load is to the runner."""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from powerprof.database.clients.base import Login, Server
from powerprof.database.isolation import sandbox
from powerprof.database.isolation.sandbox import Sandbox
from powerprof.measure.procfs import children_cpu_s
from powerprof.system import programs
from powerprof.system.errors import Retryable
from powerprof.system.folders import Folder, give, write_all


class LoadFailed(Retryable):
    """The client ended before it should have, or with an error."""

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message, hint or "try the load's statements by hand, or fewer clients at a lower rate")


@dataclass(frozen=True)
class LoadOrder:
    """How much to run: for `duration_s` at `rate_hz` (None: as fast as it goes), or `queries` in all.

    With both a rate and a number of queries they are spread at that rate.
    """

    duration_s: float | None = None
    rate_hz: float | None = None
    queries: int | None = None
    seed: int = 1


@dataclass(frozen=True)
class Context:
    """Where the load runs: server, account, a private directory for files, the CPUs of the client, and the workload's
    folder, or the copy of it whose programs may be run. The client program may enter the directory."""

    server: Server
    login: Login
    directory: Path
    affinity: Sequence[int] | None = None
    folder: Path | None = None

    @property
    def place(self) -> Path:
        """The folder of the client program, and the only one that it may change."""
        return self.directory / "client"

    def file(self, name: str, data: bytes) -> Path:
        """Write a file that the client program alone can read; one of the same name is replaced. Raises OSError."""
        owner = sandbox.choose_user(self.login.account)
        with Folder.open(self.directory) as ours:
            with suppress(FileExistsError):
                ours.make(self.place.name)
            with ours.folder(self.place.name) as own:
                give(own.handle, owner)
                with own.replacing(name) as handle:
                    write_all(handle, data)
                    give(handle, owner)
        return self.place / name

    def sandbox(self, reads: Sequence[Path]) -> Sandbox:
        """Return the sandbox of the client program: it reaches its server alone, and may read `reads`."""
        login = self.login
        port = login.port or (5432 if login.family == "postgresql" else 3306)
        return Sandbox(
            self.place,
            (*reads, *([login.socket] if login.socket is not None else [])),
            account=login.account,
            namespaces=self.server.namespaces if login.socket is None else (),
            connects=(port,) if login.socket is None else (),
        )


@dataclass(frozen=True)
class LoadResult:
    """What the client says afterwards. Latencies include the time in the queue; None where it cannot tell.

    `ends_s` is when each query was answered, on the monotonic clock.
    """

    queries: int | None
    elapsed_s: float
    p50_ms: float | None = None
    p95_ms: float | None = None
    p99_ms: float | None = None
    mean_ms: float | None = None
    errors: int = 0
    client_cpu_s: float | None = None
    ends_s: Sequence[float] | None = None

    def between(self, start_s: float, end_s: float) -> int | None:
        """How many queries were answered in that time; None where the client does not say when."""
        return None if self.ends_s is None else sum(start_s <= at_s < end_s for at_s in self.ends_s)


class RunningLoad(Protocol):
    """A load under way."""

    @property
    def pids(self) -> Sequence[int]:
        """The client's processes; empty where powerprof itself is the client."""

    def alive(self) -> bool:
        """False once it has ended."""

    def done(self) -> int | None:
        """How many queries have been answered until now; None where only the server can tell."""

    def finish(self, timeout_s: float) -> LoadResult:
        """Wait for its end. Raises LoadFailed where it failed or does not end."""

    def kill(self) -> None:
        """End it now; does nothing where it has ended."""


# A client that is a program: started with its output in a private file, waited for, its CPU time kept.

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
        theirs = _pipe_with(stdin, sandbox.choose_user(own.account))
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
