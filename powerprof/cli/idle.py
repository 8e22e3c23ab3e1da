# SPDX-License-Identifier: Apache-2.0
"""Measure the cost of an idle database server: CPU wake-ups, idle states and energy.

It measures a baseline without a server, the idle server, and the server with silent clients. The differences have 95 %
intervals. By default it starts a private MariaDB and removes it afterwards. An idle server of yours is never changed,
and has no baseline. As root, it also reports the causes of the wake-ups.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import msgspec

from powerprof.cli.bench_options import PrivateServerOptions
from powerprof.cli.meter_options import EnergyOptions, residency_source
from powerprof.cli.options import CommandOptions
from powerprof.cli.output import check_saving, deliver
from powerprof.cli.outputs import TABLES, Outputs, Saving, output_files
from powerprof.cli.parameters import Mode, flag, group, whole_number
from powerprof.cli.targets import OptionalServerOptions
from powerprof.cli.terminal import progress_printer
from powerprof.cli.window_options import duration, windows_repeat
from powerprof.system.next_steps import command_line

if TYPE_CHECKING:
    from powerprof.experiment.idle import IdlePlan
    from powerprof.model.records import ServerInfo


class WindowOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The connections and the windows."""

    HEADING: ClassVar[str] = "Windows and connections"

    # One process holds no more (database/connections.py).
    clients: int = whole_number(
        "--clients", "N", "Number of silent client connections.", default=16, low=0, high=60_000
    )
    duration: float = duration(8.0)
    repeat: int = windows_repeat(5, "Windows per phase.")
    quick: bool = flag("--quick", "3 windows of 1.5 s per phase: faster, with wider intervals.")


class Options(CommandOptions, frozen=True, kw_only=True):
    """The options of `idle`."""

    MODES: ClassVar[tuple[Mode, ...]] = (Mode(words=("--quick",), refuses=("--duration", "--repeat")),)

    windows: WindowOptions = group(WindowOptions)
    residency_source: str = residency_source()
    energy: EnergyOptions = group(EnergyOptions)
    server: OptionalServerOptions = group(OptionalServerOptions)
    program: PrivateServerOptions = group(PrivateServerOptions)
    no_causes: bool = flag("--no-causes", "Do not trace the causes of wake-ups.")
    outputs: Outputs = output_files(*TABLES)
    saving: Saving = group(Saving)


def estimate_s(options: Options) -> float:
    """Return the approximate duration in s."""
    return _plan(options).seconds


def _plan(options: Options) -> IdlePlan:
    from powerprof.experiment.idle import QUICK_REPEAT, QUICK_WINDOW_S, IdlePlan

    windows, server, program = options.windows, options.server, options.program
    return IdlePlan(
        clients=windows.clients,
        duration_s=QUICK_WINDOW_S if windows.quick else windows.duration,
        repeat=QUICK_REPEAT if windows.quick else windows.repeat,
        quick=windows.quick,
        trace=not options.no_causes,
        residency_source=options.residency_source,
        energy=options.energy.request,
        server_binary=program.server_binary,
        server_build=program.load_build(),
        server_url=server.server,
        socket=server.socket,
        defaults_file=server.defaults_file,
    )


def command(options: Options) -> None:
    """Measure all phases, save and print."""
    saving = check_saving(options.saving, options.outputs)
    from powerprof.experiment.idle import measure_idle

    run = measure_idle(_plan(options), progress_printer(saving))
    deliver(run, "idle", saving, next_step=next_step(run.server))


def next_step(server: ServerInfo | None) -> str | None:
    """Return the command that finds the functions behind the wake-ups; None for a server that has ended."""
    if server is None or server.private or server.pid is None:
        return None
    return f"Find the functions: {command_line('attribute --pid {}', server.pid)}"
