# SPDX-License-Identifier: Apache-2.0
"""From what the command line names to a record: reach the server, trace a window, join, price."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import msgspec

from powerprof import __version__
from powerprof.database import performance
from powerprof.database.performance import Known
from powerprof.energy.domains import host_energy
from powerprof.energy.split import Consumer
from powerprof.energy.windows import WindowEnergy
from powerprof.errors import PowerprofError
from powerprof.queries import notes, shares
from powerprof.queries.join import Parts, parts_of
from powerprof.queries.reach import Reach, reach
from powerprof.queries.records import Queries, QueryServer, Share, TracingCost
from powerprof.queries.samples import samples, with_plans
from powerprof.queries.workload import workload_toml
from powerprof.records import ToolCost, Window
from powerprof.text import Say
from powerprof.tracing.queries import QueryTracer
from powerprof.tracing.statement_trace import StatementTrace
from powerprof.windows.sampling import WindowInterrupted, measure_window

_EXPLAINED, _SAVED = 5, 20


@dataclass(frozen=True, kw_only=True)
class Request:
    """What the command line asks for; see `powerprof queries --help`."""

    pid: str | None
    server_url: str | None = None
    socket: Path | None = None
    defaults_file: Path | None = None
    duration_s: float = 10.0
    energy_source: str = "auto"
    meter_log: Path | None = None
    ask_password: Callable[[str], str] | None = None
    explain: bool = False
    workload: str | None = None


@dataclass(frozen=True)
class Result:
    """A record, and the workload.toml that was asked for."""

    record: Queries
    workload: str | None


class Taken(NamedTuple):
    """A traced window with what was metered in it, before anything is judged."""

    trace: StatementTrace
    known: Known
    window: Window
    interrupted: bool


def run(request: Request, say: Say, consent: Callable[[str], None]) -> Result:
    """Answer the request. Raises UsageError, CapabilityError, PowerprofError.

    `consent` is told before texts of clients are used with their values, and raises where that is not agreed to.
    """
    server = reach(request.pid, request.server_url, request.socket, request.defaults_file, request.ask_password)
    if request.explain:
        if server.login is None:
            raise PowerprofError(
                "--explain: the server does not let this user in", "name an account by --defaults-file"
            )
        consent(f"EXPLAIN is going to be run for up to {_EXPLAINED} statements of clients, with their values")
    if request.workload is not None:
        consent(f"statements of clients are going to be written to a file, with their values: {request.workload}")
    with WindowEnergy(request.energy_source, request.meter_log) as energy:
        taken = take(server, request.duration_s, energy, say)
        record = record_of(server, taken, energy)
    if request.explain and server.login is not None:
        say("asking for plans")
        chosen = samples(taken.trace, record.statements, _EXPLAINED)
        statements, untold = with_plans(record.statements, chosen, server.login)
        record = msgspec.structs.replace(record, statements=statements, notes=[*record.notes, *untold])
    if request.workload is None:
        return Result(record, None)
    chosen = samples(taken.trace, record.statements, _SAVED)
    return Result(record, workload_toml(request.workload, server.label, chosen, record.connections_count))


def take(server: Reach, duration_s: float, energy: WindowEnergy, say: Say) -> Taken:
    """Trace one window; the server is asked before and after it, never within."""
    say("loading the tracer")
    with QueryTracer(server.pid) as tracer:
        before = _ask(server, running=True)
        tracer.attach()
        say(f"tracing the statements of {server.label} for {duration_s:g} s")
        interrupted = False
        tracer.begin()
        try:
            window = measure_window(duration_s, meters=energy.meters)
        except WindowInterrupted as error:
            if error.partial is None:
                raise
            window, interrupted = error.partial, True
        tracer.end()
        trace = tracer.collect()
    known = performance.merged(before, _ask(server, running=False))
    return Taken(trace, known, energy.complete(window), interrupted)


def _ask(server: Reach, *, running: bool) -> Known:
    """What the server tells; nothing where it cannot be asked. What is measured does not depend on it."""
    if server.login is None:
        return Known()
    try:
        with server.connect() as connection:
            return performance.look(connection, running=running)
    except PowerprofError:
        return Known()


def record_of(server: Reach, taken: Taken, energy: WindowEnergy) -> Queries:
    """The record of a window."""
    from powerprof.host.describe import host_record

    trace, window = taken.trace, taken.window
    parts = parts_of(trace, taken.known)
    explained_s = _sum(parts)
    server_s = explained_s if trace.process_cpu_ns is None else trace.process_cpu_ns / 1e9
    residual_s = server_s - explained_s
    whole, cpus = host_energy(window.energy), window.cpus or os.cpu_count() or 1
    every: list[Share] = [*parts.statements, *parts.background, parts.connections]
    host_s = trace.window_s * cpus
    ran_percent = (window.c0_percent or 0.0) - (window.steal_percent or 0.0)
    others_s = max(ran_percent / 100 * host_s - server_s, 0.0)
    split = energy.split(
        whole,
        trace.window_s,
        cpus,
        window.c0_percent,
        [shares.consumer(server.label, every, residual_s), Consumer(name="all else on this host", c0_s=others_s)],
        wakeups_count=(window.wakeups_hz or 0.0) * trace.window_s,
        steal_percent=window.steal_percent,
    )
    price = shares.pricing(split, server.label, whole, window.energy)
    priced = [shares.priced(one, at, server_s, price, trace.window_s) for at, one in enumerate(every)]
    count = len(parts.statements)
    statements = shares.with_rows(priced[:count], taken.known.digests)  # type: ignore[arg-type]
    cost_s = None if trace.cost.bpf_s is None else trace.cost.bpf_s + trace.cost.trap_ns / 1e9
    return Queries(
        id=None,
        started_at=window.started_at,
        window_s=trace.window_s,
        method="probes",
        server=QueryServer(
            pid=server.pid,
            label=server.label,
            version=server.version,
            address=server.login.text if server.login is not None else None,
            performance_schema=taken.known.has_digests,
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
        explained_percent=100 * explained_s / server_s if server_s > 0 and trace.process_cpu_ns is not None else None,
        calls_count=sum(one.calls_count or 0 for one in statements),
        lost_count=trace.lost_count,
        unreadable_count=trace.unreadable_count,
        cut_count=trace.cut_count,
        joules=price.part.joules if price is not None else None,
        kind=whole.kind,
        energy_source=energy.source,
        energy=window.energy,
        energy_split=None if split is None else shares.without_children(split),
        tracing=TracingCost(
            probes_ms=None if cost_s is None else 1e3 * cost_s,
            percent=None if cost_s is None else 100 * cost_s / host_s,
            per_call_us=None if cost_s is None or not trace.dispatches_count else 1e6 * cost_s / trace.dispatches_count,
        ),
        tool=ToolCost(
            version=__version__,
            cpu_s=window.tool_cpu_s,
            wakeups_hz=None if window.tool_wakeups_count is None else window.tool_wakeups_count / trace.window_s,
            bpf_s=trace.cost.bpf_s,
            cpu_percent=None if window.tool_cpu_s is None else 100 * window.tool_cpu_s / host_s,
            lost_count=trace.lost_count,
        ),
        notes=[*notes.of(taken.trace, taken.known, server, statements), *window.notes, *_energy_notes(price)],
        interrupted=taken.interrupted,
    )


def _energy_notes(price: shares.Pricing | None) -> list[str]:
    if price is not None:
        return price.split.notes
    return ["no joules by statement: without an idle floor a share of them means nothing (powerprof calibrate)"]


def _sum(parts: Parts) -> float:
    every: list[Share] = [*parts.statements, *parts.background, parts.connections]
    return sum(one.c0_s for one in every)
