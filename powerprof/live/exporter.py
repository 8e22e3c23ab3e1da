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
from powerprof.live.metrics import Ranking, SharedTotals, StatementTotals, Totals, render_metrics
from powerprof.live.monitor import HostMonitor, MonitorPlan
from powerprof.live.webconfig import WebConfig, load_web_config
from powerprof.measure.cpuidle import online_cpus, read_driver
from powerprof.model.text import Say
from powerprof.system import paths
from powerprof.system.caller import TRACING
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


def export_metrics(plan: ExportPlan, say: Say, observers: Sequence[Observer] = ()) -> None:
    """Measure and serve until an interrupt, which is raised; `observers` see each interval too.

    Raises UsageError, CapabilityError, PowerprofError.
    """
    if not paths.is_this_host():
        raise PowerprofError("cannot trace a recorded host", "unset POWERPROF_SYSFS and POWERPROF_PROCFS")
    address = serving.parse_address(plan.listen)
    config = load_web_config(plan.web_config) if plan.web_config is not None else WebConfig()
    serving.check_exposure(address, config, plan.insecure)
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
        server = serving.MetricsServer(address, lambda accept: render_metrics(shared, accept), config)
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


# Beyond what measuring takes (privileges.TRACING, less what acts as the caller), to be given up once all is open:
# tracefs and the table of BPF programs' run time ask for it on kernels where CAP_PERFMON is not enough.
_NOT_ALONE = ("setuid", "setgid")


def list_capabilities() -> list[str]:
    """What the service may do at most, by name."""
    return sorted(f"CAP_{name.upper()}" for name in TRACING if name not in _NOT_ALONE)


def format_unit(program: Path) -> str:
    """The unit. `systemd-analyze security` scores it; docs/how-to/prometheus.md has the figure and why each line."""
    return _UNIT.format(program=program, capabilities=" ".join(list_capabilities()))


_UNIT = """\
[Unit]
Description=powerprof: idle states, wake-ups and joules for Prometheus
Documentation=man:powerprof(1)
After=network.target

[Service]
Type=exec
ExecStart={program} export --quiet $POWERPROF_EXPORT_OPTIONS
EnvironmentFile=-/etc/default/powerprof
Restart=on-failure
RestartSec=10
# It polls nothing and is in nobody's way.
Nice=5
CacheDirectory=powerprof
RuntimeDirectory=powerprof
StateDirectory=powerprof
Environment=HOME=/var/lib/powerprof XDG_STATE_HOME=/var/lib XDG_CONFIG_HOME=/etc

# Measuring needs these, and nothing else of what root may do.
CapabilityBoundingSet={capabilities}
AmbientCapabilities=
NoNewPrivileges=yes
ProtectSystem=strict
ProtectHome=read-only
PrivateTmp=yes
PrivateDevices=yes
ProtectClock=yes
ProtectHostname=yes
ProtectKernelModules=yes
ProtectKernelTunables=yes
ProtectControlGroups=yes
RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6
IPAddressDeny=any
IPAddressAllow=localhost
RestrictNamespaces=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
LockPersonality=yes
SystemCallArchitectures=native
SystemCallFilter=@system-service bpf perf_event_open kcmp open_by_handle_at
SystemCallErrorNumber=EPERM
UMask=0027
# 60 to 70 MB, and for a moment as much again where the tables of a large program are read.
MemoryMax=512M
TasksMax=64

[Install]
WantedBy=multi-user.target
"""
