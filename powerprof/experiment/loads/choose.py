# SPDX-License-Identifier: Apache-2.0
"""From the kind of a load to what runs it."""

from __future__ import annotations

from powerprof.experiment.loads import command, connectorj, gated, idle, pgbench, slap, sysbench
from powerprof.experiment.loads.base import Context, LoadOrder, RunningLoad
from powerprof.workloads.reading import Case


def start_load(case: Case, context: Context, order: LoadOrder) -> RunningLoad:
    """Start the load of `case`. Raises CapabilityError, LoadFailed, UsageError."""
    if case.load.is_silent:
        return idle.IdleLoad(context, case.load.clients if case.load.kind == "idle" else 0)
    if case.load.kind == "slap":
        return slap.start(case, context, order)
    if case.load.kind == "command":
        return command.start(case, context, order)
    if case.load.kind == "connector-j":
        return connectorj.start(case.load, case.load_statements(), context, order)
    if case.load.kind == "pgbench":
        return pgbench.start(case, context, order)
    if case.load.kind == "tpcc":
        return sysbench.start_tpcc(case, context, order)
    if context.login.family == "postgresql" and order.duration_s is not None:
        return gated.OpenGate(case.load, case.load_statements(), context, order)
    return sysbench.start(case.load, case.load_statements(), context, order)
