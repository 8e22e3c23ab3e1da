# SPDX-License-Identifier: Apache-2.0
"""What does one condition of a workload cost, or any command? As `compare` measures it, alone.

powerprof run -- COMMAND… runs a command of yours in each window, as often as fits, as you (under sudo too): its joules,
CPU time, wake-ups and time an execution. The run is saved with one value of each metric a window; `powerprof compare
RUN1 RUN2` compares two of them, also from other hosts, kernels or servers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import typer

from powerprof.cli.bench import BenchChoice
from powerprof.cli.options import (
    ENERGY,
    SAVED,
    AllowFailure,
    Attribute,
    MeterOptions,
    OfferedLoadOptions,
    OwnDuration,
    Saving,
    Seed,
    Tables,
    files_of,
    refuse_too_few,
    refuse_without_effect,
    typed_command,
)
from powerprof.cli.output import check, deliver, say_to
from powerprof.experiment.options import COMMAND_WINDOW_S, MINIMUM_WINDOWS, WINDOW_S
from powerprof.system.errors import UsageError

Name = Annotated[
    str | None,
    typer.Argument(
        metavar="[CONDITION]", help="Its name, workload:condition, or a workload of one.", show_default=False
    ),
]

# What a command of the caller takes.
_OF_COMMANDS = ("duration", "repeat", "allow_failure", *ENERGY, "residency_source", *SAVED)


@dataclass(frozen=True, kw_only=True)
class RunWindows:
    """How long and how often."""

    duration: OwnDuration = None
    repeat: Annotated[int, typer.Option("--repeat", metavar="N", min=1, max=1000, help="Windows that count.")] = 10


def command(
    name: Name = None,
    *,
    context: typer.Context,
    windows: RunWindows,
    load: OfferedLoadOptions,
    seed: Seed = 1,
    bench: BenchChoice,
    attribute: Attribute = None,
    allow_failure: AllowFailure = False,
    meters: MeterOptions,
    tables: Tables,
    saving: Saving,
) -> None:
    """Measure, save, print."""
    files = files_of(tables)
    saving = check(saving, files)
    typed = typed_command(context)
    if name is not None and typed:
        raise UsageError(f"{name} and a command after -- were given", "run one of them")
    if name is None and not typed:
        raise UsageError("run needs a condition, or -- COMMAND…", "powerprof run --help")
    refuse_too_few("--repeat", windows.repeat, MINIMUM_WINDOWS)
    from powerprof.experiment.options import ExperimentOptions

    if typed:
        refuse_without_effect(context, "on a command", but=_OF_COMMANDS)
        from powerprof.experiment.run import run_command

        alone = ExperimentOptions(
            pairs=windows.repeat,
            window_s=windows.duration or COMMAND_WINDOW_S,
            turn_s=0.0,
            energy=meters.energy.request,
            residency_source=meters.residency_source,
        )
        deliver(run_command(typed, alone, say_to(saving), may_fail=allow_failure), "run", saving, files)
        return
    if allow_failure:
        raise UsageError("--allow-failure has no effect on a condition", "leave it out")
    from powerprof.experiment.run import run_condition
    from powerprof.workloads.catalogue import find_one
    from powerprof.workloads.reading import resolve

    case = resolve(*find_one(str(name), bench.folders))
    options = ExperimentOptions(
        pairs=windows.repeat,
        window_s=windows.duration or WINDOW_S,
        seed=seed,
        design=load.chosen,
        rate_hz=load.rate,
        queries=load.queries,
        energy=meters.energy.request,
        residency_source=meters.residency_source,
        attribute_s=attribute,
    )
    with bench.open() as where:
        run = run_condition(case, where, options, say_to(saving))
    deliver(run, "run", saving, files)
