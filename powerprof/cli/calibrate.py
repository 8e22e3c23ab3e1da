# SPDX-License-Identifier: Apache-2.0
"""What do this CPU's idle states cost? Writes a power model that a guest on the same kind of CPU can use.

Needs a meter (RAPL, IPMI, a wall meter's log, ...) and an idle host. Steps through idle and several loads, meters
each, and fits watts by idle state and joules by wake-up. The model lands among your models, where every estimate
finds it by the CPU's family and model.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from powerprof.cli.options import MAX_SEED, MeterChoice, Quiet
from powerprof.cli.output import check_targets, progress, say
from powerprof.system.errors import PowerprofError

Step = Annotated[float, typer.Option("--step", metavar="S", min=0.2, max=3600, help="Length of a step in seconds.")]
Repeats = Annotated[int, typer.Option("--repeats", metavar="N", min=1, max=100, help="How often a level is metered.")]
Name = Annotated[str | None, typer.Option("--name", metavar="NAME", help="The model's name (default: CPU and date).")]
Output = Annotated[Path | None, typer.Option("--output", metavar="FILE", help="Where to write the model.")]
Seed = Annotated[
    int, typer.Option("--seed", metavar="N", min=0, max=MAX_SEED, help="Seed of the random order of steps.")
]


def command(
    *,
    step: Step = 5.0,
    repeats: Repeats = 2,
    energy: MeterChoice,
    name: Name = None,
    output: Output = None,
    seed: Seed = 1,
    quiet: Quiet = False,
) -> None:
    """Calibrate, write, print."""
    from powerprof.energy import calibrate
    from powerprof.energy.models_file import encode_model, this_cpu
    from powerprof.measure.sampling import format_now
    from powerprof.report.energy import calibration_lines

    cpu = this_cpu()
    name = calibrate.make_default_name(cpu) if name is None else name
    path = calibrate.choose_target(name, output)
    check_targets(files={"output": str(path)})
    fit, scope = calibrate.calibrate(
        energy.energy_source,
        meter_log=energy.meter_log,
        step_s=step,
        repeats=repeats,
        seed=seed,
        progress=lambda text: progress(text, quiet),
    )
    model = calibrate.make_model(fit, name, cpu, scope, format_now()[:10])
    try:
        calibrate.save_model(model, path)
    except PowerprofError:
        say(encode_model(model))  # minutes of metering are not lost with the file
        raise
    if not quiet:
        say("\n".join([*calibration_lines(model), f"Saved as {path}."]))
