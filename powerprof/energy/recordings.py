# SPDX-License-Identifier: Apache-2.0
"""Recorded meters, identified by their content, and one window of this host's energy."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

import msgspec
from msgspec.structs import replace

from powerprof.energy.domains import DomainEnergy, EnergyRequest, EnergyResult, fill_containers, host_energy
from powerprof.energy.meter_log import looks_like_meter_log, parse_meter_log, split_column
from powerprof.energy.meters import make_readings, reconcile
from powerprof.energy.program_meters import (
    find_report_watts,
    has_length,
    looks_like_ipmi,
    parse_ipmi,
    read_domain_intervals,
    sum_log_energies,
)
from powerprof.energy.rapl import Domain, Zone, make_zone, select_domains, zone_energies
from powerprof.energy.windows import WindowEnergy
from powerprof.measure.counters import CounterSample, PowerSample, power_energy
from powerprof.measure.powertop import check_csv, looks_like_powertop
from powerprof.measure.program_output import STAMP, parse_epoch, read_dump_cells
from powerprof.measure.sampling import WindowInterrupted, WindowMeter
from powerprof.measure.turbostat import TurbostatLog, looks_like_turbostat, parse_turbostat
from powerprof.model.records import EnergyReading, Window, ended_by_signal
from powerprof.system.errors import CapabilityError, DataError, UsageError
from powerprof.system.files import loader, read_outside_table, reading, whole
from powerprof.system.next_steps import command_line

_LONGEST_LINE = 1 << 20


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


def read_recordings(files: Sequence[Path], elapsed_s: float | None) -> tuple[list[MeterRecording], list[str]]:
    """Return the recordings of the files, identified by content, and notes. All powercap dumps are one recording."""
    recordings: list[MeterRecording] = []
    dumps: list[PowercapDump] = []
    notes: list[str] = []
    unusable: list[DataError] = []
    seen: dict[str, Path] = {}
    for name in files:
        path, column = split_column(name)
        try:
            text = read_outside_table(path)
            # Powercap dumps may be equal (an idle domain's counter). Any other repeated file adds nothing.
            if text in seen and not looks_like_powercap(text) and not looks_like_meter_log(text):
                notes.append(f"{path} is the same as {seen[text]} and is read once")
                continue
            seen[text] = path
            with reading(path):
                made = _make_recording(text, path, notes, column)
        except DataError as error:
            unusable.append(error)
            continue
        dumps += made if isinstance(made, list) else []
        recordings += [made] if isinstance(made, MeterRecording) else []
    if unusable and not recordings and len(dumps) < 2:
        raise unusable[0]
    notes += [f"not used: {error.message}" for error in unusable]
    if unusable and len(dumps) == 1:
        notes.append(f"not used: {dumps.pop().path}: one powercap dump has no energy in it")
    if dumps:
        with reading(dumps[0].path):
            recordings.append(_make_powercap_recording(dumps, elapsed_s))
    elif elapsed_s is not None:
        raise UsageError("--elapsed is the time between powercap dumps, but these files are not dumps", "leave it out")
    if not recordings and not notes:
        raise UsageError("no recordings were given", command_line("energy --from FILE…"))
    return _drop_repeated(recordings, notes), notes


def _make_recording(
    text: str, path: Path, notes: list[str], column: str | None
) -> MeterRecording | list[PowercapDump] | None:
    """Return the recording of a text by its content, or None with a note for PowerTOP's report.

    Raise DataError for others.
    """
    if not text.strip():
        raise DataError(path, "empty")
    # The tests of a format split whole lines: 120 MB of `1 1 1 …` took 711 MB.
    if any(text.find("\n", at - _LONGEST_LINE, at) < 0 for at in range(_LONGEST_LINE, len(text), _LONGEST_LINE)):
        raise DataError(path, f"a line of more than {_LONGEST_LINE:,} characters")
    if column is not None:
        return _make_log_recording(text, path, column)
    if looks_like_turbostat(text):
        return _make_turbostat_recording(parse_turbostat(text, path))
    if looks_like_powercap(text):
        return parse_powercap(text, path)
    if looks_like_ipmi(text):
        ipmi = parse_ipmi(text, path)
        ipmi_notes = (f"read from {ipmi.sensor}", *ipmi.notes)
        recording = _make_power_recording("ipmi", "server", str(path), ipmi.samples, ipmi.step_s, ipmi_notes)
        return replace(recording, has_epoch=ipmi.has_epoch)
    if looks_like_powertop(text):
        check_csv(text, path)
        notes.append(_note_powertop(text, path))
        return None
    # turbostat's columns without a readable header: the error must name the damaged line.
    if "\t" in text and ("Busy%" in text or "PkgWatt" in text):
        parse_turbostat(text, path)
    if looks_like_meter_log(text):
        return _make_log_recording(text, path, None)
    if re.search(r"\|[^|]*\bWatts\b", text):
        raise DataError(
            path,
            "listings of ipmitool without times",
            hint='print the time before each: echo "Timestamp | $(date +%s)"; ipmitool sdr elist',
        )
    raise DataError(
        path,
        "not an energy recording: neither turbostat, powercap, IPMI nor a wall meter's CSV",
        hint="a CSV log has a header such as time,watts; name another column of it: FILE#COLUMN",
    )


def _make_log_recording(text: str, path: Path, column: str | None) -> MeterRecording:
    wall = parse_meter_log(text, path, column=column)
    recording = _make_power_recording("meter_log", "wall", str(path), wall.samples, wall.step_s, wall.notes)
    return replace(recording, has_epoch=wall.has_epoch)


def _drop_repeated(recordings: Sequence[MeterRecording], notes: list[str]) -> list[MeterRecording]:
    """Return at most one recording per source. A second one of the same server is left out with a note.

    Raise UsageError for recordings of different times or machines: their sum has no meaning.
    """
    kept: dict[str, MeterRecording] = {}
    for recording in recordings:
        first = kept.setdefault(recording.source, recording)
        if first is recording:
            continue
        both = f"{first.path} and {recording.path}"
        if recording.source == "meter_log":
            raise UsageError(
                f"two wall meter logs ({both}): powerprof cannot know which contains which", "name one of them"
            )
        common = find_common_window([first, recording])
        if common is None:
            raise UsageError(
                f"{both} are {recording.source}'s, of different times: they cannot be summed",
                f"read one at a time: {command_line('energy --from FILE')}",
            )
        a, b = (_mean_watts(meter, common) for meter in (first, recording))
        if a is None or b is None or abs(a - b) > _SAME_SERVER * max(a, b):
            figures = ", ".join("no figure" if watts is None else f"{watts:.1f} W" for watts in (a, b))
            raise UsageError(
                f"{both} are {recording.source}'s, of the same time, and differ ({figures}): two machines?",
                f"read each machine separately: {command_line('energy --from FILE…')}",
            )
        notes.append(f"{recording.path} repeats {first.path} ({b:.1f} and {a:.1f} W) and is not counted")
    return list(kept.values())


def _mean_watts(recording: MeterRecording, window: tuple[float, float]) -> float | None:
    made, _ = make_readings(recording.source, recording.energies(*window), *window)
    return host_energy(fill_containers(made)).watts


# In-band and out-of-band readings of one controller are some seconds apart.
_SAME_SERVER = 0.05


def find_common_window(recordings: Sequence[MeterRecording]) -> tuple[float, float] | None:
    """Return the time that all recordings cover. None if it is empty, or if a recording has no epoch times."""
    if not recordings or (len(recordings) > 1 and not all(r.has_epoch for r in recordings)):
        return None
    start_s = max(r.start_s for r in recordings)
    end_s = min(r.end_s for r in recordings)
    return (start_s, end_s) if end_s > start_s else None


def _make_power_recording(
    source: str,
    domain: Literal["wall", "server"],
    path: str,
    samples: Sequence[PowerSample],
    step_s: float,
    notes: tuple[str, ...],
) -> MeterRecording:
    def energies(start_s: float, end_s: float) -> list[DomainEnergy]:
        return [DomainEnergy(domain, domain, power_energy(samples, start_s, end_s, 3 * step_s))]

    return MeterRecording(source, path, samples[0].time_s, samples[-1].time_s, True, energies, notes)


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


# Recorded powercap zones. A file may hold several dumps. Each begins at a line `Timestamp | EPOCH`, or if a path occurs
# again.

_LEAVES = r"name|energy_uj|max_energy_range_uj|constraint_\d+_(?:max_power|power_limit)_uw"
_FILE = re.compile(rf"(?:\S*/)?(intel-rapl[^/\s]*)/({_LEAVES})")
_COUNTS = ("energy_uj", "max_energy_range_uj")
_LONGEST = 4096


class PowercapDump(msgspec.Struct, frozen=True):
    """One dump: zones by id, and their counters in µJ. `time_s` is its epoch time, None without a time stamp."""

    path: str
    line: int
    time_s: float | None
    zones: dict[str, Zone]
    energy_uj: dict[str, int | None]


def looks_like_powercap(text: str) -> bool:
    """Return whether the text contains files of RAPL zones."""
    lines = text[:200_000].splitlines()[:2000]
    return any("intel-rapl" in line and _FILE.search(line[:_LONGEST]) for line in lines)


@loader
def parse_powercap(text: str, path: Path | str) -> list[PowercapDump]:
    """Return the dumps of a text in its order. Raise DataError(path, reason, line) for a damaged text."""
    dumps: list[PowercapDump] = []
    files: dict[str, tuple[str, int]] = {}
    begin, time_s = 1, None
    for name, value, line in read_dump_cells(text, path, _FILE):
        is_stamp = name == STAMP
        if files and (is_stamp or name in files):
            dumps.append(_make_dump(files, time_s, begin, path))
            files, begin, time_s = {}, line, None
        if is_stamp:
            time_s, begin = parse_epoch(value or "", path, line), line
        else:
            files[name] = (value or "", line)
    if files:
        dumps.append(_make_dump(files, time_s, begin, path))
    if not dumps or not any(dump.zones for dump in dumps):
        raise DataError(path, "no RAPL energy counters in it", hint="a dump has lines like …/intel-rapl:0/energy_uj")
    return dumps


def _make_dump(files: dict[str, tuple[str, int]], time_s: float | None, begin: int, path: Path | str) -> PowercapDump:
    by_zone: dict[str, dict[str, str]] = {}
    energy: dict[str, int | None] = {}
    for name, (value, line) in files.items():
        match = _FILE.fullmatch(name)
        if match is None:
            continue
        zone_id, leaf = match[1], match[2]
        text = value.strip()
        if leaf in _COUNTS and text and whole(text) is None:
            raise DataError(path, f"{zone_id}/{leaf} is not a counter ({text[:30]!r})", line)
        by_zone.setdefault(zone_id, {})[leaf] = text
        if leaf == "energy_uj":
            energy[zone_id] = int(text) if text else None
    # A zone without a counter or a name may be a peer of the others: the sum without it is unknown.
    named = {zone_id: {"name": zone_id, "energy_uj": "", **leaves} for zone_id, leaves in by_zone.items()}
    zones = {zone_id: zone for zone_id, leaves in named.items() if (zone := make_zone(zone_id, leaves)) is not None}
    return PowercapDump(str(path), begin, time_s, zones, energy)


def _make_powercap_recording(dumps: Sequence[PowercapDump], elapsed_s: float | None) -> MeterRecording:
    """Return the dumps of all files, in the order of the command line, as one series of samples."""
    stamped = all(dump.time_s is not None for dump in dumps)
    if len(dumps) < 2:
        raise UsageError(
            f"{dumps[0].path}: one powercap dump has no energy in it: two are needed",
            "name the dumps in their order: --from BEFORE AFTER",
        )
    if not stamped and elapsed_s is None:
        raise UsageError("powercap dumps carry no time", "add --elapsed S, the seconds between two of them")
    times = [d.time_s if stamped and d.time_s is not None else i * (elapsed_s or 0.0) for i, d in enumerate(dumps)]
    for before, after, dump in zip(times, times[1:], dumps[1:], strict=False):
        if after <= before:
            raise DataError(dump.path, "time does not advance from the dump before", dump.line)
    zones: dict[str, Zone] = {}
    for dump in dumps:
        for zone_id, zone in dump.zones.items():
            known = zones.setdefault(zone_id, zone)
            name = zone.name if known.name == zone_id else known.name
            if zone.name not in (name, zone_id):
                raise DataError(dump.path, f"{zone_id} is {zone.name} here and {name} before", dump.line)
            zones[zone_id] = replace(known, name=name, range_uj=known.range_uj or zone.range_uj)
    unnamed = next((zone_id for zone_id, zone in zones.items() if zone.name == zone_id), None)
    if unnamed is not None:
        raise DataError(
            dumps[0].path,
            f"{unnamed} has a counter and no name: its part of the machine is unknown",
            hint="dump the files name, energy_uj and max_energy_range_uj of each zone",
        )
    domains, notes = select_domains(zones.values())
    _check_distances(domains, dumps, times)
    used = {domain.zone.id for domain in domains}

    def samples(zone_id: str, known_range: bool) -> list[CounterSample]:
        made = []
        for when, dump in zip(times, dumps, strict=True):
            value = dump.energy_uj.get(zone_id)
            gone = zone_id not in dump.zones
            if value is None:
                made.append(CounterSample(when, None, "gone" if gone else "unreadable"))
            else:
                made.append(CounterSample(when, value if known_range else None, None if known_range else "no_range"))
        return made

    def energies(start_s: float, end_s: float) -> list[DomainEnergy]:
        series = [samples(domain.zone.id, domain.zone.range_uj is not None) for domain in domains]
        return zone_energies(domains, series, start_s, end_s)

    path = dumps[0].path if len({d.path for d in dumps}) == 1 else f"{len(dumps)} powercap dumps"
    unused = [zone_id for zone_id in zones if zone_id not in used and "mmio" not in zone_id]
    return MeterRecording(
        "rapl",
        path,
        times[0],
        times[-1],
        stamped,
        energies,
        (*notes, *(f"{zone_id} is not counted" for zone_id in unused)),
    )


def _check_distances(domains: Sequence[Domain], dumps: Sequence[PowercapDump], times: Sequence[float]) -> None:
    """Raise DataError if two dumps are so far apart that a counter may have wrapped between them, unseen."""
    limits = [(d.zone.max_step_s, d.label) for d in domains if d.inside is None and d.zone.max_step_s is not None]
    longest_s, label = min(limits, default=(None, ""))
    if longest_s is None:
        return
    for before, after, dump in zip(times, times[1:], dumps[1:], strict=False):
        if after - before > longest_s:
            most_s, gap_s = math.floor(longest_s), after - before
            raise DataError(
                dump.path,
                f"{gap_s:.0f} s after the dump before: the counter of {label} may wrap unseen after {most_s} s",
                dump.line,
                f"take dumps at most {most_s} s apart",
            )


def _note_powertop(text: str, path: Path) -> str:
    reported = find_report_watts(text)
    if reported is None:
        return f"{path}: PowerTOP's report gives no watts"
    return f"{path}: PowerTOP's {reported[1]} {reported[0]:.2f} W, estimated; its report has no time to compare it with"


def replay(files: Sequence[Path], elapsed_s: float | None = None) -> EnergyResult:
    """Return the energy of recorded meters in the window that all of them cover.

    `elapsed_s` is the time between two powercap dumps without time stamps. Recordings without a common time are each
    summed over their own time, with a note. Raise DataError for a damaged file, UsageError for a missing time.
    """
    recordings, notes = read_recordings(files, elapsed_s)
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


# One window of this host's energy.


class EnergyInterrupted(WindowInterrupted):
    """SIGINT or SIGTERM ended the window early. `result` is the energy until then."""

    def __init__(self, message: str, partial: Window, result: EnergyResult) -> None:
        super().__init__(message, partial)
        self.result = result


def measure(request: EnergyRequest, duration_s: float) -> EnergyResult:
    """Meter this host for `duration_s` seconds.

    Raise CapabilityError if a named meter is missing or gives no figure, EnergyInterrupted on SIGINT and SIGTERM.
    """
    with WindowEnergy(request) as energy:
        start_s = time.monotonic()
        try:
            with WindowMeter(meters=energy.meters) as meter:
                window = meter.measure(duration_s)
        except WindowInterrupted as error:
            result = make_result(error.partial, energy, request.source, time.monotonic() - start_s)
            result = replace(result, ended=ended_by_signal(True))
            raise EnergyInterrupted(error.message, error.partial, result) from error
        return make_result(window, energy, request.source, time.monotonic() - start_s)


def make_result(window: Window, energy: WindowEnergy, choice: str, elapsed_s: float) -> EnergyResult:
    """Return the result of a window: its readings, with an estimate if no reading has a figure.

    `elapsed_s` replaces the window's length if its idle counters lack it.
    """
    notes = [f"energy source: {energy.source.why}", *energy.meter_notes()]
    if choice not in ("auto", "none", "model"):
        for name in energy.names:
            mine = [r for r in window.energy if r.source == name]
            if name != "meter_log" and all(r.joules is None for r in mine):
                reasons = energy.meter_notes_of(name)
                raise CapabilityError(
                    reasons[0] if reasons else f"{name}: present but it gave no figure",
                    "use another meter (--meter FILE), or the estimate (--meter model)",
                )
    completed = energy.complete(window)
    notes += energy.doubts_of(completed)
    return EnergyResult(
        started_at=window.started_at,
        energy_source=energy.source,
        window_s=elapsed_s if window.window_s is None else window.window_s,
        meters=completed.energy,
        total=host_energy(completed.energy),
        notes=notes,
    )
