# SPDX-License-Identifier: Apache-2.0
"""Measure how long the CPUs stay in each idle state, and how often they wake up.

It needs no root and no server. --from reads recordings instead of this host: two dumps of cpuidle's counters (BEFORE
AFTER), or one dump, turbostat log or PowerTOP report. Dumps have no timestamps: give the time between them with
--elapsed.
"""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from msgspec.structs import replace

from powerprof.cli.meter_options import residency_source
from powerprof.cli.options import CommandOptions
from powerprof.cli.output import check_saving, deliver
from powerprof.cli.outputs import TABLES, Outputs, Saving, output_files
from powerprof.cli.parameters import EXPERT_HEADING, Mode, ParserError, argument, group, option, time_span
from powerprof.cli.terminal import progress_printer
from powerprof.cli.window_options import duration


class Options(CommandOptions, frozen=True, kw_only=True):
    """The options of `residency`."""

    MODES: ClassVar[tuple[Mode, ...]] = (Mode(words=("--from",), refuses=("--duration", "--no-save", "--label")),)

    before: Path | None = option("--from", "BEFORE", "Read a recording instead of this host.", convert=Path)
    after: Path | None = argument("[AFTER]", "Second dump for --from.", convert=Path)
    elapsed: float | None = time_span(
        "--elapsed",
        "Time between the two dumps.",
        low=0.001,
        high=1_000_000_000,
        heading=EXPERT_HEADING,
        needs=("--from",),
    )
    duration: float = duration(5.0)
    # No default: a recording names its source itself.
    residency_source: str | None = residency_source(None)
    outputs: Outputs = output_files(*TABLES)
    saving: Saving = group(Saving)

    def check(self) -> None:
        """Raise UsageError for a second dump without the first one."""
        if self.after is not None and self.before is None:
            raise ParserError(f"{self.after} needs --from BEFORE", "argument", [str(self.after)], "residency")


def command(options: Options) -> None:
    """Measure or read a recording, save and print."""
    saving = options.saving
    if options.before is not None:
        # Results of recordings are not saved.
        _replay(options.before, options, check_saving(replace(saving, no_save=True), options.outputs))
        return
    saving = check_saving(saving, options.outputs)
    _measure(options.duration, options.residency_source or "cpuidle", saving)


def _replay(before: Path, options: Options, saving: Saving) -> None:
    from powerprof.measure.clock import format_now
    from powerprof.measure.means import make_run
    from powerprof.measure.residency_recordings import read_recording

    recording = read_recording(
        before, options.after, source=options.residency_source, elapsed_s=options.elapsed, read_at=format_now()
    )
    paths = [str(path) for path in (before, options.after) if path is not None]
    driver = {"idle_driver": recording.driver} if recording.driver else {}
    run = make_run(recording.window, host={"recordings": paths, **driver})
    deliver(run, "residency", saving)


def _measure(duration_s: float, source: str, saving: Saving) -> None:
    from powerprof.host.describe import host_record
    from powerprof.measure.means import make_run
    from powerprof.measure.progress import announce
    from powerprof.measure.sampling import WindowInterrupted, WindowMeter

    announce(progress_printer(saving), "measuring", duration_s)
    with WindowMeter(residency_source=source) as meter:
        try:
            window, interrupted = meter.measure(duration_s), False
        except WindowInterrupted as error:
            window, interrupted = error.partial, True
    deliver(make_run(window, host=host_record(), interrupted=interrupted), "residency", saving)
