# SPDX-License-Identifier: Apache-2.0
"""What does one condition of a workload cost? The same measurements as `compare`, of one condition alone.

The run is saved with one value of each metric a window; `powerprof compare RUN1 RUN2` compares two of them, also
from other hosts, kernels or servers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import typer

from powerprof.cli.bench import Bench
from powerprof.cli.options import Attribute, BlockDuration, Load, Meters, Saving, Seed, Tables, files_of
from powerprof.cli.output import check, deliver, say_to

Name = Annotated[str, typer.Argument(metavar="CONDITION", help="Its name, workload:condition, or a workload of one.")]


@dataclass(frozen=True, kw_only=True)
class Windows:
    """How long and how often."""

    duration: BlockDuration = 6.4
    repeat: Annotated[int, typer.Option("--repeat", metavar="N", min=1, max=1000, help="Windows that count.")] = 10


def command(
    name: Name,
    *,
    windows: Windows,
    load: Load,
    seed: Seed = 1,
    bench: Bench,
    attribute: Attribute = None,
    meters: Meters,
    tables: Tables,
    saving: Saving,
) -> None:
    """Measure, save, print."""
    files = files_of(tables)
    saving = check(saving, files)
    from powerprof.experiment.options import ExperimentOptions
    from powerprof.experiment.single import run_condition
    from powerprof.workloads.catalogue import find_one
    from powerprof.workloads.reading import resolve

    case = resolve(*find_one(name, bench.folders))
    options = ExperimentOptions(
        pairs=windows.repeat,
        window_s=windows.duration,
        seed=seed,
        design=load.chosen,
        rate_hz=load.rate,
        queries=load.queries,
        energy_source=meters.energy.energy_source,
        meter_log=meters.energy.meter_log,
        residency_source=meters.residency_source,
        attribute_s=attribute,
    )
    with bench.open() as where:
        run = run_condition(case, where, options, say_to(saving))
    deliver(run, "run", saving, files)
