# SPDX-License-Identifier: Apache-2.0
"""How much energy does this host use, and which meter says so?

Reads every meter that --energy-source names (auto: the best one that counts), or estimates from idle states
where there is none. With --from it computes the same from recordings: powercap dumps in their order (say the
seconds between them with --elapsed), turbostat logs, IPMI logs, a wall meter's CSV.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from powerprof.cli.options import Csv, CsvBom, Duration, EnergyOptions, Json, Quiet, files_of, refuse_without_effect
from powerprof.cli.output import Targets, check_targets, progress, report, show, write_exports, write_json
from powerprof.system.errors import Interrupted, UsageError

if TYPE_CHECKING:
    from powerprof.energy.domains import EnergyResult

From = Annotated[
    list[Path] | None, typer.Option("--from", metavar="FILE…", help="Recordings instead of this host's meters.")
]
More = Annotated[list[Path] | None, typer.Argument(metavar="[FILE…]", help="More of --from.", show_default=False)]
Elapsed = Annotated[
    float | None, typer.Option("--elapsed", metavar="S", min=0.001, max=1e9, help="Seconds between two powercap dumps.")
]


def command(
    *,
    context: typer.Context,
    recordings: From = None,
    more: More = None,
    elapsed: Elapsed = None,
    duration: Duration = 5.0,
    energy: EnergyOptions,
    csv: Csv = None,
    csv_bom: CsvBom = None,
    json: Json = None,
    quiet: Quiet = False,
) -> None:
    """Measure or read, print."""
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
