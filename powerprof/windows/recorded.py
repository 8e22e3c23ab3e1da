# SPDX-License-Identifier: Apache-2.0
"""Recorded residency: cpuidle dumps, a turbostat log or a PowerTOP report of another machine, as a window."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import msgspec

from powerprof.errors import DataError, UsageError
from powerprof.files import read_outside_text
from powerprof.records import Window
from powerprof.sources import powertop, powertop_run, turbostat, turbostat_run
from powerprof.sources.cpuidle_dump import check_pair, parse_dump, read_dump, since_boot
from powerprof.untrusted import loader
from powerprof.windows import residency

_LIMIT_BYTES = 64 << 20


@dataclass(frozen=True)
class ResidencyRecording:
    """A window of another machine, and the idle driver that it named."""

    window: Window
    driver: str | None


@loader
def read_recording(
    before: Path, after: Path | None, *, source: str | None, elapsed_s: float | None, read_at: str
) -> ResidencyRecording:
    """Two cpuidle dumps, or one file: a dump (its figures since boot), a turbostat log, a PowerTOP report.

    `source` None: whatever a single file looks like. Raises UsageError where the options do not fit,
    DataError where a file is damaged.
    """
    if after is None and source != "cpuidle":
        text = read_outside_text(before, _LIMIT_BYTES)
        if source == "turbostat" or (source is None and turbostat.looks_like_turbostat(text)):
            if elapsed_s is not None:
                raise UsageError("--elapsed is for cpuidle dumps: a turbostat log has its own times", "leave it out")
            log = turbostat.parse_turbostat(text, before)
            window = turbostat_run.window_from(log, read_at)
            if not window.states and window.c0_percent is None:
                raise DataError(before, "a turbostat log without a column of idle states")
            return ResidencyRecording(window, log.header.idle_driver)
        if source == "powertop" or (source is None and "P o w e r T O P" in text[:1000]):
            return ResidencyRecording(
                powertop_run.window_from(powertop.parse_powertop(text, before), read_at, elapsed_s), None
            )
    if source in ("turbostat", "powertop", "procfs"):
        takes = "no recordings" if source == "procfs" else "one recording"
        raise UsageError(f"--residency-source {source} takes {takes}", "two files are two cpuidle dumps")
    return _dumps(before, after, elapsed_s, read_at)


def _dumps(before: Path, after: Path | None, elapsed_s: float | None, read_at: str) -> ResidencyRecording:
    first = read_dump(before)
    second = first if after is None else parse_dump(read_outside_text(after, _LIMIT_BYTES), after)
    check_pair(first, second)
    governor = f", governor {second.governor}" if second.governor else ""
    driver = f"driver {second.driver}{governor}" if second.driver else None
    if first.snapshot == second.snapshot:
        window = residency.compute(since_boot(second), second.snapshot, started_at=read_at, elapsed_s=elapsed_s)
        note = "only one snapshot: the figures are those since boot"
        return ResidencyRecording(msgspec.structs.replace(window, notes=[note, *window.notes]), driver)
    return ResidencyRecording(
        residency.compute(first.snapshot, second.snapshot, started_at=read_at, elapsed_s=elapsed_s), driver
    )
