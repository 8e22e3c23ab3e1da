# SPDX-License-Identifier: Apache-2.0
"""`powerprof export`: measure all the time, and serve the counters to Prometheus."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

import msgspec

from powerprof import __version__
from powerprof.energy.request import DEFAULT_REQUEST, EnergyRequest
from powerprof.live.intervals import LiveInterval, RowKey
from powerprof.live.metrics import Ranking, SharedTotals, StatementTotals, Totals, render_metrics
from powerprof.live.metrics_server import DEFAULT_ADDRESS, MetricsServer, check_exposure, parse_address
from powerprof.live.monitor import HostMonitor, MonitorPlan
from powerprof.live.pages import Profiles
from powerprof.live.webconfig import WebConfig, load_web_config
from powerprof.measure.cpuidle import online_cpus, read_driver
from powerprof.model.text import Say
from powerprof.system import paths
from powerprof.system.errors import PowerprofError
from powerprof.system.targets import resolve

# On hosts with more CPUs, idle time by CPU would be most of the series.
_MAX_SEPARATE_CPUS = 8
# The figures expire after this many intervals, plus the time for naming and querying.
_LATE_INTERVALS, _LATE_S = 3, 30.0


class ExportPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The choices of the command line, as in `powerprof export --help`. `per_cpu` None depends on the CPU count."""

    words: tuple[str, ...] = ()
    only: bool = False
    interval_s: float = 15.0
    ask_servers: bool = True
    ask_every_s: float = 60.0
    accounts: tuple[Path, ...] = ()
    energy: EnergyRequest = DEFAULT_REQUEST
    listen: str = DEFAULT_ADDRESS
    web_config: Path | None = None
    insecure: bool = False
    top: int = 20
    stale_s: float = 300.0
    per_cpu: bool | None = None
    statements: tuple[str, ...] = ()
    max_cost: float | None = None


def export_metrics(plan: ExportPlan, say: Say, profiles: Profiles | None = None) -> None:
    """Measure and serve until a signal.

    Raises:
        Interrupted: A signal arrived.
        UsageError: The address or its protection is wrong.
        CapabilityError: This host cannot be traced.
        PowerprofError: The address is in use, or the target has ended.
    """
    if not paths.is_this_host():
        raise PowerprofError("cannot trace a recorded host", "unset POWERPROF_SYSFS and POWERPROF_PROCFS")
    address = parse_address(plan.listen)
    config = load_web_config(plan.web_config) if plan.web_config is not None else WebConfig()
    check_exposure(address, config, plan.insecure)
    per_cpu = len(online_cpus()) <= _MAX_SEPARATE_CPUS if plan.per_cpu is None else plan.per_cpu
    rows: Ranking[RowKey] = Ranking(plan.top, plan.stale_s)
    served = StatementTotals(stale_s=plan.stale_s)
    totals = Totals(rows, Ranking(plan.top, plan.stale_s), served, per_cpu=per_cpu)
    build = {"version": __version__, "kernel": os.uname().release, "driver": read_driver() or "none"}
    shared = SharedTotals(totals, build, deadline_s=_LATE_INTERVALS * plan.interval_s + _LATE_S)
    target = resolve(plan.words, system=not plan.words, only=plan.only)
    monitor = HostMonitor(
        MonitorPlan(
            target=target,
            interval_s=plan.interval_s,
            energy=plan.energy,
            ask_servers=plan.ask_servers,
            ask_every_s=plan.ask_every_s,
            accounts=plan.accounts,
            statements=plan.statements,
            max_cost=plan.max_cost,
            bounds_by_host=True,
        ),
        lambda text: None,
    )
    with ExitStack() as stack:
        # Listen before the tracer is loaded, so that an address in use fails at once. Answer only after the monitor has
        # dropped root's capabilities, because a thread keeps those that it started with.
        server = MetricsServer(
            address, lambda accept: render_metrics(shared, accept), config, profiles, shared.has_stopped
        )
        stack.callback(server.close)
        stack.enter_context(monitor)
        shared.begun_s = time.monotonic()
        stack.enter_context(server)
        say(f"serving metrics on {_format_address(address, server.port)}")
        while True:
            _pass_interval(monitor, [shared.add, *([profiles.add] if profiles is not None else [])])


def _pass_interval(monitor: HostMonitor, observers: Sequence[Callable[[LiveInterval], None]]) -> None:
    """Pass one interval to all observers.

    A separate function frees the interval before the next one: it has a row for each thread that woke a CPU.
    """
    interval = monitor.next()
    for observer in observers:
        observer(interval)


def _format_address(address: tuple[str, int] | Path, port: int | None) -> str:
    if isinstance(address, Path):
        return f"unix:{address}"
    host = f"[{address[0]}]" if ":" in address[0] else address[0]
    return f"{host}:{port}"
