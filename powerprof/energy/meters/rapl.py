# SPDX-License-Identifier: Apache-2.0
"""RAPL energy counters as powercap zones.

A counter wraps: ΔE = (new − old) mod (max_energy_range_uj + 1) (Documentation/power/powercap/powercap.rst). Only root
may read `energy_uj` since Linux 5.10 (CVE-2020-8694). The zones of `intel-rapl-mmio` and `intel-rapl-tpmi` repeat zones
of `intel-rapl`; each name is used once. Counters that move alike are one counter: AMD's kernels list the counter of a
socket once per die.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import msgspec
from msgspec.structs import replace

from powerprof.energy.layouts import SUMMED, UNKNOWN_TOPOLOGY, Topology, rapl_scope, read_topology
from powerprof.energy.meters.meter import DomainEnergy, SampledMeter, UnusableMeterError, distinct_names, is_any_moving
from powerprof.energy.mirrors import merge_mirrored
from powerprof.measure.counters import PACKAGE_WATTS, PSYS_WATTS, CounterSample, choose_interval_s
from powerprof.measure.energy_series import EnergySeries, counter_energy
from powerprof.system import paths
from powerprof.system.errors import CapabilityError, PowerprofError
from powerprof.system.files import read_int, try_int, try_text
from powerprof.system.foreign_text import whole

_CONTROL_TYPES = ("intel-rapl", "intel-rapl-tpmi", "intel-rapl-mmio")
# A package with this power wraps a 65,536 J counter (15.3 µJ units) in 65 s. Half of that limits the sampling interval.
_WORST_WATTS = 1000.0
# constraint_0_max_power_uw is the TDP. Laptops boost to about four times their TDP for seconds (15 W parts to 64 W).
# Firmware states an open limit as thousands of watts.
_ABOVE_STATED = 4.5
_LEAST_LIMIT_WATTS = 100.0
_OPEN_LIMIT_UW = 2_000_000_000
# No package or memory draws more than this for minutes. A longer step may hide a wrap.
_SUSTAINED_WATTS = 600.0
# The largest power of a platform above that of its packages: memory, fans, losses, a desktop's graphics card.
_AROUND_CPUS = 1.5
_AROUND_CPUS_WATTS = 200.0


class Zone(msgspec.Struct, frozen=True):
    """One powercap zone.

    Attributes:
        id: such as `intel-rapl:0:0`.
        name: the content of its `name` file: package-0, core, dram, psys, ...
        range_uj: the largest value of its counter in µJ.
        stated_uw: the largest power of its constraints in µW. None without such a constraint.
    """

    id: str
    name: str
    parent: str | None
    range_uj: int | None
    stated_uw: int | None = None

    @property
    def modulus(self) -> int | None:
        """The number of values of the counter. None if its wrap point is unknown."""
        return None if self.range_uj is None else self.range_uj + 1

    @property
    def max_step_s(self) -> float | None:
        """The longest step that cannot hide a wrap at a possible mean power. None without a range."""
        most = self.limit_watts if rapl_scope(self.name) == "psys" else min(self.limit_watts, _SUSTAINED_WATTS)
        return None if self.modulus is None else self.modulus * 1e-6 / most

    @property
    def limit_watts(self) -> float:
        """The largest possible power, by its stated constraints and by the largest processors on sale."""
        most = PSYS_WATTS if rapl_scope(self.name) == "psys" else PACKAGE_WATTS
        if self.stated_uw is None:
            return most
        return min(max(_ABOVE_STATED * self.stated_uw * 1e-6, _LEAST_LIMIT_WATTS), most)


class Domain(msgspec.Struct, frozen=True):
    """A selected zone, the label of its readings, and the label of the domain that includes it.

    `flaw` is the reason why the domains of its scope have no total.
    """

    zone: Zone
    label: str
    inside: str | None
    limit_watts: float
    flaw: str | None = None


def select_domains(zones: Iterable[Zone]) -> tuple[list[Domain], list[str]]:
    """Return the zones to read, ordered by label, and notes on those that repeat others."""
    notes: list[str] = []
    used: dict[tuple[str, str | None], Zone] = {}
    by_id = {zone.id: zone for zone in zones}
    rapl_zones = [zone for zone in by_id.values() if _type_of(zone.id) in _CONTROL_TYPES]
    # One control type may list a whole package and another its dies. Of each scope only one type counts.
    owners: dict[str, str] = {}
    repeated_zones: list[Zone] = []
    for zone in sorted(rapl_zones, key=lambda z: (_CONTROL_TYPES.index(_type_of(z.id)), z.name, z.id)):
        parent = by_id.get(zone.parent or "")
        key = (zone.name, parent.name if parent else None)
        owner = owners.setdefault(rapl_scope(zone.name), _type_of(zone.id))
        if owner != _type_of(zone.id):
            repeated = used[key].id if key in used else f"zones of {owner}"
            repeated_zones.append(zone)
            notes.append(f"rapl: {zone.id} ({zone.name}) repeats {repeated} and is not counted")
            continue
        if key in used:
            # Two zones of one control type may share a name (psys of two sockets). Their ids distinguish them.
            key = (f"{zone.name}@{zone.id}", key[1])
        used[key] = zone
    labels = distinct_names(list(used))
    label_of = {zone.id: label for label, zone in zip(labels, used.values(), strict=True)}
    # A platform counter in wrong units shows kilowatts. The limits of the CPUs bound it.
    packages = [zone.limit_watts for zone in used.values() if rapl_scope(zone.name) == "package"]
    platform = _AROUND_CPUS * sum(packages) + _AROUND_CPUS_WATTS if packages else PSYS_WATTS
    flaws = _find_unpaired(used.values(), repeated_zones, by_id)
    # A dram zone is in its package's folder, but the package's counter does not include it (SDM 15.10.1).
    domains = [
        Domain(
            zone,
            label,
            label_of.get(zone.parent or "") if zone.name in ("core", "uncore") else None,
            min(zone.limit_watts, platform) if rapl_scope(zone.name) == "psys" else zone.limit_watts,
            flaws.get(rapl_scope(zone.name)),
        )
        for label, zone in zip(labels, used.values(), strict=True)
    ]
    return sorted(domains, key=lambda d: d.label), notes


def _find_unpaired(used: Iterable[Zone], repeated: Iterable[Zone], by_id: Mapping[str, Zone]) -> dict[str, str]:
    """Return by scope why the zones are incomplete: one control type has a package that the selected one lacks.

    A zone of a name that no kernel gives may be a package too.
    """

    def package_of(zone: Zone) -> tuple[str, str]:
        outer = by_id.get(zone.parent or "", zone)
        return rapl_scope(zone.name), re.sub(r"-die-\d+", "", outer.name)

    known = {package_of(zone) for zone in used}
    flaws: dict[str, str] = {}
    for zone in repeated:
        scope, name = package_of(zone)
        if scope in ("package", "dram") and (scope, name) not in known:
            flaws.setdefault("package", f"{zone.id} has {name} and the zones that it repeats do not")
    for zone in by_id.values():
        if _type_of(zone.id) in _CONTROL_TYPES and zone.parent is None and rapl_scope(zone.name) not in SUMMED:
            for scope in ("package", "psys"):
                flaws.setdefault(scope, f"{zone.id} has the name {zone.name[:40]!r}, and no kernel's zone is called so")
    return flaws


def _type_of(zone_id: str) -> str:
    return zone_id.split(":", 1)[0]


def make_zone(zone_id: str, files: Mapping[str, str]) -> Zone | None:
    """Return a zone from the text of its files. None for a control type's folder and for a zone without a counter."""
    if ":" not in zone_id or "name" not in files or "energy_uj" not in files:
        return None
    parent = zone_id.rsplit(":", 1)[0]
    range_uj = whole(files.get("max_energy_range_uj", "").strip()) or None
    stated = [whole(text.strip()) for name, text in files.items() if name.startswith("constraint_")]
    powers = [power for power in stated if power is not None and 0 < power < _OPEN_LIMIT_UW]
    return Zone(
        zone_id, files["name"].strip(), parent if ":" in parent else None, range_uj, max(powers) if powers else None
    )


def _find_zone_folders(root: Path) -> dict[str, Path]:
    """Return zone folders by id: flat links in /sys/class/powercap, or nested as in /sys/devices/virtual/powercap."""
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


class RaplMeter(SampledMeter[CounterSample]):
    """The powercap RAPL domains of this host."""

    name = "rapl"

    def __init__(self, domains: list[Domain], folders: Mapping[str, Path], notes: list[str], root: Path) -> None:
        super().__init__(len(domains), notes)
        self._domains = domains
        self._files = [folders[d.zone.id] / "energy_uj" for d in domains]
        self._root = root
        self._zone_ids = set(folders)
        self._types = {(_type_of(d.zone.id), rapl_scope(d.zone.name)) for d in domains}
        ranges = [d.zone.range_uj for d in domains if d.zone.range_uj is not None]
        self._wrap_s: float | None = min(ranges) * 1e-6 / _WORST_WATTS / 2 if ranges else None

    @property
    def max_interval_s(self) -> float | None:
        intervals = (self._wrap_s, choose_interval_s(self._samples))
        return min((interval for interval in intervals if interval is not None), default=None)

    def sample(self, now_s: float) -> None:
        for domain, file, samples in zip(self._domains, self._files, self._samples, strict=True):
            try:
                value = read_int(file)
            except PowerprofError:
                is_gone = not file.exists() and any(sample.value is not None for sample in samples)
                samples.append(CounterSample(now_s, None, "gone" if is_gone else "unreadable"))
                continue
            has_range = domain.zone.modulus is not None
            samples.append(CounterSample(now_s, value if has_range else None, None if has_range else "no_range"))

    def is_counting(self) -> bool | None:
        return is_any_moving(self._samples)

    def energies(self, start_s: float, end_s: float) -> list[DomainEnergy]:
        appeared = self._find_appeared_zones(start_s, end_s)
        return zone_energies(self._domains, self._samples, start_s, end_s, read_topology()) + appeared

    def _find_appeared_zones(self, start_s: float, end_s: float) -> list[DomainEnergy]:
        """Return zones of the sum that came after opening, without joules: they make the total unknown."""
        zones = []
        labels = {domain.label for domain in self._domains}
        for zone_id, folder in _find_zone_folders(self._root).items():
            name = try_text(folder / "name") if zone_id not in self._zone_ids else None
            scope = rapl_scope(name or "")
            if name is not None and scope in SUMMED and (_type_of(zone_id), scope) in self._types:
                note = "appeared after measuring began: no figure"
                name = f"{name}@{zone_id}" if name in labels else name
                zones.append(DomainEnergy(name, scope, EnergySeries(None, start_s, end_s, 0, (note,), is_absent=True)))
        return zones


def zone_energies(
    domains: Sequence[Domain],
    samples_of: Sequence[Sequence[CounterSample]],
    start_s: float,
    end_s: float,
    topology: Topology = UNKNOWN_TOPOLOGY,
) -> list[DomainEnergy]:
    """Return the energy of each zone in a window. Zones that repeat one counter are counted once."""
    energies = []
    for domain, samples in zip(domains, samples_of, strict=True):
        energy = counter_energy(
            samples,
            start_s,
            end_s,
            joules_per_unit=1e-6,
            modulus=domain.zone.modulus,
            max_step_s=domain.zone.max_step_s,
            limit_watts=domain.limit_watts,
        )
        energies.append(DomainEnergy(domain.label, rapl_scope(domain.zone.name), energy, domain.inside, domain.flaw))
    owners = [domain.zone.parent or domain.zone.id for domain in domains]
    packages = {domain.zone.id: domain.label for domain in domains}
    moduli = [domain.zone.modulus for domain in domains]
    return merge_mirrored(energies, [packages.get(o, "") for o in owners], samples_of, moduli, 1e-6, topology)


def open_rapl() -> RaplMeter:
    """Open the powercap domains of this host. Raise CapabilityError without a readable domain."""
    root = paths.sysfs() / "class/powercap"
    folders = _find_zone_folders(root)
    zones: list[Zone] = []
    unreadable: list[Path] = []
    for zone_id, folder in folders.items():
        if try_int(folder / "energy_uj") is None:
            unreadable.append(folder / "energy_uj")
        limits = [file.name for file in folder.glob("constraint_*_power*_uw")]
        texts = {name: try_text(folder / name) for name in ("name", "max_energy_range_uj", *limits)}
        # A zone without a counter or a name may be a peer of the others: the sum without it is unknown.
        known = {"name": zone_id, **{name: text for name, text in texts.items() if text}, "energy_uj": ""}
        zone = make_zone(zone_id, known)
        if zone is not None and (zone.parent is None or zone.name in ("core", "uncore", "dram")):
            zones.append(zone)
    if all(not (folder / "energy_uj").exists() for folder in folders.values()):
        zones = []
    domains, notes = select_domains(zones)
    if folders and all(folder.is_symlink() and not folder.exists() for folder in folders.values()):
        # Container engines mask /sys/devices/virtual/powercap, and the links to it stay.
        raise UnusableMeterError(
            f"rapl: the zones in {root} lead nowhere: this container hides the host's counters",
            "run powerprof on the host, or start the container with the security option systempaths=unconfined",
        )
    if unreadable and len(unreadable) == len(zones):
        raise UnusableMeterError(
            f"rapl: {unreadable[0]} cannot be read: only root may since Linux 5.10",
            "run as root, or: chmod -R a+r /sys/class/powercap/intel-rapl:*/energy_uj",
        )
    if not domains:
        raise CapabilityError(
            f"rapl: no RAPL energy counters in {root} (a virtual machine, or the driver is not loaded)",
            "modprobe intel_rapl_msr; if that fails, use another meter (--meter FILE) or the estimate",
        )
    notes += [f"rapl: {path} cannot be read, so its domain is unknown" for path in unreadable]
    domains = [
        replace(domain, flaw=f"{domain.label} cannot be read ({folders[domain.zone.id] / 'energy_uj'})")
        if folders[domain.zone.id] / "energy_uj" in unreadable
        else domain
        for domain in domains
    ]
    return RaplMeter(domains, folders, notes, root)
