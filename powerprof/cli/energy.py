# SPDX-License-Identifier: Apache-2.0
"""How much energy does this host use, and which meter says so?

Reads every meter that --energy-source names (auto: the best one that counts), or estimates from idle states
where there is none. With --from it computes the same from recordings: powercap dumps in their order (say the
seconds between them with --elapsed), turbostat logs, IPMI logs, a wall meter's CSV.

With --calibrate it writes a power model that a guest on the same kind of CPU can use. This needs a meter and an idle
host. It steps through idle and several loads, meters each, and fits watts by idle state and joules by wake-up. The
model is saved among your models, and every estimate finds it there by the CPU's family and model.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from powerprof.cli.options import (
    MAX_SEED,
    Csv,
    CsvBom,
    Duration,
    EnergyOptions,
    Json,
    Quiet,
    files_of,
    refuse_without_effect,
)
from powerprof.cli.output import Targets, check_targets, progress, report, say, show, write_exports, write_json
from powerprof.system.errors import Interrupted, PowerprofError, UsageError

if TYPE_CHECKING:
    from powerprof.energy.domains import EnergyResult

From = Annotated[
    list[Path] | None, typer.Option("--from", metavar="FILE…", help="Recordings instead of this host's meters.")
]
More = Annotated[list[Path] | None, typer.Argument(metavar="[FILE…]", help="More of --from.", show_default=False)]
Elapsed = Annotated[
    float | None, typer.Option("--elapsed", metavar="S", min=0.001, max=1e9, help="Seconds between two powercap dumps.")
]


@dataclass(frozen=True, kw_only=True)
class CalibrationOptions:
    """Calibration. They need --calibrate."""

    calibrate: Annotated[
        bool, typer.Option("--calibrate", help="Write a power model of this CPU, by a meter and steps of load.")
    ] = False
    step: Annotated[
        float, typer.Option("--step", metavar="S", min=0.2, max=3600, help="Length of a step in seconds.")
    ] = 5.0
    repeats: Annotated[
        int, typer.Option("--repeats", metavar="N", min=1, max=100, help="How often a level is metered.")
    ] = 2
    name: Annotated[
        str | None, typer.Option("--name", metavar="NAME", help="The model's name (default: CPU and date).")
    ] = None
    output: Annotated[Path | None, typer.Option("--output", metavar="FILE", help="Where to write the model.")] = None
    seed: Annotated[
        int, typer.Option("--seed", metavar="N", min=0, max=MAX_SEED, help="Seed of the random order of steps.")
    ] = 1


_CALIBRATION = ("step", "repeats", "name", "output", "seed")
_NOT_CALIBRATION = ("recordings", "more", "elapsed", "duration", "cpu_model", "vcpu", "csv", "csv_bom", "json")


def command(
    *,
    context: typer.Context,
    recordings: From = None,
    more: More = None,
    elapsed: Elapsed = None,
    duration: Duration = 5.0,
    energy: EnergyOptions,
    calibration: CalibrationOptions,
    csv: Csv = None,
    csv_bom: CsvBom = None,
    json: Json = None,
    quiet: Quiet = False,
) -> None:
    """Measure, read recordings or calibrate, and print the result."""
    if calibration.calibrate:
        refuse_without_effect(context, "with --calibrate, which writes a model", _NOT_CALIBRATION)
        _calibrate(calibration, energy, quiet)
        return
    refuse_without_effect(context, "without --calibrate", _CALIBRATION)
    files = files_of(csv=csv, **{"csv-bom": csv_bom})
    check_targets(json, files)
    if not recordings and (more or elapsed is not None):
        raise UsageError("files and --elapsed belong to --from FILE…", "powerprof energy --help")
    if recordings:
        refuse_without_effect(context, "with --from, which reads what was measured", ("duration",))
        from powerprof.energy.recordings import replay

        if energy != EnergyOptions():
            raise UsageError(
                "--energy-source, --meter-log, --cpu-model and --vcpu are of this host, --from reads recordings",
                "leave them out",
            )
        _show(replay([*recordings, *(more or [])], elapsed), files, json, quiet)
        return
    from powerprof.energy.recordings import EnergyInterrupted, measure

    progress(f"measuring for {duration:g} s", quiet)
    try:
        result = measure(energy.request, duration)
    except EnergyInterrupted as error:
        _show(error.result, files, json, quiet)
        raise Interrupted("interrupted", "the figures are those until then") from None
    _show(result, files, json, quiet)


def _show(result: EnergyResult, files: Targets, json: str | None, quiet: bool) -> None:
    write_json(result, json)
    write_exports(result, files)
    if "-" not in (json, *files.values()) and not quiet:
        show(report(result))


def _calibrate(options: CalibrationOptions, energy: EnergyOptions, quiet: bool) -> None:
    """Calibrate a model, save it and print it. The model is printed also if it cannot be saved."""
    from powerprof.energy import calibrate
    from powerprof.energy.models_file import encode_model, this_cpu
    from powerprof.measure.sampling import format_now
    from powerprof.report.energy import calibration_lines

    cpu = this_cpu()
    name = calibrate.make_default_name(cpu) if options.name is None else options.name
    path = calibrate.choose_target(name, options.output)
    check_targets(files={"output": str(path)})
    fit, scope = calibrate.calibrate(
        energy.energy_source,
        meter_log=energy.meter_log,
        step_s=options.step,
        repeats=options.repeats,
        seed=options.seed,
        progress=lambda text: progress(text, quiet),
    )
    model = calibrate.make_model(fit, name, cpu, scope, format_now()[:10])
    try:
        calibrate.save_model(model, path)
    except PowerprofError:
        say(encode_model(model))  # the result of minutes of metering is not lost with the file
        raise
    if not quiet:
        say("\n".join([*calibration_lines(model), f"Saved as {path}."]))
