# SPDX-License-Identifier: Apache-2.0
"""What does one condition of a workload cost, or any command? As `compare` measures it, alone.

powerprof run -- COMMAND… runs a command of yours in each window, as often as fits, as you (under sudo too): its joules,
CPU time, wake-ups and time an execution. The run is saved with one value of each metric a window; `powerprof compare
RUN1 RUN2` compares two of them, also from other hosts, kernels or servers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from powerprof.cli.options import (
    DESTINATIONS,
    ENERGY,
    BenchChoice,
    CommandOptions,
    MeterOptions,
    OfferedLoadOptions,
    Saving,
    Tables,
    allow_failure,
    files_of,
    own_duration,
    refuse_too_few,
    seed,
    trace_after,
    windows_repeat,
)
from powerprof.cli.output import check_saving, deliver, progress_printer
from powerprof.cli.parameters import argument, group
from powerprof.experiment.options import COMMAND_WINDOW_S, MINIMUM_WINDOWS, WINDOW_S
from powerprof.system.errors import UsageError

# Options with an effect on a command of the caller.
_OF_COMMANDS = ("duration", "repeat", "allow_failure", *ENERGY, "residency_source", *DESTINATIONS)


@dataclass(frozen=True, kw_only=True)
class WindowOptions:
    """The length and number of the windows."""

    HEADING: ClassVar[str] = "How long and how often"

    duration: float | None = own_duration()
    repeat: int = windows_repeat(10, "Windows that count.")


@dataclass(frozen=True, kw_only=True)
class Options(CommandOptions):
    """The options of `run`."""

    name: str | None = argument("[CONDITION]", "Its name, workload:condition, or a workload of one.")
    windows: WindowOptions = group(WindowOptions)
    load: OfferedLoadOptions = group(OfferedLoadOptions)
    seed: int = seed()
    bench: BenchChoice = group(BenchChoice)
    attribute: float | None = trace_after()
    allow_failure: bool = allow_failure()
    meters: MeterOptions = group(MeterOptions)
    tables: Tables = group(Tables)
    saving: Saving = group(Saving)


def command(options: Options) -> None:
    """Measure a condition or a command, save and print."""
    files = files_of(options.tables)
    saving = check_saving(options.saving, files)
    name, words, windows, load, meters = (
        options.name,
        options.command_words,
        options.windows,
        options.load,
        options.meters,
    )
    if name is not None and words:
        raise UsageError(f"{name} and a command after -- were given", "run one of them")
    if name is None and not words:
        raise UsageError("run needs a condition, or -- COMMAND…", "powerprof run --help")
    refuse_too_few("--repeat", windows.repeat, MINIMUM_WINDOWS)
    from powerprof.experiment.options import ExperimentOptions

    if words:
        options.refuse_without_effect("on a command", but=_OF_COMMANDS)
        from powerprof.experiment.run import run_command

        plan = ExperimentOptions(
            pairs=windows.repeat,
            window_s=windows.duration or COMMAND_WINDOW_S,
            turn_s=0.0,
            energy=meters.energy.request,
            residency_source=meters.residency_source,
        )
        deliver(
            run_command(words, plan, progress_printer(saving), may_fail=options.allow_failure), "run", saving, files
        )
        return
    if options.allow_failure:
        raise UsageError("--allow-failure has no effect on a condition", "leave it out")
    from powerprof.experiment.run import run_condition
    from powerprof.workloads.catalogue import find_one
    from powerprof.workloads.reading import resolve

    case = resolve(*find_one(str(name), options.bench.folders))
    plan = ExperimentOptions(
        pairs=windows.repeat,
        window_s=windows.duration or WINDOW_S,
        seed=options.seed,
        design=load.chosen,
        rate_hz=load.rate,
        queries=load.queries,
        energy=meters.energy.request,
        residency_source=meters.residency_source,
        attribute_s=options.attribute,
    )
    with options.bench.open() as server_options:
        run = run_condition(case, server_options, plan, progress_printer(saving))
    deliver(run, "run", saving, files)
