"""Recorded meters through the same code as live ones: what a file is, its time axis, its energies in a window."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from powerprof.energy.domains import contained, host_energy
from powerprof.energy.meters import make_readings
from powerprof.energy.reconcile import reconcile
from powerprof.energy.result import EnergyResult
from powerprof.errors import DataError, UsageError
from powerprof.files import read_outside_text
from powerprof.records import EnergyReading
from powerprof.sources.counters import CounterSample
from powerprof.sources.ipmi import looks_like_ipmi, parse_ipmi
from powerprof.sources.meter import DomainEnergy
from powerprof.sources.meter_log import looks_like_meter_log, parse_meter_log
from powerprof.sources.powercap_dump import PowercapDump, looks_like_powercap, parse_powercap
from powerprof.sources.powertop_meter import report_watts
from powerprof.sources.rapl import Zone, select_domains
from powerprof.sources.series import PowerSample, counter_energy, power_energy
from powerprof.sources.turbostat import TurbostatLog, looks_like_turbostat, parse_turbostat
from powerprof.sources.turbostat_meter import domain_intervals, log_energies


@dataclass(frozen=True)
class Recording:
    """One recorded meter. `start_s` to `end_s` is what it covers, in epoch seconds if `has_epoch`."""

    source: str
    path: str
    start_s: float
    end_s: float
    has_epoch: bool
    energies: Callable[[float, float], list[DomainEnergy]]
    notes: tuple[str, ...] = ()


def replay(files: Sequence[Path], elapsed_s: float | None = None) -> EnergyResult:
    """Energy of recorded meters in the window that all of them cover.

    `elapsed_s` is the time between two powercap dumps, which carry none. Recordings without a common time are each
    given over their own time, and the notes say so. Raises DataError on a damaged file, UsageError where a time is
    missing.
    """
    recordings, notes = read_recordings(files, elapsed_s)
    common = _common_window(recordings)
    readings: list[EnergyReading] = []
    if common is None and len(recordings) > 1:
        spans = "; ".join(f"{r.source} {r.path} {r.end_s - r.start_s:.1f} s" for r in recordings)
        notes.append(f"no common time: each is given over its own ({spans})")
    for recording in recordings:
        start_s, end_s = common or (recording.start_s, recording.end_s)
        made, said = make_readings(recording.source, recording.energies(start_s, end_s), start_s, end_s)
        readings += made
        notes += [*(f"{recording.path}: {note}" for note in recording.notes), *said]
    readings = contained(readings)
    notes += reconcile(readings)
    window_s = common[1] - common[0] if common else None
    return EnergyResult(
        window_s=window_s, meters=readings, total=host_energy(readings), notes=list(dict.fromkeys(notes))
    )


def read_recordings(files: Sequence[Path], elapsed_s: float | None) -> tuple[list[Recording], list[str]]:
    """What each file is, by its content; all powercap dumps together are one recording."""
    recordings: list[Recording] = []
    dumps: list[PowercapDump] = []
    notes: list[str] = []
    for path in files:
        text = read_outside_text(path)
        if looks_like_turbostat(text):
            recordings.append(_turbostat(parse_turbostat(text, path)))
        elif looks_like_powercap(text):
            dumps += parse_powercap(text, path)
        elif looks_like_ipmi(text):
            ipmi = parse_ipmi(text, path)
            recordings.append(
                _power(
                    "ipmi", "server", str(path), ipmi.samples, ipmi.step_s, (f"read from {ipmi.sensor}", *ipmi.notes)
                )
            )
        elif "PowerTOP Version" in text[:4096]:
            notes.append(_powertop(text, path))
        elif "\t" in text and looks_damaged_turbostat(text):
            parse_turbostat(text, path)
        elif looks_like_meter_log(text):
            wall = parse_meter_log(text, path)
            made = _power("meter_log", "wall", str(path), wall.samples, wall.step_s, wall.notes)
            recordings.append(replace(made, has_epoch=wall.has_epoch))
        else:
            raise DataError(
                path,
                "no energy recording: neither turbostat, powercap, IPMI nor a wall meter's CSV",
                hint="a CSV log has a header such as time,watts",
            )
    if dumps:
        recordings.append(_powercap(dumps, elapsed_s))
    elif elapsed_s is not None:
        raise UsageError("--elapsed is the time between powercap dumps, and there is none among these files")
    if not recordings and not notes:
        raise UsageError("no recordings were named", "powerprof energy --from FILE…")
    walls = [r for r in recordings if r.source == "meter_log"]
    if len(walls) > 1:
        raise UsageError("two wall meter logs: which of them contains which cannot be known", "name one of them")
    return recordings, notes


def looks_damaged_turbostat(text: str) -> bool:
    """Whether turbostat's columns are in it though its header cannot be read: it is to be refused by its line."""
    return "Busy%" in text or "PkgWatt" in text


def _common_window(recordings: Sequence[Recording]) -> tuple[float, float] | None:
    if not recordings or (len(recordings) > 1 and not all(r.has_epoch for r in recordings)):
        return None
    start_s = max(r.start_s for r in recordings)
    end_s = min(r.end_s for r in recordings)
    return (start_s, end_s) if end_s > start_s else None


def _power(
    source: str, domain: str, path: str, samples: Sequence[PowerSample], step_s: float, notes: tuple[str, ...]
) -> Recording:
    def energies(start_s: float, end_s: float) -> list[DomainEnergy]:
        return [DomainEnergy(domain, power_energy(samples, start_s, end_s, 3 * step_s))]

    return Recording(source, path, samples[0].time_s, samples[-1].time_s, True, energies, notes)


def _turbostat(log: TurbostatLog) -> Recording:
    spans = [interval for intervals, _ in domain_intervals(log).values() for interval in intervals]
    has_epoch = all(interval.time_s is not None for interval in log.intervals)

    def energies(start_s: float, end_s: float) -> list[DomainEnergy]:
        return log_energies(log, start_s, end_s)

    notes = list(log.notes)
    rows = [i for i in log.intervals if i.system is not None and "PkgWatt" in i.system.values and i.duration_s]
    if rows:
        weight = sum(i.duration_s or 0.0 for i in rows)
        mean = sum(i.system.values["PkgWatt"] * (i.duration_s or 0.0) for i in rows if i.system) / weight
        notes.append(f"turbostat's own summary rows: {mean:.1f} W package over {len(rows)} intervals")
    return Recording(
        "turbostat",
        log.path,
        min(s.start_s for s in spans),
        max(s.end_s for s in spans),
        has_epoch,
        energies,
        tuple(notes),
    )


def _powercap(dumps: Sequence[PowercapDump], elapsed_s: float | None) -> Recording:
    """The dumps of all files as one series of samples, in the order in which they were named."""
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
            if known.name != zone.name:
                raise DataError(dump.path, f"{zone_id} is {zone.name} here and {known.name} before", dump.line)
            if known.range_uj is None and zone.range_uj is not None:
                zones[zone_id] = zone
    domains, notes = select_domains(zones.values())
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
        return [
            DomainEnergy(
                domain.label,
                counter_energy(
                    samples(domain.zone.id, domain.zone.range_uj is not None),
                    start_s,
                    end_s,
                    joules_per_unit=1e-6,
                    modulus=domain.zone.modulus,
                    limit_watts=domain.zone.limit_watts,
                ),
                domain.inside,
            )
            for domain in domains
        ]

    path = dumps[0].path if len({d.path for d in dumps}) == 1 else f"{len(dumps)} powercap dumps"
    unused = [zone_id for zone_id in zones if zone_id not in used and "mmio" not in zone_id]
    return Recording(
        "rapl",
        path,
        times[0],
        times[-1],
        stamped,
        energies,
        (*notes, *(f"{zone_id} is not counted" for zone_id in unused)),
    )


def _powertop(text: str, path: Path) -> str:
    found = report_watts(text)
    if found is None:
        return f"{path}: PowerTOP's report gives no watts"
    return f"{path}: PowerTOP's {found[1]} {found[0]:.2f} W, estimated; its report has no time to compare it by"
