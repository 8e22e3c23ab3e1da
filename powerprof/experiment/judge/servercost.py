# SPDX-License-Identifier: Apache-2.0
"""What an idle server does by itself: the idle periods that its own threads ended, as the trace counted them. Pure.

Nothing else on the host is in this count, so that a busy neighbour or a drift does not hide it as they hide the
difference of whole windows.
"""

from __future__ import annotations

from dataclasses import dataclass

from powerprof.idle_records import IdleRun
from powerprof.records import Estimate, Phase
from powerprof.statistics import Interval, difference_of_rates

# Where the CPUs are never idle, nobody can end an idle period: a count says nothing of the server then.
BUSY_PERCENT = 90.0
# With CPUs as busy as this, part of what the server would wake does not sleep.
HALF_BUSY_PERCENT = 25.0


@dataclass(frozen=True)
class ServerCost:
    """Idle exits a second: of the server alone, and what the silent connections add to them (None: unknown).

    `thread`: the one with most of them, and its own rate. `busy_percent`: of the CPUs while they were counted, where
    that hides some of them; then there is no difference, since it would be that of what was hidden.
    """

    alone: Estimate | None
    connected: Estimate | None
    added: Estimate | None
    thread: tuple[str, float] | None
    busy_percent: float | None


def server_cost(run: IdleRun) -> ServerCost | None:
    """None where nothing was traced, or the server's process is not on this host."""
    traced = {phase.name: phase for phase in run.phases if phase.server_exits is not None}
    alone, connected = (traced[name].server_exits if name in traced else None for name in ("server", "clients"))
    if alone is None and connected is None:
        return None
    busy = _busy(list(traced.values()))
    return ServerCost(
        alone=None if alone is None else alone.wakeups_hz,
        connected=None if connected is None else connected.wakeups_hz,
        added=None
        if alone is None or connected is None or busy is not None
        else _difference(alone.wakeups_hz, connected.wakeups_hz),
        thread=_busiest(run, traced["clients" if alone is None else "server"]),
        busy_percent=busy,
    )


def busy_before(run: IdleRun) -> float | None:
    """How busy the CPUs were before the server, in percent, where that leaves no answer; else None."""
    baseline = next((phase for phase in run.phases if phase.name == "baseline"), None)
    busy = None if baseline is None else baseline.c0_percent
    return None if busy is None or busy < BUSY_PERCENT else busy


def busy_while_counted(run: IdleRun) -> float | None:
    """The same of the CPUs while the server's idle exits were counted, of the least busy phase."""
    traced = [phase.conservation for phase in run.phases if phase.server_exits is not None]
    idle = [counts.idle_percent for counts in traced if counts is not None and counts.idle_percent is not None]
    busy = 100.0 - max(idle, default=100.0)
    return busy if busy >= BUSY_PERCENT else None


def _busy(phases: list[Phase]) -> float | None:
    idle = [phase.conservation.idle_percent for phase in phases if phase.conservation is not None]
    most = max((100.0 - percent for percent in idle if percent is not None), default=0.0)
    return most if most >= HALF_BUSY_PERCENT else None


def _difference(a: Estimate, b: Estimate) -> Estimate:
    apart = difference_of_rates(a.mean, _interval(a), b.mean, _interval(b))
    return Estimate(mean=b.mean - a.mean, low=apart.low, high=apart.high)


def _interval(rate: Estimate) -> Interval:
    return Interval(rate.mean if rate.low is None else rate.low, rate.mean if rate.high is None else rate.high, "saved")


def _busiest(run: IdleRun, phase: Phase) -> tuple[str, float] | None:
    rates: dict[str, float] = {}
    for cause in phase.causes:
        if run.server is not None and cause.pid == run.server.pid and cause.thread:
            rates[cause.thread] = rates.get(cause.thread, 0.0) + cause.wakeups_hz
    return max(rates.items(), key=lambda item: item[1]) if rates else None
