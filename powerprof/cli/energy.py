# SPDX-License-Identifier: Apache-2.0
"""Measure the energy use of this host, and show which meter was read.

It reads every meter that --meter names (default: the best working meter). Without a meter, energy is estimated
from the idle states. --from reads recordings instead: a turbostat log, the CSV log of a wall meter, or both.

--calibrate creates a power model for guests on the same kind of CPU. It needs a meter and an idle host. It measures
idle and several loads, and fits watts per idle state and joules per wake-up. The model is saved with your other models,
and later estimates select it by CPU family and model.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec
from msgspec.structs import replace

from powerprof.cli.meter_options import EnergyOptions
from powerprof.cli.options import CommandOptions
from powerprof.cli.output import write_files
from powerprof.cli.outputs import TABLES, OutputFile, Outputs, check_targets, json_file, json_output, output_files
from powerprof.cli.parameters import (
    EXPERT_HEADING,
    Mode,
    ParserError,
    argument,
    flag,
    group,
    option,
    program_value,
    time_span,
    whole_number,
)
from powerprof.cli.terminal import print_progress, print_report, print_text, report_lines
from powerprof.cli.window_options import duration, seed
from powerprof.system.errors import Interrupted, PowerprofError, UsageError

if TYPE_CHECKING:
    from powerprof.energy.total import EnergyResult


_EXPERT: dict[str, Any] = {"heading": EXPERT_HEADING, "needs": ("--calibrate",)}


class CalibrationOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of --calibrate."""

    HEADING: ClassVar[str] = "Calibration"

    calibrate: bool = flag("--calibrate", "Create a power model of this CPU from metered load steps.")
    step: float = time_span("--step", "Length of a load step.", default=5.0, low=0.2, high=3600, **_EXPERT)
    repeats: int = whole_number("--repeats", "N", "Measurements per load level.", default=2, low=1, high=100, **_EXPERT)
    output: Path | None = option("--output", "FILE", "File of the model.", convert=Path, needs=("--calibrate",))
    seed: int = seed("Random seed of the order of steps.", needs=("--calibrate",))


class Options(CommandOptions, frozen=True, kw_only=True):
    """The options of `energy`."""

    MODES: ClassVar[tuple[Mode, ...]] = (
        Mode(words=("--calibrate",), refuses=("--from", "--duration", "-o", "--json")),
        Mode(words=("--from",), refuses=("--duration", "--meter")),
    )

    recordings: list[Path] | None = option(
        "--from", "FILE…", "Read recordings instead of meters (CSV log: FILE#COLUMN).", convert=Path, is_repeatable=True
    )
    more: list[Path] | None = argument("[FILE…]", "More recordings for --from.", convert=Path, is_repeatable=True)
    duration: float = duration(5.0)
    energy: EnergyOptions = group(EnergyOptions)
    calibration: CalibrationOptions = group(CalibrationOptions)
    outputs: Outputs = output_files(*TABLES)
    json: str | None = json_file()
    quiet: bool = program_value("quiet", False)

    def check(self) -> None:
        """Raise UsageError for recordings without --from."""
        if self.more and not self.recordings:
            raise ParserError(f"{self.more[0]} needs --from FILE", "argument", [*map(str, self.more)], "energy")


def command(options: Options) -> None:
    """Measure, read recordings or calibrate, and print the result."""
    if options.calibration.calibrate:
        _calibrate(options.calibration, options.energy, options.quiet)
        return
    recordings, more = options.recordings, options.more
    quiet, files = options.quiet, [*json_output(options.json), *options.outputs]
    check_targets(files)
    if recordings:
        from powerprof.energy.replay import replay

        _show(replay([*recordings, *(more or [])]), files, quiet)
        return
    from powerprof.energy.energy import EnergyInterrupted, measure
    from powerprof.host.describe import host_record
    from powerprof.measure.progress import announce

    announce(lambda text: print_progress(text, quiet), "measuring", options.duration)
    try:
        result = measure(options.energy.request, options.duration)
    except EnergyInterrupted as error:
        _show(replace(error.result, host=host_record()), files, quiet)
        raise Interrupted("interrupted", "the figures cover the time until the interruption") from None
    _show(replace(result, host=host_record()), files, quiet)


def _show(result: EnergyResult, files: Outputs, quiet: bool) -> None:
    write_files(result, files)
    if not quiet and not any(file.target == "-" for file in files):
        print_report(report_lines(result))


def _calibrate(options: CalibrationOptions, energy: EnergyOptions, quiet: bool) -> None:
    """Calibrate a model, save it and print it. The model is printed also if it cannot be saved."""
    from powerprof.energy import calibrate
    from powerprof.energy.models_file import encode_model, this_cpu
    from powerprof.measure.clock import format_now
    from powerprof.report.energy import calibration_lines

    cpu = this_cpu()
    name = options.output.stem if options.output is not None else calibrate.make_default_name(cpu)
    path = calibrate.choose_target(name, options.output)
    check_targets([OutputFile("model", str(path), f"--output {path}")])
    request = energy.request
    if request.source == "model":
        raise UsageError("--calibrate needs a meter, and --meter names the model", "such as --meter rapl")
    fit, scope = calibrate.calibrate(
        request.source,
        meter_log=request.meter_log,
        step_s=options.step,
        repeats=options.repeats,
        seed=options.seed,
        progress=lambda text: print_progress(text, quiet),
    )
    model = calibrate.make_model(fit, name, cpu, scope, format_now()[:10])
    try:
        calibrate.save_model(model, path)
    except PowerprofError:
        print_text(encode_model(model))  # the result of minutes of metering is not lost with the file
        raise
    if not quiet:
        print_text("\n".join([*calibration_lines(model), f"Saved as {path}."]))
