# SPDX-License-Identifier: Apache-2.0
"""Serve this host's idle states, wake-ups and joules to Prometheus. It runs until it is stopped.

Listens on 127.0.0.1:9477 and answers /metrics; --listen takes another address or unix:PATH, and --web-config the file
of Prometheus' exporters with TLS and passwords. The rows that cost most have series of their own, all others are
`other`, so that the sum is the host's. Database servers are asked for their state by their own sockets (--no-ask: not).
--print-unit writes a systemd unit, --pprof-dir a profile of each minute.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from powerprof.cli.options import ASKING, EnergyOptions, Interval, Watched, refuse_without_effect
from powerprof.cli.output import progress, say
from powerprof.system.errors import Interrupted, UsageError

Listen = Annotated[str, typer.Option("--listen", metavar="ADDRESS", help="HOST:PORT, [V6]:PORT or unix:PATH.")]
WebConfig = Annotated[
    Path | None, typer.Option("--web-config", metavar="FILE", help="TLS and passwords, as Prometheus' exporters take.")
]
Insecure = Annotated[bool, typer.Option("--insecure", help="Listen beyond this host with neither TLS nor passwords.")]
PrintUnit = Annotated[bool, typer.Option("--print-unit", help="Print a sandboxed systemd unit, and do nothing else.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="No progress.")]


@dataclass(frozen=True, kw_only=True)
class Exported(Watched):
    """What is measured, and how often."""

    interval: Interval = 15.0


@dataclass(frozen=True, kw_only=True)
class ProfileFolderOptions:
    """Files for what takes profiles."""

    pprof_dir: Annotated[
        Path | None, typer.Option("--pprof-dir", metavar="DIR", help="Write a pprof file each minute there.")
    ] = None
    pprof_keep: Annotated[
        int, typer.Option("--pprof-keep", metavar="N", min=1, max=1_000_000, help="Of --pprof-dir: keep the newest N.")
    ] = 1440


@dataclass(frozen=True, kw_only=True)
class Series:
    """How many series there may be."""

    top: Annotated[int, typer.Option("--top", metavar="N", min=0, max=1000, help="Rows with their own series.")] = 20
    stale: Annotated[
        float, typer.Option("--stale", metavar="S", min=1, max=86_400, help="A row that does nothing so long ends.")
    ] = 300.0
    per_cpu: Annotated[
        str, typer.Option("--per-cpu", metavar="auto|yes|no", help="Idle time by CPU (auto: up to 8 CPUs).")
    ] = "auto"
    statements: Annotated[
        str | None,
        typer.Option(
            "--statements",
            metavar="ID|NAME|PATH",
            help="Also serve the 20 costliest statements of this server (process id or name, or its socket).",
        ),
    ] = None


def command(
    *,
    context: typer.Context,
    watched: Exported,
    energy: EnergyOptions,
    listen: Listen = "127.0.0.1:9477",
    web_config: WebConfig = None,
    insecure: Insecure = False,
    series: Series,
    profiles: ProfileFolderOptions,
    print_unit: PrintUnit = False,
    quiet: Quiet = False,
) -> None:
    """Check, open, measure and serve."""
    from powerprof.live import exporter

    if series.per_cpu not in ("auto", "yes", "no"):
        raise UsageError(f"--per-cpu {series.per_cpu} is no choice", "auto, yes or no")
    if watched.no_ask:
        refuse_without_effect(context, "with --no-ask", ASKING)
    if profiles.pprof_dir is None:
        refuse_without_effect(context, "without --pprof-dir", ("pprof_keep",))
    if print_unit:
        refuse_without_effect(context, "with --print-unit", but=("print_unit",))
        from powerprof.live.unit import this_installation, unit_text

        say(unit_text(this_installation()), end="")
        return
    plan = exporter.ExportPlan(
        words=tuple(watched.pid or ()),
        interval_s=watched.interval,
        ask_servers=not watched.no_ask,
        ask_every_s=watched.ask_every,
        accounts=tuple(watched.defaults_file or ()),
        energy=energy.request,
        listen=listen,
        web_config=web_config,
        insecure=insecure,
        top=series.top,
        stale_s=series.stale,
        per_cpu=None if series.per_cpu == "auto" else series.per_cpu == "yes",
        statements=series.statements,
    )
    try:
        with ExitStack() as stack:
            observers: list[exporter.Observer] = []
            if profiles.pprof_dir is not None:
                from powerprof.report.pprof import ProfileFolder

                folder = ProfileFolder(profiles.pprof_dir, lambda text: say(text, error=True), kept=profiles.pprof_keep)
                observers.append(stack.enter_context(folder).add)
            exporter.run(plan, lambda text: progress(text, quiet), observers)
    except Interrupted as error:
        # To be stopped is how it ends; a hang-up is no reason to call that a failure either.
        if error.exit_code not in (129, 130):
            raise
