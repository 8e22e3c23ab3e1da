"""How long are the CPUs in each idle state? And how often do they wake?

Measures this host; needs no root and no server. With --from it computes the same from recordings: two dumps
of cpuidle's counters (BEFORE AFTER; they carry no wall time, say it with --elapsed), or one dump, turbostat
log or PowerTOP report.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from powerprof.cli.options import Duration, Json, NoSave, Quiet, RunsDir, check_json_target, progress, save_and_show
from powerprof.errors import UsageError

if TYPE_CHECKING:
    from powerprof.records import Run, Window

Before = Annotated[Path | None, typer.Option("--from", metavar="BEFORE", help="A recording instead of this host.")]
After = Annotated[Path | None, typer.Argument(metavar="AFTER", help="The second dump of --from.", show_default=False)]
Elapsed = Annotated[
    float | None,
    typer.Option("--elapsed", metavar="S", min=0.001, max=1e9, help="Wall time between two dumps in seconds."),
]
SourceName = Annotated[
    str | None,
    typer.Option("--residency-source", metavar="NAME", help="cpuidle (default), powertop, turbostat or procfs."),
]


def command(
    *,
    before: Before = None,
    after: After = None,
    elapsed: Elapsed = None,
    duration: Duration = 5.0,
    residency_source: SourceName = None,
    json: Json = None,
    quiet: Quiet = False,
    runs_dir: RunsDir = None,
    no_save: NoSave = False,
) -> None:
    """Measure or read, save, print."""
    check_json_target(json)
    if before is None and (after is not None or elapsed is not None):
        raise UsageError("AFTER and --elapsed belong to --from BEFORE", "powerprof residency --help")
    if before is not None:
        _replay(before, after, elapsed=elapsed, source=residency_source, json=json, quiet=quiet)
    else:
        _measure(
            duration, source=residency_source or "cpuidle", json=json, quiet=quiet, runs_dir=runs_dir, no_save=no_save
        )


def _replay(
    before: Path, after: Path | None, *, elapsed: float | None, source: str | None, json: str | None, quiet: bool
) -> None:
    from powerprof.windows.recorded import read_recording
    from powerprof.windows.sampling import now_text
    from powerprof.windows.summary import run_of

    recording = read_recording(before, after, source=source, elapsed_s=elapsed, read_at=now_text())
    host = {"recordings": [str(path) for path in (before, after) if path is not None]}
    _show(run_of(recording.window, host=host), recording.window, recording.driver, json, quiet)


def _measure(
    duration: float, *, source: str, json: str | None, quiet: bool, runs_dir: Path | None, no_save: bool
) -> None:
    from powerprof import interrupts
    from powerprof.host.describe import host_record
    from powerprof.sources import cpuidle
    from powerprof.windows.sampling import WindowInterrupted, measure_window
    from powerprof.windows.summary import run_of

    interrupted = False
    progress(f"measuring for {duration:g} s", quiet)
    try:
        window = measure_window(duration, residency_source=source)
    except WindowInterrupted as error:
        if error.partial is None:
            raise
        window, interrupted = error.partial, True
    interrupts.hold()
    run = run_of(window, host=host_record(), interrupted=interrupted)
    driver = cpuidle.driver()
    _show(run, window, f"driver {driver}" if driver else None, json, quiet, runs_dir, no_save)


def _show(
    run: Run,
    window: Window,
    driver: str | None,
    json: str | None,
    quiet: bool,
    runs_dir: Path | None = None,
    no_save: bool = True,
) -> None:
    from powerprof.report.residency import render

    save_and_show(
        run,
        "residency",
        lambda run, width: render(window, driver).splitlines(),
        json=json,
        quiet=quiet,
        runs_dir=runs_dir,
        no_save=no_save,
    )
