"""What do this CPU's idle states cost? Writes a power model that a guest on the same kind of CPU can use.

Needs a meter (RAPL, IPMI, a wall meter's log, ...) and an idle host. Steps through idle and several loads, meters
each, and fits watts by idle state and joules by wake-up. The model lands among your models, where every estimate
finds it by the CPU's family and model.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from powerprof.cli.options import EnergySource, MeterLog, Quiet, progress
from powerprof.errors import UsageError

if TYPE_CHECKING:
    from powerprof.energy.models_file import PowerModel

Step = Annotated[float, typer.Option("--step", metavar="S", min=0.2, max=3600, help="Length of a step in seconds.")]
Repeats = Annotated[int, typer.Option("--repeats", metavar="N", min=1, max=100, help="How often a level is metered.")]
Name = Annotated[str | None, typer.Option("--name", metavar="NAME", help="The model's name (default: CPU and date).")]
Output = Annotated[Path | None, typer.Option("--output", metavar="FILE", help="Where to write the model.")]
Seed = Annotated[int, typer.Option("--seed", metavar="N", help="Seed of the random order of steps.")]


def command(
    *,
    step: Step = 5.0,
    repeats: Repeats = 2,
    energy_source: EnergySource = "auto",
    meter_log: MeterLog = None,
    name: Name = None,
    output: Output = None,
    seed: Seed = 1,
    quiet: Quiet = False,
) -> None:
    """Calibrate, write, print."""
    from powerprof.energy import calibrate
    from powerprof.energy.cpu import this_cpu
    from powerprof.windows.sampling import now_text

    if output is not None and output.exists():
        raise UsageError(f"--output {output} exists", "choose another name")
    if name is not None and not 0 < len(name) <= 120:
        raise UsageError("--name must have 1 to 120 characters")
    fit, scope = calibrate.calibrate(
        energy_source,
        meter_log=meter_log,
        step_s=step,
        repeats=repeats,
        seed=seed,
        progress=lambda text: progress(text, quiet),
    )
    cpu = this_cpu()
    model = calibrate.model_of(fit, name or calibrate.default_name(cpu), cpu, scope, now_text()[:10])
    path = calibrate.save_model(model, output)
    if not quiet:
        print(_text(model))
        print(f"Saved as {path}.")


def _text(model: PowerModel) -> str:
    rows = [("C0 (running)", model.full_watts, model.full_range_watts)]
    rows += [(state.name, state.watts, state.range_watts) for state in model.states]
    lines = [f"{model.name}: {model.scope}", "", f"{'watts of one CPU':<24}{'':>8}   95 % interval"]
    lines += [f"{title:<24}{watts:8.3f}   {low:.3f} – {high:.3f}" for title, watts, (low, high) in rows]
    if model.wakeup is not None:
        low, high = model.wakeup.range_joules
        lines.append(f"{'a wake-up, µJ':<24}{model.wakeup.joules * 1e6:8.2f}   {low * 1e6:.2f} – {high * 1e6:.2f}")
    if model.cross_validated_percent is not None:
        lines.append(f"Error on levels that the fit had not seen: {model.cross_validated_percent:.1f} %.")
    return "\n".join([*lines, *(f"· {doubt}" for doubt in model.doubts)])
