# SPDX-License-Identifier: Apache-2.0
"""What does an idle database server cost? Baseline, server, silent clients, and the differences.

By default on a private MariaDB that is removed afterwards; --server, --socket or --defaults-file choose a
server of yours, which is never changed. As root, what woke the CPUs is named too.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from powerprof.cli.options import (
    CommandOptions,
    EnergyOptions,
    Saving,
    ServerOptions,
    Tables,
    duration,
    files_of,
    refuse_too_few,
    residency_source,
    server_binary,
    windows_repeat,
)
from powerprof.cli.output import check_saving, deliver, progress_printer
from powerprof.cli.parameters import flag, group, whole_number


@dataclass(frozen=True, kw_only=True)
class WindowOptions:
    """The connections and the windows."""

    HEADING: ClassVar[str] = "How many connections, how long and how often"

    # One process holds no more (database/connections.py).
    clients: int = whole_number(
        "--clients", "N", "Connections that are held open and silent.", default=16, low=0, high=60_000
    )
    duration: float = duration(8.0)
    repeat: int = windows_repeat(5, "Windows in each phase.")
    quick: bool = flag("--quick", "Within 45 s: 3 windows of 1.5 s in each phase, and wider intervals.")


@dataclass(frozen=True, kw_only=True)
class Options(CommandOptions):
    """The options of `idle`."""

    windows: WindowOptions = group(WindowOptions)
    residency_source: str = residency_source()
    energy: EnergyOptions = group(EnergyOptions)
    server: ServerOptions = group(ServerOptions)
    server_binary: Path | None = server_binary()
    no_causes: bool = flag("--no-causes", "Do not trace what wakes the CPUs.")
    tables: Tables = group(Tables)
    saving: Saving = group(Saving)


def command(options: Options) -> None:
    """Measure all phases, save and print."""
    files = files_of(options.tables)
    saving, windows = check_saving(options.saving, files), options.windows
    from powerprof.experiment.idle import QUICK_REPEAT, QUICK_WINDOW_S, IdlePlan, measure_idle
    from powerprof.experiment.options import MINIMUM_WINDOWS

    if windows.quick:
        options.refuse_without_effect("with --quick, which has its own windows", ("duration", "repeat"))
    refuse_too_few("--repeat", windows.repeat, MINIMUM_WINDOWS)
    plan = IdlePlan(
        clients=windows.clients,
        duration_s=QUICK_WINDOW_S if windows.quick else windows.duration,
        repeat=QUICK_REPEAT if windows.quick else windows.repeat,
        quick=windows.quick,
        trace=not options.no_causes,
        residency_source=options.residency_source,
        energy=options.energy.request,
        server_binary=options.server_binary,
        server_url=options.server.server,
        socket=options.server.socket,
        defaults_file=options.server.defaults_file,
    )
    deliver(
        measure_idle(plan, progress_printer(saving)),
        "idle",
        saving,
        files,
        next_step="Next, which function: sudo powerprof attribute --pid mysqld",
    )
