# SPDX-License-Identifier: Apache-2.0
"""A measured window → the record: percentages, joules and costs put to its parts."""

from __future__ import annotations

import os
from dataclasses import dataclass

from powerprof import __version__
from powerprof.database.clients.performance import Known
from powerprof.energy.domains import host_energy
from powerprof.energy.split import Consumer
from powerprof.energy.windows import WindowEnergy
from powerprof.queries import shares
from powerprof.queries.join import Parts
from powerprof.queries.reach import Reach
from powerprof.queries.records import Method, Queries, QueryServer, Share, TracingCost
from powerprof.records import Notes, ToolCost, Window


@dataclass(frozen=True, kw_only=True)
class MeasuredStatements:
    """What a way of telling statements apart found. `process_cpu_s`: the kernel's own count, None where it has none.

    `version` is the server's as its program says, where it is not asked. `gap_before_s`: since the window before.
    `cost_s` is CPU time that the way took, `seen_count` the statements that it took it for.
    """

    method: Method
    parts: Parts
    known: Known
    window: Window
    window_s: float
    process_cpu_s: float | None
    cost_s: float | None
    bpf_s: float | None
    seen_count: int
    notes: Notes
    version: str | None = None
    gap_before_s: float | None = None
    lost_count: int = 0
    unreadable_count: int = 0
    cut_count: int = 0
    interrupted: bool = False


def record_of(server: Reach, taken: MeasuredStatements, energy: WindowEnergy) -> Queries:
    """The record of a window."""
    from powerprof.host.describe import host_record

    window, parts = taken.window, taken.parts
    explained_s = _sum(parts)
    server_s = explained_s if taken.process_cpu_s is None else taken.process_cpu_s
    residual_s = server_s - explained_s
    whole, cpus = host_energy(window.energy), window.cpus or os.cpu_count() or 1
    every: list[Share] = [*parts.statements, *parts.background, parts.connections]
    host_s = taken.window_s * cpus
    ran_percent = (window.c0_percent or 0.0) - (window.steal_percent or 0.0)
    others_s = max(ran_percent / 100 * host_s - server_s, 0.0)
    split = energy.split(
        whole,
        taken.window_s,
        cpus,
        window.c0_percent,
        [shares.consumer(server.label, every, residual_s), Consumer(name="all else on this host", c0_s=others_s)],
        wakeups_count=(window.wakeups_hz or 0.0) * taken.window_s,
        steal_percent=window.steal_percent,
    )
    price = shares.pricing(split, server.label, whole, window.energy)
    priced = [shares.priced(entry, at, server_s, price, taken.window_s) for at, entry in enumerate(every)]
    count = len(parts.statements)
    statements = shares.with_rows(priced[:count], taken.known.digests)  # type: ignore[arg-type]
    if server.family == "postgresql":
        statements = shares.with_statistics(statements, taken.known.statistics)
    cost_s = taken.cost_s
    return Queries(
        id=None,
        started_at=window.started_at,
        window_s=taken.window_s,
        gap_before_s=taken.gap_before_s,
        method=taken.method,
        server=QueryServer(
            pid=server.pid,
            label=server.label,
            version=server.version or taken.version,
            address=server.login.text if server.login is not None else None,
            performance_schema=taken.known.has_digests,
            family=server.family,
        ),
        host=host_record(),
        cpus=cpus,
        host_c0_percent=window.c0_percent,
        server_c0_s=server_s,
        statements=statements,
        background=priced[count:-1],  # type: ignore[arg-type]
        connections=priced[-1],
        connections_count=parts.connections_count,
        connections_c0_s=parts.connections.c0_s,
        residual_c0_s=residual_s,
        other_c0_s=parts.connections.c0_s + residual_s,
        explained_percent=100 * (explained_s / server_s) if server_s > 0 and taken.process_cpu_s is not None else None,
        calls_count=sum(statement.calls_count or 0 for statement in statements),
        lost_count=taken.lost_count,
        unreadable_count=taken.unreadable_count,
        cut_count=taken.cut_count,
        joules=price.part.joules if price is not None else None,
        kind=whole.kind,
        energy_source=energy.source,
        energy=window.energy,
        energy_split=None if split is None else shares.without_children(split),
        tracing=TracingCost(
            probes_ms=None if cost_s is None else 1e3 * cost_s,
            percent=None if cost_s is None else 100 * cost_s / host_s,
            per_call_us=None if cost_s is None or not taken.seen_count else 1e6 * cost_s / taken.seen_count,
        ),
        tool=ToolCost(
            version=__version__,
            cpu_s=window.tool_cpu_s,
            wakeups_hz=None if window.tool_wakeups_count is None else window.tool_wakeups_count / taken.window_s,
            bpf_s=taken.bpf_s,
            cpu_percent=None if window.tool_cpu_s is None else 100 * window.tool_cpu_s / host_s,
            lost_count=taken.lost_count,
        ),
        notes=[*taken.notes, *window.notes, *_energy_notes(price)],
        interrupted=taken.interrupted,
    )


def _energy_notes(price: shares.Pricing | None) -> Notes:
    if price is not None:
        return price.split.notes
    return ["no joules by statement: without an idle floor a share of them means nothing (powerprof calibrate)"]


def _sum(parts: Parts) -> float:
    every: list[Share] = [*parts.statements, *parts.background, parts.connections]
    return sum(part.c0_s for part in every)
