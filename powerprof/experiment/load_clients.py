# SPDX-License-Identifier: Apache-2.0
"""Start the client of each kind of load."""

from __future__ import annotations

import time
from collections.abc import Sequence

from powerprof.database.connections import IdleConnections
from powerprof.experiment import mariadb_slap, sysbench, sysbench_gate
from powerprof.experiment.command_client import start_command
from powerprof.experiment.connector_client import start_connector
from powerprof.experiment.load import Context, LoadFailed, LoadOrder, LoadResult, RunningLoad
from powerprof.experiment.pgbench import start_pgbench
from powerprof.workloads.reading import Case


class IdleLoad:
    """Open, silent connections of powerprof itself. Raises PowerprofError if one is refused."""

    def __init__(self, context: Context, clients: int) -> None:
        self._started_s = time.monotonic()
        self._held = IdleConnections(context.server, clients)
        self._held.__enter__()

    @property
    def pids(self) -> Sequence[int]:
        return ()

    def alive(self) -> bool:
        """Return whether all connections are open."""
        return self._held.lost_count() == 0

    def done(self) -> int | None:
        return None

    def finish(self, timeout_s: float) -> LoadResult:
        """Close the connections. Raise LoadFailed if the server has closed some before."""
        lost = self._held.lost_count()
        elapsed_s = time.monotonic() - self._started_s
        self._held.end()
        if lost:
            raise LoadFailed(f"the server closed {lost} idle connections")
        return LoadResult(queries=0, elapsed_s=elapsed_s)

    def kill(self) -> None:
        self._held.close()


def start_load(case: Case, context: Context, order: LoadOrder) -> RunningLoad:
    """Start the load of `case`. Raise CapabilityError, LoadFailed, UsageError."""
    if case.load.is_silent:
        return IdleLoad(context, case.load.clients if case.load.kind == "idle" else 0)
    if case.load.kind == "slap":
        return mariadb_slap.start_mariadb_slap(case, context, order)
    if case.load.kind == "command":
        return start_command(case, context, order)
    if case.load.kind == "connector-j":
        return start_connector(case.load, case.load_statements(context.folder), context, order)
    if case.load.kind == "pgbench":
        return start_pgbench(case, context, order)
    if case.load.kind == "tpcc":
        return sysbench.start_tpcc(case, context, order)
    if context.login.family == "postgresql" and order.duration_s is not None:
        return sysbench_gate.OpenGate(case.load, case.load_statements(context.folder), context, order)
    return sysbench.start_sysbench(case.load, case.load_statements(context.folder), context, order)
