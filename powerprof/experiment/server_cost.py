# SPDX-License-Identifier: Apache-2.0
"""Compute the idle exits that the server's own threads cause, as the trace counted them.

Other programs are not in this count. A busy neighbour or a drift hides the difference of whole windows, but not this
count.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from powerprof.model.records import Estimate, IdleRun, Phase
from powerprof.statistics.counts import difference_of_rates
from powerprof.statistics.intervals import Interval

# CPUs that are never idle have no idle exits, so a count is meaningless above this.
BUSY_PERCENT = 90.0
# With CPUs this busy, some wake-ups meet CPUs that are awake.
HALF_BUSY_PERCENT = 25.0
# One health check in two seconds is still an idle server.
IDLE_STATEMENTS_HZ = 0.5


class ServerCost(msgspec.Struct, frozen=True):
    """Idle exits per second of the server alone, and those added by silent connections (None: unknown).

    `thread` is the thread with most of them and its rate. `busy_percent` is the load of the CPUs during the count, if
    it hides some idle exits; then `added` is None.
    """

    alone: Estimate | None
    connected: Estimate | None
    added: Estimate | None
    thread: tuple[str, float] | None
    busy_percent: float | None


def server_cost(run: IdleRun) -> ServerCost | None:
    """Return the idle exits of the server; None without a trace or if its process is on another host."""
    traced = {phase.name: phase for phase in run.phases if phase.server_exits is not None}
    alone, connected = (traced[name].server_exits if name in traced else None for name in ("server", "clients"))
    if alone is None and connected is None:
        return None
    busy = _find_busiest_percent(list(traced.values()))
    return ServerCost(
        alone=None if alone is None else alone.wakeups_hz,
        connected=None if connected is None else connected.wakeups_hz,
        added=None
        if alone is None or connected is None or busy is not None
        else _subtract(alone.wakeups_hz, connected.wakeups_hz),
        thread=_find_busiest_thread(run, traced["clients" if alone is None else "server"]),
        busy_percent=busy,
    )


class Obstacle(msgspec.Struct, frozen=True):
    """The reason why a run has no answer: `busy` CPUs in percent, or the `statements` per second of other clients."""

    kind: Literal["busy_before", "busy", "statements"]
    value: float


def find_obstacle(run: IdleRun) -> Obstacle | None:
    """Return what prevents any answer: CPUs that were never idle, or a server that was not idle; None without one."""
    phases = {phase.name: phase for phase in run.phases}
    baseline = phases.get("baseline")
    if baseline is not None and (baseline.c0_percent or 0.0) >= BUSY_PERCENT:
        return Obstacle("busy_before", baseline.c0_percent or 0.0)
    if (run.statements_hz or 0.0) > IDLE_STATEMENTS_HZ:
        return Obstacle("statements", run.statements_hz or 0.0)
    traced = [phase.conservation for phase in run.phases if phase.server_exits is not None]
    busy = [100.0 - counts.idle_percent for counts in traced if counts is not None and counts.idle_percent is not None]
    # Without a trace the windows show the load.
    busy = busy or [phase.c0_percent for phase in run.phases if phase.c0_percent is not None]
    least = min(busy, default=0.0)
    return Obstacle("busy", least) if least >= BUSY_PERCENT else None


def _find_busiest_percent(phases: list[Phase]) -> float | None:
    idle = [phase.conservation.idle_percent for phase in phases if phase.conservation is not None]
    most = max((100.0 - percent for percent in idle if percent is not None), default=0.0)
    return most if most >= HALF_BUSY_PERCENT else None


def _subtract(a: Estimate, b: Estimate) -> Estimate:
    apart = difference_of_rates(a.mean, _read_interval(a), b.mean, _read_interval(b))
    return Estimate(mean=b.mean - a.mean, low=apart.low, high=apart.high)


def _read_interval(rate: Estimate) -> Interval:
    return Interval(rate.mean if rate.low is None else rate.low, rate.mean if rate.high is None else rate.high, "saved")


def _find_busiest_thread(run: IdleRun, phase: Phase) -> tuple[str, float] | None:
    rates: dict[str, float] = {}
    for cause in phase.causes:
        if run.server is not None and cause.pid == run.server.pid and cause.thread:
            rates[cause.thread] = rates.get(cause.thread, 0.0) + cause.wakeups_hz
    return max(rates.items(), key=lambda item: item[1]) if rates else None
