# SPDX-License-Identifier: Apache-2.0
"""Recorded residency of another machine: cpuidle dumps, a turbostat log or a PowerTOP report."""

from __future__ import annotations

from pathlib import Path

import msgspec

from powerprof.measure.cpuidle_dumps import check_pair, parse_dump, read_dump, zero_counters
from powerprof.measure.residency import compute_residency
from powerprof.model.records import Window
from powerprof.system.errors import DataError, UsageError
from powerprof.system.foreign_data import loader
from powerprof.system.outside_files import read_outside_table

_LIMIT_BYTES = 64 << 20
# Idle periods that were open at the dumps explain a sum of some points above the wall time.
_MOST_RESIDUAL = 10.0


class ResidencyRecording(msgspec.Struct, frozen=True):
    """A window of another machine, and the idle driver in its recording."""

    window: Window
    driver: str | None


@loader(0)
def read_recording(
    before: Path, after: Path | None, *, source: str | None, elapsed_s: float | None, read_at: str
) -> ResidencyRecording:
    """Return the window of two cpuidle dumps, or of one file: a dump since boot, a turbostat log, a PowerTOP report.

    With `source` None the content decides. Raise UsageError for options that do not fit, DataError for a damaged file.
    """
    from powerprof.measure import powertop, turbostat
    from powerprof.measure.powertop_residency import make_powertop_window
    from powerprof.measure.turbostat_residency import make_turbostat_window

    if after is None and source != "cpuidle":
        text = read_outside_table(before, _LIMIT_BYTES)
        if source == "turbostat" or (source is None and turbostat.looks_like_turbostat(text)):
            if elapsed_s is not None:
                raise UsageError("--elapsed is for cpuidle dumps: a turbostat log has its own times", "leave it out")
            log = turbostat.parse_turbostat(text, before)
            window = make_turbostat_window(log, read_at)
            if not window.states and not window.achieved:
                reason = "a turbostat log without Busy% and columns of idle states"
                raise DataError(before, reason, hint=turbostat.COMPLETE)
            return ResidencyRecording(window, log.idle_driver)
        if source == "powertop" or (source is None and powertop.looks_like_powertop(text)):
            return ResidencyRecording(
                make_powertop_window(powertop.parse_powertop(text, before), read_at, elapsed_s), None
            )
    if source in ("turbostat", "powertop", "procfs"):
        takes = "no recordings" if source == "procfs" else "one recording"
        raise UsageError(f"--residency-source {source} takes {takes}", "two files are two cpuidle dumps")
    return _read_dumps(before, after, elapsed_s, read_at)


def _read_dumps(before: Path, after: Path | None, elapsed_s: float | None, read_at: str) -> ResidencyRecording:
    first = read_dump(before)
    second = first if after is None else parse_dump(read_outside_table(after, _LIMIT_BYTES), after)
    check_pair(first, second)
    governor = f", governor {second.governor}" if second.governor else ""
    driver = f"{second.driver}{governor}" if second.driver else None
    if first.snapshot == second.snapshot:
        window = compute_residency(zero_counters(second), second.snapshot, started_at=read_at, elapsed_s=elapsed_s)
        note = "only one snapshot: the figures are those since boot"
        return ResidencyRecording(msgspec.structs.replace(window, notes=[note, *window.notes]), driver)
    window = compute_residency(first.snapshot, second.snapshot, started_at=read_at, elapsed_s=elapsed_s)
    if (window.residual_percent or 0.0) > _MOST_RESIDUAL:
        # Shares of a wrong time would be wrong too.
        share = 100.0 + (window.residual_percent or 0.0)
        window = compute_residency(first.snapshot, second.snapshot, started_at=read_at)
        note = f"--elapsed is not used: the CPUs would have been idle for {share:.0f} % of these {elapsed_s:g} s"
        window = msgspec.structs.replace(window, notes=[note, *window.notes])
    return ResidencyRecording(window, driver)
