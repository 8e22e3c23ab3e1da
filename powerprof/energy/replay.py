# SPDX-License-Identifier: Apache-2.0
"""Recorded meters through the same code as live ones: their energies in the window that all of them cover."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from powerprof.energy.domains import contained, host_energy
from powerprof.energy.meters import make_readings
from powerprof.energy.reconcile import reconcile
from powerprof.energy.recordings import common_window, read_recordings
from powerprof.energy.result import EnergyResult
from powerprof.records import EnergyReading
from powerprof.untrusted import reading


def replay(files: Sequence[Path], elapsed_s: float | None = None) -> EnergyResult:
    """Energy of recorded meters in the window that all of them cover.

    `elapsed_s` is the time between two powercap dumps, which carry none. Recordings without a common time are each
    given over their own time, and the notes say so. Raises DataError on a damaged file, UsageError where a time is
    missing.
    """
    recordings, notes = read_recordings(files, elapsed_s)
    common = common_window(recordings)
    readings: list[EnergyReading] = []
    if common is None and len(recordings) > 1:
        spans = "; ".join(f"{r.source} {r.path} {r.end_s - r.start_s:.1f} s" for r in recordings)
        notes.append(f"no common time: each is given over its own ({spans})")
    for recording in recordings:
        start_s, end_s = common or (recording.start_s, recording.end_s)
        with reading(recording.path):
            made, reading_notes = make_readings(recording.source, recording.energies(start_s, end_s), start_s, end_s)
        readings += made
        notes += [*(f"{recording.path}: {note}" for note in recording.notes), *reading_notes]
    readings = contained(readings)
    notes += reconcile(readings)
    window_s = common[1] - common[0] if common else None
    return EnergyResult(
        window_s=window_s, meters=readings, total=host_energy(readings), notes=list(dict.fromkeys(notes))
    )
