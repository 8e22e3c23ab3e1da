# SPDX-License-Identifier: Apache-2.0
"""Export idle states, wake-ups and energy of this host to Prometheus.

It runs until it is stopped and serves /metrics on 127.0.0.1:9477, and /debug/pprof/wakeups and /debug/pprof/c0 for
stores of profiles. The most expensive rows have their own series; the
rest is summed as `other`, so the series add up to the host. powerprof reads the state of the database servers through
their own sockets, unless --no-ask is given.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import ClassVar

import msgspec

from powerprof.cli.meter_options import EnergyOptions
from powerprof.cli.options import CommandOptions, cost_bound, max_cost
from powerprof.cli.parameters import Mode, flag, group, option, program_value, whole_number
from powerprof.cli.targets import MonitorOptions, interval
from powerprof.cli.terminal import print_progress, print_text
from powerprof.system.errors import Interrupted, UnknownNameError


class ExporterOptions(MonitorOptions, frozen=True, kw_only=True):
    """The processes to watch, and the interval."""

    interval: float = interval(15.0)


class SeriesOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The number of time series."""

    HEADING: ClassVar[str] = "Time series"

    top: int = whole_number("--top", "N", "Number of rows with their own series.", default=20, low=0, high=1000)
    per_cpu: str = option("--per-cpu", "auto|yes|no", "Export idle time per CPU (auto: up to 8 CPUs).", default="auto")
    statements: list[str] | None = option(
        "--statements",
        "ID|NAME|PATH|all",
        "Also export the most expensive statements of this server (process id, name or socket) or of all servers: 20 "
        "in total; repeatable.",
        is_repeatable=True,
    )


def _unit(text: str) -> str:
    if text != "unit":
        raise ValueError("not 'unit'")
    return text


class Options(CommandOptions, frozen=True, kw_only=True):
    """The options of `export`."""

    MODES: ClassVar[tuple[Mode, ...]] = (Mode(words=("--print",), allows=()),)

    watched: ExporterOptions = group(ExporterOptions)
    max_cost: float | None = max_cost("this host")
    energy: EnergyOptions = group(EnergyOptions)
    listen: str = option("--listen", "ADDRESS", "Address: HOST:PORT, [V6]:PORT or unix:PATH.", default="127.0.0.1:9477")
    web_config: Path | None = option(
        "--web-config", "FILE", "TLS and password file of Prometheus exporters.", convert=Path
    )
    insecure: bool = flag("--insecure", "Allow a network address without TLS and passwords.")
    series: SeriesOptions = group(SeriesOptions)
    printed: str | None = option("--print", "unit", "Print a sandboxed systemd unit and exit.", convert=_unit)
    quiet: bool = program_value("quiet", False)


def command(options: Options) -> None:
    """Measure and serve until a signal arrives."""
    watched, series = options.watched, options.series
    from powerprof.live import exporter, systemd_unit
    from powerprof.report.recent_profiles import RecentProfiles

    if series.per_cpu not in ("auto", "yes", "no"):
        raise UnknownNameError(f"--per-cpu {series.per_cpu} is not a choice", series.per_cpu, ("auto", "yes", "no"))
    if options.printed is not None:
        print_text(systemd_unit.format_unit(Path(sys.argv[0]).resolve()), end="")
        return
    plan = exporter.ExportPlan(
        words=tuple(watched.pid or ()),
        only=watched.only,
        interval_s=watched.interval,
        ask_servers=not watched.no_ask,
        ask_every_s=watched.ask_every,
        accounts=tuple(watched.defaults_file or ()),
        energy=options.energy.request,
        listen=options.listen,
        web_config=options.web_config,
        insecure=options.insecure,
        top=series.top,
        per_cpu=None if series.per_cpu == "auto" else series.per_cpu == "yes",
        statements=tuple(series.statements or ()),
        max_cost=cost_bound(options.max_cost),
    )
    try:
        exporter.export_metrics(plan, lambda text: print_progress(text, options.quiet), RecentProfiles())
    except Interrupted as error:
        # A signal is the usual end of an exporter, and so is a hang-up.
        if error.exit_code not in (129, 130):
            raise
