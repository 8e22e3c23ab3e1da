# SPDX-License-Identifier: Apache-2.0
"""Connections that are open and silent; powerprof holds them itself and sleeps."""

from __future__ import annotations

import time
from collections.abc import Sequence

from powerprof.database.clients.connections import IdleConnections
from powerprof.experiment.loads.base import Context, LoadFailed, LoadResult


class IdleLoad:
    """Open connections. Raises PowerprofError where one is refused."""

    def __init__(self, context: Context, clients: int) -> None:
        self._started_s = time.monotonic()
        self._held = IdleConnections(context.server, clients)
        self._held.__enter__()

    @property
    def pids(self) -> Sequence[int]:
        """None: powerprof is the client."""
        return ()

    def alive(self) -> bool:
        """False once the server has closed one."""
        return self._held.lost_count() == 0

    def done(self) -> int | None:
        """Nothing is asked."""
        return None

    def finish(self, timeout_s: float) -> LoadResult:
        """Close the connections. Raises LoadFailed where the server has closed some before."""
        lost = self._held.lost_count()
        elapsed_s = time.monotonic() - self._started_s
        self._held.end()
        if lost:
            raise LoadFailed(f"the server closed {lost} idle connections")
        return LoadResult(queries=0, elapsed_s=elapsed_s)

    def kill(self) -> None:
        """Close the connections."""
        self._held.close()
