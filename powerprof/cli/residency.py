# SPDX-License-Identifier: Apache-2.0
"""How long are the CPUs in each idle state? And how often do they wake?

Measures this host; needs no root and no server. With --from it computes the same from recordings: two dumps
of cpuidle's counters (BEFORE AFTER; they carry no wall time, say it with --elapsed), or one dump, turbostat
log or PowerTOP report.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from powerprof.cli.options import Duration, ResidencySourceOrNone, Saving, Tables, files_of, refuse_without_effect
from powerprof.cli.output import Targets, check, check_targets, deliver, progress
from powerprof.system.errors import UsageError

Before = Annotated[Path | None, typer.Option("--from", metavar="BEFORE", help="A recording instead of this host.")]
After = Annotated[Path | None, typer.Argument(metavar="AFTER", help="The second dump of --from.", show_default=False)]
Elapsed = Annotated[
    float | None,
    typer.Option("--elapsed", metavar="S", min=0.001, max=1e9, help="Wall time between two dumps in seconds."),
]


def command(
    *,
    context: typer.Context,
    before: Before = None,
    after: After = None,
    elapsed: Elapsed = None,
    duration: Duration = 5.0,
    residency_source: ResidencySourceOrNone = None,
    tables: Tables,
    saving: Saving,
) -> None:
    """Measure or read, save, print."""
    files = files_of(tables)
    saving = check(saving, files) if before is None else _checked(context, saving, files)
    if before is None and (after is not None or elapsed is not None):
        raise UsageError("AFTER and --elapsed belong to --from BEFORE", "powerprof residency --help")
    if before is not None:
        _replay(before, after, elapsed, residency_source, saving, files)
    else:
        _measure(duration, residency_source or "cpuidle", saving, files)


def _checked(context: typer.Context, saving: Saving, files: Targets) -> Saving:
    """What is read from recordings is not saved. Raises UsageError."""
    refuse_without_effect(context, "with --from, which measures nothing", ("duration", "runs_dir", "no_save"))
    check_targets(saving.json, files)
    return replace(saving, no_save=True)


def _replay(
    before: Path, after: Path | None, elapsed: float | None, source: str | None, saving: Saving, files: Targets
) -> None:
    from powerprof.measure.residency import read_recording
    from powerprof.measure.sampling import format_now, make_run
    from powerprof.report.residency import render_terminal

    recording = read_recording(before, after, source=source, elapsed_s=elapsed, read_at=format_now())
    run = make_run(recording.window, host={"recordings": [str(path) for path in (before, after) if path is not None]})
    deliver(run, "residency", saving, files, lines=partial(render_terminal, driver=recording.driver))


def _measure(duration: float, source: str, saving: Saving, files: Targets) -> None:
    from powerprof.host.describe import host_record
    from powerprof.measure.sampling import WindowInterrupted, WindowMeter, make_run

    progress(f"measuring for {duration:g} s", saving.quiet)
    with WindowMeter(residency_source=source) as meter:
        try:
            window, interrupted = meter.measure(duration), False
        except WindowInterrupted as error:
            window, interrupted = error.partial, True
    deliver(make_run(window, host=host_record(), interrupted=interrupted), "residency", saving, files)
