# SPDX-License-Identifier: Apache-2.0
"""RAPL through powercap: energy counters that wrap, found by what their `name` file says.

ΔE = (new − old) mod (max_energy_range_uj + 1) (Documentation/power/powercap/powercap.rst). `energy_uj` is
readable by root only since Linux 5.10 (CVE-2020-8694). Zones of `intel-rapl-mmio` (and -tpmi) repeat those of
`intel-rapl`: a name that is there twice is used once.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from powerprof.energy.meter import DomainEnergy, distinct_names, rapl_scope
from powerprof.measure.counters import (
    PACKAGE_WATTS,
    CounterSample,
    EnergySeries,
    choose_interval_s,
    counter_energy,
    drop_old_samples,
)
from powerprof.system import paths
from powerprof.system.errors import CapabilityError, DataError, PowerprofError
from powerprof.system.files import loader, read_int, try_int, try_text, whole

_CONTROL_TYPES = ("intel-rapl", "intel-rapl-tpmi", "intel-rapl-mmio")
# A package that drew this would wrap a 65,536 J counter (15.3 µJ units) in 65 s: half of it limits sampling.
_WORST_WATTS = 1000.0
_JOULES_PER_UNIT = 1e-6
_PSYS_WATTS = 5 * PACKAGE_WATTS
# constraint_0_max_power_uw is the TDP; laptops boost to four times theirs for seconds (15 W parts with 64 W). A limit
# that firmware leaves open is stated as thousands of watts.
_ABOVE_STATED = 4.5
_LEAST_LIMIT_WATTS = 100.0
_OPEN_LIMIT_UW = 2_000_000_000
# What a platform may draw where its packages draw all they can: memory, fans, losses, a graphics card of a desktop.
_AROUND_CPUS = 1.5
_AROUND_CPUS_WATTS = 200.0


@dataclass(frozen=True)
class Zone:
    """One powercap zone: `id` as `intel-rapl:0:0`, `name` as its file says (package-0, core, dram, psys, ...).

    `stated_uw` is the largest power that its constraints name, in µW; None where they name none.
    """

    id: str
    name: str
    parent: str | None
    range_uj: int | None
    stated_uw: int | None = None

    @property
    def modulus(self) -> int | None:
        """Number of values of the counter; None where its wrap point is unknown."""
        return None if self.range_uj is None else self.range_uj + 1

    @property
    def limit_watts(self) -> float:
        """More than this it cannot draw: by what its constraints state, and by what is sold at all."""
        most = _PSYS_WATTS if rapl_scope(self.name) == "psys" else PACKAGE_WATTS
        if self.stated_uw is None:
            return most
        return min(max(_ABOVE_STATED * self.stated_uw * 1e-6, _LEAST_LIMIT_WATTS), most)


@dataclass(frozen=True)
class Domain:
    """A zone that is used, with the name under which it is reported and the one that includes it."""

    zone: Zone
    label: str
    inside: str | None
    limit_watts: float


def select_domains(zones: Iterable[Zone]) -> tuple[list[Domain], list[str]]:
    """Choose the zones to read, in an order that does not depend on theirs; notes say what was dropped."""
    notes: list[str] = []
    used: dict[tuple[str, str | None], Zone] = {}
    by_id = {zone.id: zone for zone in zones}
    known = [zone for zone in by_id.values() if _control_type(zone.id) in _CONTROL_TYPES]
    # A package that one control type has whole may be there by its dies in another: of each scope one of them counts.
    owners: dict[str, str] = {}
    for zone in sorted(known, key=lambda z: (_CONTROL_TYPES.index(_control_type(z.id)), z.name, z.id)):
        parent = by_id.get(zone.parent or "")
        key = (zone.name, parent.name if parent else None)
        owner = owners.setdefault(rapl_scope(zone.name), _control_type(zone.id))
        if owner != _control_type(zone.id):
            repeated = used[key].id if key in used else f"zones of {owner}"
            notes.append(f"rapl: {zone.id} ({zone.name}) repeats {repeated} and is not counted")
            continue
        if key in used:
            # Two zones of one control type may share a name (psys of two sockets): tell them apart by their ids.
            key = (f"{zone.name}@{zone.id}", key[1])
        used[key] = zone
    labels = distinct_names(list(used))
    label_of = {zone.id: label for label, zone in zip(labels, used.values(), strict=True)}
    # A platform's counter in wrong units shows kilowatts: what the CPUs can draw bounds it.
    packages = [zone.limit_watts for zone in used.values() if rapl_scope(zone.name) == "package"]
    platform = _AROUND_CPUS * sum(packages) + _AROUND_CPUS_WATTS if packages else _PSYS_WATTS
    # A dram zone lies in its package's folder, and yet a package's counter does not include it (SDM 15.10.1).
    domains = [
        Domain(
            zone,
            label,
            label_of.get(zone.parent or "") if zone.name in ("core", "uncore") else None,
            min(zone.limit_watts, platform) if rapl_scope(zone.name) == "psys" else zone.limit_watts,
        )
        for label, zone in zip(labels, used.values(), strict=True)
    ]
    return sorted(domains, key=lambda d: d.label), notes


def _control_type(zone_id: str) -> str:
    return zone_id.split(":", 1)[0]


def make_zone(zone_id: str, files: Mapping[str, str]) -> Zone | None:
    """A zone from its files' texts; None for a control type's own folder and for zones without a counter."""
    if ":" not in zone_id or "name" not in files or "energy_uj" not in files:
        return None
    parent = zone_id.rsplit(":", 1)[0]
    text = files.get("max_energy_range_uj", "").strip()
    range_uj = whole(text) or None
    stated = [whole(text.strip()) for name, text in files.items() if name.startswith("constraint_")]
    powers = [power for power in stated if power is not None and 0 < power < _OPEN_LIMIT_UW]
    return Zone(
        zone_id, files["name"].strip(), parent if ":" in parent else None, range_uj, max(powers) if powers else None
    )


def _zone_folders(root: Path) -> dict[str, Path]:
    """Zone folders by id: flat links in /sys/class/powercap, or nested as in /sys/devices/virtual/powercap."""
    folders: dict[str, Path] = {}
    pending = [root]
    for _ in range(4):
        level: list[Path] = []
        for folder in pending:
            try:
                children = sorted(folder.iterdir())
            except OSError:
                continue
            for child in children:
                if child.name.startswith("intel-rapl") and child.name not in folders:
                    folders[child.name] = child
                    level.append(child)
        pending = level
    return {name: folder for name, folder in folders.items() if ":" in name}


class RaplMeter:
    """RAPL domains of this host, read from sysfs."""

    name = "rapl"

    def __init__(self, domains: list[Domain], folders: Mapping[str, Path], notes: list[str], root: Path) -> None:
        self._domains = domains
        self._files = [folders[d.zone.id] / "energy_uj" for d in domains]
        self._samples: list[list[CounterSample]] = [[] for _ in domains]
        self._notes = notes
        self._root = root
        self._known = set(folders)
        self._types = {_control_type(d.zone.id) for d in domains if rapl_scope(d.zone.name) == "package"}
        ranges = [d.zone.range_uj for d in domains if d.zone.range_uj is not None]
        self._wrap_s: float | None = min(ranges) * 1e-6 / _WORST_WATTS / 2 if ranges else None

    @property
    def max_interval_s(self) -> float | None:
        looks = [value for value in (self._wrap_s, choose_interval_s(self._samples)) if value is not None]
        return min(looks, default=None)

    def sample(self, now_s: float) -> None:
        for domain, file, samples in zip(self._domains, self._files, self._samples, strict=True):
            try:
                value = read_int(file)
            except PowerprofError:
                samples.append(CounterSample(now_s, None, "unreadable" if file.exists() else "gone"))
                continue
            known = domain.zone.modulus is not None
            samples.append(CounterSample(now_s, value if known else None, None if known else "no_range"))

    def is_counting(self) -> bool | None:
        if len(self._samples[0]) < 2:
            return None
        return any(len({s.value for s in samples if s.value is not None}) > 1 for samples in self._samples)

    def energies(self, start_s: float, end_s: float) -> list[DomainEnergy]:
        return [
            DomainEnergy(
                domain.label,
                rapl_scope(domain.zone.name),
                counter_energy(
                    samples,
                    start_s,
                    end_s,
                    joules_per_unit=_JOULES_PER_UNIT,
                    modulus=domain.zone.modulus,
                    max_step_s=self._wrap_s,
                    limit_watts=domain.limit_watts,
                ),
                domain.inside,
            )
            for domain, samples in zip(self._domains, self._samples, strict=True)
        ] + self._appeared(start_s, end_s)

    def _appeared(self, start_s: float, end_s: float) -> list[DomainEnergy]:
        """Packages that were plugged in since: a sum without them would be too small, and what they drew is unknown."""
        added = []
        for zone_id, folder in _zone_folders(self._root).items():
            name = try_text(folder / "name") if zone_id not in self._known else None
            if name is not None and _control_type(zone_id) in self._types and rapl_scope(name) == "package":
                note = "appeared after measuring began: no figure"
                added.append(DomainEnergy(name, "package", EnergySeries(None, start_s, end_s, 0, (note,))))
        return added

    def drop_samples(self, before_s: float) -> None:
        for samples in self._samples:
            drop_old_samples(samples, before_s)

    def notes(self) -> list[str]:
        return list(self._notes)

    def close(self) -> None:
        self._samples = [[] for _ in self._domains]


def open_rapl() -> RaplMeter:
    """The RAPL domains of this host. Raises CapabilityError where there are none that this user may read."""
    root = paths.sysfs() / "class/powercap"
    folders = _zone_folders(root)
    zones: list[Zone] = []
    refused: list[Path] = []
    for zone_id, folder in folders.items():
        counter = folder / "energy_uj"
        if not counter.exists():
            continue
        if try_int(counter) is None:
            refused.append(counter)
        limits = [file.name for file in folder.glob("constraint_*_power*_uw")]
        texts = {name: try_text(folder / name) for name in ("name", "max_energy_range_uj", *limits)}
        zone = make_zone(zone_id, {"energy_uj": "", **{k: v for k, v in texts.items() if v is not None}})
        if zone is not None:
            zones.append(zone)
    domains, notes = select_domains(zones)
    if refused and len(refused) == len(zones):
        raise CapabilityError(
            f"rapl: {refused[0]} cannot be read: only root may since Linux 5.10",
            "run as root, or: chmod -R a+r /sys/class/powercap/intel-rapl:*/energy_uj",
        )
    if not domains:
        raise CapabilityError(
            f"rapl: no RAPL energy counters in {root} (a virtual machine, or the driver is not loaded)",
            "modprobe intel_rapl_msr; where that fails use another meter (--meter-log FILE) or the estimate",
        )
    notes += [f"rapl: {path} cannot be read: what it counts is unknown" for path in refused]
    return RaplMeter(domains, folders, notes, root)


# Recorded powercap zones: dumps of sysfs as `path|value` lines, `path:` blocks, or `path:value` lines of grep.
#
# A file may hold several dumps one after the other: each begins at a line `Timestamp | EPOCH`, or where a path comes
# again.

_LEAVES = r"name|energy_uj|max_energy_range_uj|constraint_\d+_(?:max_power|power_limit)_uw"
_FILE = re.compile(rf"(?:.*/)?(intel-rapl[^/]*)/({_LEAVES})")
_STAMP = re.compile(r"Timestamp\s*\|\s*([\d.]+)\s*")
_COUNTS = ("energy_uj", "max_energy_range_uj")
_LONGEST = 4096


@dataclass(frozen=True)
class PowercapDump:
    """One dump: zones by id with their counters in µJ. `time_s` is its epoch time, None where it says none."""

    path: str
    line: int
    time_s: float | None
    zones: dict[str, Zone]
    energy_uj: dict[str, int | None]


def looks_like_powercap(text: str) -> bool:
    """Whether the text has RAPL zones' files in it."""
    lines = text[:200_000].splitlines()[:2000]
    return any("intel-rapl" in line and _FILE.search(line[:_LONGEST]) for line in lines)


@loader
def parse_powercap(text: str, path: Path | str) -> list[PowercapDump]:
    """The dumps of a text, in its order. Raises DataError(path, reason, line)."""
    dumps: list[PowercapDump] = []
    files: dict[str, tuple[str, int]] = {}
    begin, when = 1, None
    for name, value, line in _cells(text, path):
        stamp = name == "Timestamp"
        if files and (stamp or name in files):
            dumps.append(_dump(files, when, begin, path))
            files, begin, when = {}, line, None
        if stamp:
            when, begin = float(value), line
        else:
            files[name] = (value, line)
    if files:
        dumps.append(_dump(files, when, begin, path))
    if not dumps or not any(dump.zones for dump in dumps):
        raise DataError(path, "no RAPL energy counters in it", hint="a dump has lines like …/intel-rapl:0/energy_uj")
    return dumps


def _cells(text: str, path: Path | str) -> Iterator[tuple[str, str, int]]:
    """(path, value, line) of every file that matters here, and the time stamps."""
    pending: str | None = None
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw.strip()
        if len(line) > _LONGEST:
            raise DataError(path, "line too long", number)
        stamp = _STAMP.fullmatch(line)
        if stamp:
            pending = None
            try:
                yield "Timestamp", str(float(stamp[1])), number
            except ValueError:
                raise DataError(path, f"not an epoch time: {stamp[1][:30]!r}", number) from None
            continue
        if pending is not None and line and not _is_path(line):
            yield pending, line, number
            pending = None
            continue
        pending = None
        name, bar, value = line.partition("|")
        if bar and _FILE.fullmatch(name):
            yield name, value, number
        elif line.endswith(":") and _FILE.fullmatch(line[:-1]):
            pending = line[:-1]
        elif not bar:
            match = re.fullmatch(rf"(\S*/(?:{_LEAVES})):(.*)", line)
            if match and _FILE.fullmatch(match[1]):
                yield match[1], match[2], number


def _is_path(line: str) -> bool:
    return line.startswith("/") or _FILE.match(line) is not None


def _dump(files: dict[str, tuple[str, int]], when: float | None, begin: int, path: Path | str) -> PowercapDump:
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
    zones = {zone_id: zone for zone_id, leaves in by_zone.items() if (zone := make_zone(zone_id, leaves)) is not None}
    return PowercapDump(str(path), begin, when, zones, energy)
