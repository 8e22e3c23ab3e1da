# SPDX-License-Identifier: Apache-2.0
"""The interface of all loads, and client programs in a sandbox."""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Protocol

import msgspec
from msgspec.structs import replace

from powerprof.database import sandbox
from powerprof.database.base import Login, Server
from powerprof.database.sandbox import Sandbox
from powerprof.measure.target_life import LOOK_S
from powerprof.system import programs
from powerprof.system.errors import Retryable
from powerprof.system.folders import Folder, set_owner, write_all


class LoadFailed(Retryable):
    """A client that ended too soon or with an error."""

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message, hint or "try the load's statements by hand, or fewer clients at a lower rate")


class LoadOrder(msgspec.Struct, frozen=True):
    """The amount of load: `duration_s` at `rate_hz` (None: full speed), or a number of `queries`.

    With a rate and a number, the queries are spread at that rate.
    """

    duration_s: float | None = None
    rate_hz: float | None = None
    queries: int | None = None
    seed: int = 1


class Context(msgspec.Struct, frozen=True):
    """The environment of a load: server, account, private directory for files, CPUs of the client, workload folder.

    `folder` is the checked copy if the workload runs programs. The client program may enter the directory. `mark` is
    that of the run tree, which ends what the client leaves running.
    """

    server: Server
    login: Login
    directory: Path
    affinity: Sequence[int] | None = None
    folder: Path | None = None
    mark: int | None = None

    @property
    def place(self) -> Path:
        """The folder of the client program, and the only one that it may change."""
        return self.directory / "client"

    @property
    def environment(self) -> dict[str, str]:
        """The variables of PostgreSQL's client library: the options of its sessions (`Login.session_options`)."""
        options = self.login.session_options
        return {"PGOPTIONS": options} if self.login.family == "postgresql" and options else {}

    def file(self, name: str, data: bytes) -> Path:
        """Write or replace a file that the client program alone can read. Raise OSError."""
        owner = sandbox.choose_user(self.login.account)
        with Folder.open(self.directory) as ours:
            with suppress(FileExistsError):
                ours.make(self.place.name)
            with ours.folder(self.place.name) as own:
                set_owner(own.handle, owner)
                with own.replacing(name) as handle:
                    write_all(handle, data)
                    set_owner(handle, owner)
        return self.place / name

    def sandbox(self, reads: Sequence[Path]) -> Sandbox:
        """Return the sandbox of the client program: it can connect to its server only, and read `reads`."""
        login = self.login
        return Sandbox(
            self.place,
            (*reads, *([login.socket] if login.socket is not None else [])),
            account=login.account,
            namespaces=self.server.namespaces if login.socket is None else (),
            connects=(login.tcp_port,) if login.socket is None else (),
        )


def look_at_server(server: Server) -> None:
    """Raise TargetEndedError if a given server of this host has ended or was stopped: its clients would wait long."""
    if not server.private and server.pid is not None:
        server.check()


def find_libpq_place(login: Login) -> tuple[str, str]:
    """Return host and port as PostgreSQL's client library takes them.

    A host that is a folder holds the socket, which is named by its port (libpq, PQconnectdb).
    """
    if login.socket is not None:
        return str(login.socket.parent), login.socket.suffix[1:]
    return login.host or "127.0.0.1", str(login.tcp_port)


class LoadResult(msgspec.Struct, frozen=True):
    """The client's report. Latencies include the time in the queue; None if unknown.

    `ends_s` holds the time of each answer, on the monotonic clock.
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
        """Return the number of answers in an interval; None if the client does not report their times."""
        return None if self.ends_s is None else sum(start_s <= at_s < end_s for at_s in self.ends_s)


class RunningLoad(Protocol):
    """A running load."""

    @property
    def pids(self) -> Sequence[int]:
        """The client's processes; empty if powerprof itself is the client."""

    def alive(self) -> bool:
        """Return whether it is running."""

    def done(self) -> int | None:
        """Return the number of answered queries so far; None if only the server knows."""

    def finish(self, timeout_s: float) -> LoadResult:
        """Wait for its end. Raise LoadFailed if it failed or does not end."""

    def kill(self) -> None:
        """End it now, if it is running."""


_OUTPUT_LIMIT_BYTES = 8 << 20
# The client program reads its account from this pipe, which is then empty: `LOAD DATA LOCAL` finds no password in a
# file.
STDIN = "/proc/self/fd/0"
# Errors of MariaDB and MySQL for an account that may not log in.
_REFUSED_HINT = "the client is never root: name an account with a password ({}), or use sudo as its user"
_REFUSED = re.compile(r"\b(1045|1698)\b|Access denied|authentication failed|no pg_hba\.conf entry")


class ProcessLoad:
    """A client program in its sandbox. `parse` turns its standard output into a result.

    It may read `reads`, and its input `stdin` at `STDIN`. Raises CapabilityError and PowerprofError.
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
        self._name, self._family = Path(argv[0]).name, context.login.family
        self._parse = parse
        self._server = context.server
        # The file has no name, so a link cannot redirect its reader.
        self._output = tempfile.TemporaryFile(dir=context.directory)  # noqa: SIM115 - as long as the load
        self._cpu_s: float | None = None  # known at its end
        self._started_s = time.monotonic()
        own = context.sandbox(reads)
        theirs = _pipe_with(stdin, sandbox.choose_user(own.account))
        try:
            self._process: subprocess.Popen[bytes] = sandbox.start(
                argv,
                own,
                output=self._output,
                stdin=theirs,
                env={"TMPDIR": str(context.place), **context.environment, **(env or {})},
                place=context.place,
                affinity=context.affinity,
                mark=context.mark,
            )
        finally:
            os.close(theirs)

    @property
    def pids(self) -> Sequence[int]:
        return (self._process.pid,)

    def alive(self) -> bool:
        return not self._has_ended(0.0)

    def done(self) -> int | None:
        return None

    def finish(self, timeout_s: float) -> LoadResult:
        """Wait for its end and read its output. Raise LoadFailed."""
        if not self._has_ended(max(0.1, timeout_s)):
            self.kill()
            raise LoadFailed(f"{self._name} did not end in {timeout_s:.0f} s")
        elapsed_s = time.monotonic() - self._started_s
        code, text = self._process.returncode, self.text()
        if code != 0:
            errors = [line.strip() for line in text.splitlines() if "FATAL" in line or "rror" in line][:2]
            reason = " / ".join(errors)[:300] or "it printed no report"
            how = f"was killed by signal {-code}" if code < 0 else f"failed with {code}"
            place = "PGPASSWORD" if self._family == "postgresql" else "--defaults-file"
            hint = _REFUSED_HINT.format(place) if _REFUSED.search(reason) else None
            raise LoadFailed(f"{self._name} {how}: {reason}", hint)
        return replace(self._parse(text, elapsed_s), client_cpu_s=self._cpu_s)

    def _has_ended(self, timeout_s: float) -> bool:
        """Wait for its end for up to `timeout_s` seconds, and keep its CPU time. Raise TargetEndedError."""
        end_s = time.monotonic() + timeout_s
        while self._process.returncode is None:
            left_s = end_s - time.monotonic()
            self._cpu_s = programs.wait_for_cost(self._process, max(0.0, min(left_s, LOOK_S)))
            if left_s <= LOOK_S:
                break
            look_at_server(self._server)
        return self._process.returncode is not None

    def kill(self) -> None:
        if not self._has_ended(0.0):
            programs.stop(self._process, patience_s=1.0)

    def text(self) -> str:
        """Return its output so far."""
        return os.pread(self._output.fileno(), _OUTPUT_LIMIT_BYTES, 0).decode("utf-8", errors="replace")


def _pipe_with(text: str, user: tuple[int, int] | None) -> int:
    """Return the end of a pipe from which that account reads `text` once. A pipe holds 64 KiB, more than an account."""
    ours, theirs = os.pipe()
    with os.fdopen(theirs, "wb") as stream:
        stream.write(text.encode())
    if user is not None:
        os.fchown(ours, *user)
    return ours
