# SPDX-License-Identifier: Apache-2.0
"""Recorded meters, identified by their content: turbostat logs and the logs of wall meters."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
from msgspec.structs import replace

from powerprof.energy.meters.meter import DomainEnergy
from powerprof.energy.meters.meter_log import looks_like_meter_log, parse_meter_log, split_column
from powerprof.energy.meters.turbostat import has_length, read_domain_intervals, sum_log_energies
from powerprof.energy.readings import make_readings
from powerprof.energy.reconcile import reconcile
from powerprof.energy.total import EnergyResult, fill_containers, host_energy
from powerprof.measure.energy_series import power_energy
from powerprof.measure.powertop import looks_like_powertop
from powerprof.measure.turbostat import TurbostatLog, looks_like_turbostat, parse_turbostat
from powerprof.model.records import EnergyReading
from powerprof.system.errors import DataError, UsageError
from powerprof.system.foreign_data import reading
from powerprof.system.next_steps import command_line
from powerprof.system.outside_files import read_outside_table

_LONGEST_LINE = 1 << 20
# The part of a text that shows its format.
_HEAD = 200_000


class MeterRecording(msgspec.Struct, frozen=True):
    """One recorded meter. It covers `start_s` to `end_s`, in epoch seconds if `has_epoch`.

    Without `has_length` these times are invented: its mean watts are right, its joules are unknown.
    """

    source: str
    path: str
    start_s: float
    end_s: float
    has_epoch: bool
    energies: Callable[[float, float], list[DomainEnergy]]
    notes: tuple[str, ...] = ()
    has_length: bool = True


_TURBOSTAT_LOG = "record a turbostat log: turbostat --enable Time_Of_Day_Seconds --out FILE"
_CSV_LOG = "record a CSV log with the columns time,watts"
# Files of other tools: a test of the text, its name, the command that measures the same, and the format to record.
_OTHERS: tuple[tuple[Callable[[str], object], str, Callable[[], str], str], ...] = (
    (looks_like_powertop, "a report of PowerTOP", lambda: command_line("energy"), _TURBOSTAT_LOG),
    (
        re.compile(r"intel-rapl[^\s/|=]{0,40}/(?:name|energy_uj|max_energy_range_uj)").search,
        "a dump of powercap's files",
        lambda: command_line("energy --meter rapl"),
        _TURBOSTAT_LOG,
    ),
    (
        re.compile(r"\|[^|\n]*\bWatts\b|,Watts,|Instantaneous power reading:|\ATimestamp *\|").search,
        "a listing of ipmitool",
        lambda: command_line("energy --meter ipmi"),
        _CSV_LOG,
    ),
    (
        re.compile(r"\bJoules\s+(?:power/|energy-)|power/energy-\w+/|,Joules,(?:power/)?energy-").search,
        "an output of perf stat",
        lambda: command_line("energy --meter perf_power"),
        _TURBOSTAT_LOG,
    ),
    (
        re.compile(r'^Adapter: |"Adapter": ?"|^ {2}(?:power|temp|in|fan|energy)\d+_input:', re.M).search,
        "an output of sensors (lm-sensors)",
        lambda: command_line("energy --meter hwmon"),
        _CSV_LOG,
    ),
    (
        re.compile(r'"@odata\.(?:id|type)"|"PowerConsumedWatts"|"PowerControl"').search,
        "an answer of Redfish",
        lambda: command_line("energy --meter ipmi"),
        _CSV_LOG,
    ),
    (
        re.compile(r"^Current Power +: +\d+ Watts", re.M).search,
        "an output of ipmi-dcmi",
        lambda: command_line("energy --meter ipmi"),
        _CSV_LOG,
    ),
    (
        re.compile(r"^(?:# (?:HELP|TYPE) )?scaph_", re.M).search,
        "a page of Scaphandre",
        lambda: command_line("energy"),
        _CSV_LOG,
    ),
    (
        re.compile(r"^# (?:HELP|TYPE) \w+", re.M).search,
        "a page of an exporter",
        lambda: command_line("energy --meter host:FILE"),
        _CSV_LOG,
    ),
)


def read_recordings(files: Sequence[Path]) -> tuple[list[MeterRecording], list[str]]:
    """Return the recordings of the files, identified by content, and notes on the unusable ones.

    Raise DataError if none is usable, and UsageError for two recordings of one meter: powerprof cannot know whether
    they add up.
    """
    recordings: dict[str, MeterRecording] = {}
    unusable: list[DataError] = []
    for name in files:
        path, column = split_column(name)
        try:
            text = read_outside_table(path)
            with reading(path):
                recording = _make_recording(text, path, column)
        except DataError as error:
            unusable.append(error)
            continue
        first = recordings.setdefault(recording.source, recording)
        if first is not recording:
            raise UsageError(
                f"{first.path} and {path} are both recordings of {_TITLES[first.source]}: their sum has no meaning",
                f"read one at a time: {command_line('energy --from FILE')}",
            )
    if unusable and not recordings:
        raise unusable[0]
    return list(recordings.values()), [f"not used: {error.message}" for error in unusable]


_TITLES = {"turbostat": "turbostat", "meter_log": "a wall meter"}


def _make_recording(text: str, path: Path, column: str | None) -> MeterRecording:
    """Return the recording of a text by its content. Raise DataError for another text."""
    if not text.strip():
        raise DataError(path, "empty")
    # The tests of a format split whole lines: 120 MB of `1 1 1 …` took 711 MB.
    if any(text.find("\n", at - _LONGEST_LINE, at) < 0 for at in range(_LONGEST_LINE, len(text), _LONGEST_LINE)):
        raise DataError(path, f"a line of more than {_LONGEST_LINE:,} characters")
    if column is not None:
        return _make_log_recording(text, path, column)
    if looks_like_turbostat(text):
        return _make_turbostat_recording(parse_turbostat(text, path))
    # turbostat's columns without a readable header: the error must name the damaged line.
    if "\t" in text and ("Busy%" in text or "PkgWatt" in text):
        parse_turbostat(text, path)
    if looks_like_meter_log(text):
        return _make_log_recording(text, path, None)
    for is_of, title, command, log in _OTHERS:
        if is_of(text[:_HEAD]):
            remedy = f"measure with {command()}, or {log}"
            raise DataError(path, f"{title}, which --from does not read", hint=remedy)
    raise DataError(
        path,
        "not an energy recording: neither a turbostat log nor a wall meter's CSV",
        hint="a CSV log has a header such as time,watts; name another column of it: FILE#COLUMN",
    )


def _make_log_recording(text: str, path: Path, column: str | None) -> MeterRecording:
    wall = parse_meter_log(text, path, column=column)

    def energies(start_s: float, end_s: float) -> list[DomainEnergy]:
        return [DomainEnergy("wall", "wall", power_energy(wall.samples, start_s, end_s, 3 * wall.step_s))]

    start_s, end_s = wall.samples[0].time_s, wall.samples[-1].time_s
    return MeterRecording("meter_log", str(path), start_s, end_s, wall.has_epoch, energies, wall.notes)


def _make_turbostat_recording(log: TurbostatLog) -> MeterRecording:
    domains = read_domain_intervals(log)
    spans = [interval for domain in domains for interval in domain.intervals]
    if not spans:
        raise DataError(log.path, "; ".join(domain.why for domain in domains if domain.why))
    has_epoch = all(interval.time_s is not None for interval in log.intervals)

    def energies(start_s: float, end_s: float) -> list[DomainEnergy]:
        return sum_log_energies(log, start_s, end_s)

    notes = list(log.notes)
    if not has_length(log):
        notes.append("its tables contain no durations: only mean watts are known")
    return MeterRecording(
        "turbostat",
        log.path,
        min(s.start_s for s in spans),
        max(s.end_s for s in spans),
        has_epoch,
        energies,
        tuple(notes),
        has_length(log),
    )


def find_common_window(recordings: Sequence[MeterRecording]) -> tuple[float, float] | None:
    """Return the time that all recordings cover. None if it is empty, or if a recording has no epoch times."""
    if not recordings or (len(recordings) > 1 and not all(r.has_epoch for r in recordings)):
        return None
    start_s = max(r.start_s for r in recordings)
    end_s = min(r.end_s for r in recordings)
    return (start_s, end_s) if end_s > start_s else None


def replay(files: Sequence[Path]) -> EnergyResult:
    """Return the energy of recorded meters in the window that all of them cover.

    Recordings without a common time are each summed over their own time, with a note. Raise DataError for a damaged
    file, UsageError for two recordings of one meter.
    """
    recordings, notes = read_recordings(files)
    common = find_common_window(recordings)
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
    readings = fill_containers(readings)
    notes += reconcile(readings)
    total = host_energy(readings)
    timeless = {recording.source for recording in recordings if not recording.has_length}
    if timeless:
        common = None
        readings = [replace(r, joules=None) if r.source in timeless else r for r in readings]
        total = replace(total, joules=None) if total.source in timeless else total
    window_s = common[1] - common[0] if common else None
    return EnergyResult(window_s=window_s, meters=readings, total=total, notes=list(dict.fromkeys(notes)))
