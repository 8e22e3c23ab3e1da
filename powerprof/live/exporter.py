# SPDX-License-Identifier: Apache-2.0
"""`powerprof export`: a monitor whose intervals are counted, and a server that shows the counters."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from powerprof import __version__
from powerprof.energy.domains import DEFAULT_REQUEST, EnergyRequest
from powerprof.live import serving
from powerprof.live.intervals import LiveInterval, RowKey
from powerprof.live.metrics import SharedTotals, render
from powerprof.live.monitor import HostMonitor, MonitorPlan
from powerprof.live.totals import Ranking, StatementTotals, Totals
from powerprof.live.webconfig import WebConfig, load
from powerprof.measure.cpuidle import online_cpus, read_driver
from powerprof.model.text import Say
from powerprof.system import paths
from powerprof.system.errors import PowerprofError
from powerprof.system.processes import resolve

# Idle time by CPU and state beyond so many CPUs is more series than all the rest of a host.
_CPUS_APART = 8
# An interval that has not ended after so many of them, and what naming and asking servers may take, has no figures.
_LATE_INTERVALS, _LATE_S = 3, 30.0


@dataclass(frozen=True, kw_only=True)
class ExportPlan:
    """What the command line asks for; see `powerprof export --help`. `per_cpu` None: by the number of CPUs."""

    words: tuple[str, ...] = ()
    interval_s: float = 15.0
    ask_servers: bool = True
    ask_every_s: float = 60.0
    accounts: tuple[Path, ...] = ()
    energy: EnergyRequest = DEFAULT_REQUEST
    listen: str = serving.DEFAULT
    web_config: Path | None = None
    insecure: bool = False
    top: int = 20
    stale_s: float = 300.0
    per_cpu: bool | None = None
    statements: str | None = None


Observer = Callable[[LiveInterval], None]


def run(plan: ExportPlan, say: Say, observers: Sequence[Observer] = ()) -> None:
    """Measure and serve until an interrupt, which is raised; `observers` see each interval too.

    Raises UsageError, CapabilityError, PowerprofError.
    """
    if not paths.is_this_host():
        raise PowerprofError("cannot trace a recorded host", "unset POWERPROF_SYSFS and POWERPROF_PROCFS")
    address = serving.parse_address(plan.listen)
    config = load(plan.web_config) if plan.web_config is not None else WebConfig()
    serving.check_open(address, config, plan.insecure)
    per_cpu = len(online_cpus()) <= _CPUS_APART if plan.per_cpu is None else plan.per_cpu
    rows: Ranking[RowKey] = Ranking(plan.top, plan.stale_s)
    served = None if plan.statements is None else StatementTotals.of(stale_s=plan.stale_s)
    totals = Totals(rows, Ranking(plan.top, plan.stale_s), served, per_cpu=per_cpu)
    shared = SharedTotals(totals, _built(), deadline_s=_LATE_INTERVALS * plan.interval_s + _LATE_S)
    target = resolve(plan.words, cgroup=None, system=not plan.words)
    monitor = HostMonitor(
        MonitorPlan(
            target=target,
            interval_s=plan.interval_s,
            energy=plan.energy,
            ask_servers=plan.ask_servers,
            ask_every_s=plan.ask_every_s,
            accounts=plan.accounts,
            statements=plan.statements,
        ),
        lambda text: None,
    )
    with ExitStack() as stack:
        # Before the tracer is loaded: an address that is taken fails at once. It answers after the monitor has given
        # up root's capabilities, because a thread keeps those that it began with.
        server = serving.MetricsServer(address, lambda accept: render(shared, accept), config)
        stack.callback(server.close)
        stack.enter_context(monitor)
        stack.enter_context(server)
        say(f"serving metrics on {_shown(address, server.port)}")
        while True:
            _tell(monitor, (shared.add, *observers))


def _tell(monitor: HostMonitor, observers: Sequence[Observer]) -> None:
    """One interval, which nobody holds while the next is made: it has a row for each thread that woke a CPU."""
    interval = monitor.next()
    for observer in observers:
        observer(interval)


def _shown(address: tuple[str, int] | Path, port: int | None) -> str:
    if isinstance(address, Path):
        return f"unix:{address}"
    host = f"[{address[0]}]" if ":" in address[0] else address[0]
    return f"{host}:{port}"


def _built() -> dict[str, str]:
    return {"version": __version__, "kernel": os.uname().release, "driver": read_driver() or "none"}
