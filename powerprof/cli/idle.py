# SPDX-License-Identifier: Apache-2.0
"""What does an idle database server cost? Baseline, server, silent clients, and the differences.

By default on a private MariaDB that is removed afterwards; --server, --socket or --defaults-file choose a
server of yours, which is never changed. As root, what woke the CPUs is named too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import typer

from powerprof.cli.options import (
    Duration,
    EnergyOptions,
    Given,
    ResidencySource,
    Saving,
    ServerBinary,
    Tables,
    files_of,
    refuse_too_few,
    refuse_without_effect,
)
from powerprof.cli.output import check, deliver, say_to

NoCauses = Annotated[bool, typer.Option("--no-causes", help="Do not trace what wakes the CPUs.")]


@dataclass(frozen=True, kw_only=True)
class IdleWindows:
    """How many connections, how long and how often."""

    clients: Annotated[
        int,
        # One process holds no more (database/isolation/limits.py).
        typer.Option("--clients", metavar="N", min=0, max=60_000, help="Connections that are held open and silent."),
    ] = 16
    duration: Duration = 8.0
    repeat: Annotated[int, typer.Option("--repeat", metavar="N", min=1, max=1000, help="Windows in each phase.")] = 5
    quick: Annotated[
        bool, typer.Option("--quick", help="Within 45 s: 3 windows of 1.5 s in each phase, and wider intervals.")
    ] = False


def command(
    *,
    context: typer.Context,
    windows: IdleWindows,
    residency_source: ResidencySource = "cpuidle",
    energy: EnergyOptions,
    given: Given,
    server_binary: ServerBinary = None,
    no_causes: NoCauses = False,
    tables: Tables,
    saving: Saving,
) -> None:
    """Measure, save, print."""
    files = files_of(tables)
    saving = check(saving, files)
    from powerprof.experiment.idle import QUICK_REPEAT, QUICK_WINDOW_S, IdlePlan, measure_idle
    from powerprof.experiment.options import MINIMUM_WINDOWS

    if windows.quick:
        refuse_without_effect(context, "with --quick, which has its own windows", ("duration", "repeat"))
    refuse_too_few("--repeat", windows.repeat, MINIMUM_WINDOWS)
    plan = IdlePlan(
        clients=windows.clients,
        duration_s=QUICK_WINDOW_S if windows.quick else windows.duration,
        repeat=QUICK_REPEAT if windows.quick else windows.repeat,
        quick=windows.quick,
        trace=not no_causes,
        residency_source=residency_source,
        energy=energy.request,
        server_binary=server_binary,
        server_url=given.server,
        socket=given.socket,
        defaults_file=given.defaults_file,
    )
    deliver(
        measure_idle(plan, say_to(saving)),
        "idle",
        saving,
        files,
        next_step="Next, which function: sudo powerprof attribute --pid mysqld",
    )
