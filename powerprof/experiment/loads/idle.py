"""Connections that are open and silent; powerprof holds them itself and sleeps."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence

from powerprof.database import sql
from powerprof.database.base import Sql
from powerprof.errors import PowerprofError
from powerprof.experiment.loads.base import Context, LoadFailed, LoadResult
from powerprof.workloads.definition import Load


class IdleLoad:
    """Open connections. Raises LoadFailed where one is refused."""

    def __init__(self, load: Load, context: Context) -> None:
        self._connections: list[Sql] = []
        self._started_s = time.monotonic()
        try:
            for _ in range(load.clients):
                connection = sql.connect(context.login)
                self._connections.append(connection)
                sql.execute(connection, *load.session)
        except PowerprofError as error:
            self.kill()
            raise LoadFailed(error.message, error.hint) from error

    @property
    def pids(self) -> Sequence[int]:
        """None: powerprof is the client."""
        return ()

    def alive(self) -> bool:
        """True until they are closed."""
        return bool(self._connections)

    def finish(self, timeout_s: float) -> LoadResult:
        """Close the connections."""
        elapsed_s = time.monotonic() - self._started_s
        self.kill()
        return LoadResult(queries=0, elapsed_s=elapsed_s)

    def kill(self) -> None:
        """Close the connections."""
        for connection in self._connections:
            with contextlib.suppress(Exception):  # the server may have gone; there is nothing to save
                connection.close()
        self._connections = []
