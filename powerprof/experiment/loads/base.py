# SPDX-License-Identifier: Apache-2.0
"""What every kind of load is to the runner."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from powerprof.database.clients.base import Login, Server
from powerprof.database.isolation import sandbox
from powerprof.database.isolation.sandbox import Sandbox
from powerprof.errors import Retryable
from powerprof.folders import Folder, give, write_all


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
        owner = sandbox.user_of(self.login.account)
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
