# SPDX-License-Identifier: Apache-2.0
"""Measure the cost of one configuration of a workload, or of a command of yours.

It measures as `compare` does, without a second side. powerprof run -- COMMAND... runs the command as often as it fits
into each window, under your account even with sudo, and reports energy, CPU time, wake-ups and time per execution.
`powerprof compare RUN1 RUN2` compares two runs, even from different hosts, kernels or servers.
"""

from __future__ import annotations

from typing import ClassVar

import msgspec

from powerprof.cli.bench_options import BenchChoice
from powerprof.cli.meter_options import MeterOptions
from powerprof.cli.options import CommandOptions
from powerprof.cli.output import check_saving, deliver
from powerprof.cli.outputs import DESTINATIONS, TABLES, Outputs, Saving, output_files
from powerprof.cli.parameters import Mode, argument, flag, group
from powerprof.cli.terminal import progress_printer
from powerprof.cli.window_options import (
    OfferedLoadOptions,
    allow_failure,
    own_duration,
    seed,
    trace_after,
    windows_repeat,
)
from powerprof.experiment.options import (
    COMMAND_WINDOW_S,
    QUICK_PAIRS,
    QUICK_WINDOW_S,
    TURN_S,
    WINDOW_S,
    ExperimentOptions,
)
from powerprof.system.errors import MissingArgumentError, UsageError
from powerprof.system.next_steps import command_line


class WindowOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The length and number of the windows."""

    HEADING: ClassVar[str] = "Windows"

    duration: float | None = own_duration()
    repeat: int = windows_repeat(10, "Number of windows (a warm-up window is added).")
    quick: bool = flag("--quick", "4 windows of 1.2 s: faster, with wider intervals.")


class Options(CommandOptions, frozen=True, kw_only=True):
    """The options of `run`."""

    MODES: ClassVar[tuple[Mode, ...]] = (
        Mode(words=("--quick",), refuses=("--duration", "--repeat")),
        Mode(
            words=("--",),
            circumstance="on a command",
            allows=(
                "--duration",
                "--repeat",
                "--quick",
                "--allow-failure",
                "--meter",
                "--residency-source",
                *DESTINATIONS,
            ),
        ),
    )

    name: str | None = argument(
        "[CONDITION]", "Condition to run: NAME or WORKLOAD:NAME (or a workload with only one condition)."
    )
    windows: WindowOptions = group(WindowOptions)
    load: OfferedLoadOptions = group(OfferedLoadOptions)
    seed: int = seed()
    bench: BenchChoice = group(BenchChoice)
    attribute: float | None = trace_after()
    allow_failure: bool = allow_failure()
    meters: MeterOptions = group(MeterOptions)
    outputs: Outputs = output_files(*TABLES)
    saving: Saving = group(Saving)

    def check(self) -> None:
        """Raise UsageError unless exactly a condition or a command is given."""
        if self.name is not None and self.command_words:
            raise UsageError(f"{self.name} and a command after -- exclude each other", "run one of them")
        if self.name is None and not self.command_words:
            raise MissingArgumentError("run needs a condition, or -- COMMAND…", "index", command_line("run --help"))


def estimate_s(options: Options) -> float:
    """Return the approximate duration in s."""
    return _plan(options).seconds(1)


def _plan(options: Options) -> ExperimentOptions:
    load, meters, windows, is_command = options.load, options.meters, options.windows, bool(options.command_words)
    default_s = COMMAND_WINDOW_S if is_command else WINDOW_S
    return ExperimentOptions(
        pairs=QUICK_PAIRS if windows.quick else windows.repeat,
        window_s=QUICK_WINDOW_S if windows.quick else windows.duration or default_s,
        turn_s=0.0 if is_command else TURN_S,
        seed=options.seed,
        design=load.chosen,
        rate_hz=load.rate,
        queries=load.queries,
        energy=meters.energy.request,
        residency_source=meters.residency_source,
        attribute_s=options.attribute,
    )


def command(options: Options) -> None:
    """Measure a condition or a command, save and print."""
    saving = check_saving(options.saving, options.outputs)
    name, words = options.name, options.command_words
    if words:
        from powerprof.experiment.run import run_command

        run = run_command(words, _plan(options), progress_printer(saving), may_fail=options.allow_failure)
        deliver(run, "run", saving)
        return
    from powerprof.experiment.run import run_condition
    from powerprof.workloads.catalogue import find_one
    from powerprof.workloads.reading import resolve

    case = resolve(*find_one(str(name), options.bench.folders))
    with options.bench.open() as server_options:
        run = run_condition(case, server_options, _plan(options), progress_printer(saving))
    deliver(run, "run", saving)
