"""hwmon energy (`energyN_input`, µJ) and power (`powerN_average` or `powerN_input`, µW) channels.

Chips name their channels as they like (Documentation/hwmon/sysfs-interface.rst): a channel that sums up the others
of its chip is found by its label, and the others are said to be inside it. Chips of batteries are left to the
battery meter; those of graphics cards, disks and the like are reported as devices and never counted as the host's.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from powerprof import paths
from powerprof.errors import CapabilityError, PowerprofError
from powerprof.files import read_int, try_int, try_text
from powerprof.sources.counters import CounterSample
from powerprof.sources.meter import DomainEnergy, distinct_names
from powerprof.sources.series import PowerSample, counter_energy, power_energy

_IGNORED = re.compile(r"BAT|AC\b|ACAD|ADP|ucsi|hidpp|wacom", re.I)
_DEVICES = re.compile(r"amdgpu|radeon|nouveau|i915|xe$|nvme|drivetemp|mlx|bnxt|nvidia|habanalabs|sfp", re.I)
# acpi_power_meter's chip: the whole machine's input (drivers/hwmon/acpi_power_meter.c).
_SERVER_CHIPS = ("power_meter",)
# amd_energy: Esocket0 sums Ecore000...; ibmpowernv: System; ina3221 boards: VDD_IN, POM_5V_IN; altra: SoC power.
_AGGREGATE = re.compile(r"\b(total|system|sum|soc|cpu power|vdd_in|pom_5v_in|input power)\b|socket\d+", re.I)
_POWER_INTERVAL_S = 1.0


@dataclass(frozen=True)
class Channel:
    """One channel: `scale` turns the file's figure to joules (energy) or watts (power)."""

    file: Path
    domain: str
    inside: str | None
    is_energy: bool


def find_channels(root: Path) -> list[Channel]:
    """The channels below `root` (…/class/hwmon), those of one chip beside each other, in a stable order."""
    channels: list[Channel] = []
    for folder in sorted(root.glob("hwmon*"), key=lambda f: (try_text(f / "name") or "", f.name)):
        # Kernels before 3.15 kept the files in the device's folder.
        home = folder if list(folder.glob("*_input")) or list(folder.glob("*_average")) else folder / "device"
        chip = try_text(folder / "name") or try_text(home / "name")
        if chip is None or _IGNORED.match(chip):
            continue
        channels += _of_chip(home, chip, folder.name)
    return _distinct(channels)


def _of_chip(folder: Path, chip: str, hwmon: str) -> list[Channel]:
    found: dict[str, tuple[Path, bool]] = {}
    for file in sorted(folder.glob("power*_*"), key=lambda f: (f.name.endswith("_input"), f.name)):
        match = re.fullmatch(r"power(\d+)_(average|input)", file.name)
        if match:
            found.setdefault(_label(folder, "power", match[1], chip), (file, False))
    for file in sorted(folder.glob("energy*_input")):
        match = re.fullmatch(r"energy(\d+)_input", file.name)
        if match:  # a counter misses nothing between two samples: it wins over the power channel of its name
            found[_label(folder, "energy", match[1], chip)] = (file, True)
    found = {label: (file, energy) for label, (file, energy) in found.items() if try_int(file) is not None}
    aggregates = sorted(label for label in found if len(found) > 1 and _AGGREGATE.search(label))
    channels = []
    for label, (file, is_energy) in sorted(found.items()):
        inside = None if label in aggregates else _parent(label, aggregates)
        channels.append(Channel(file, _domain(chip, label, hwmon), inside and _domain(chip, inside, hwmon), is_energy))
    return channels


def _parent(label: str, aggregates: list[str]) -> str | None:
    if not aggregates:
        return None
    if len(aggregates) == 1:
        return aggregates[0]
    # amd_energy numbers cores through all sockets without saying whose they are: any of them, but never a sum of both.
    return next((a for a in aggregates if not re.search(r"socket\d+", a, re.I)), aggregates[0])


def _label(folder: Path, kind: str, number: str, chip: str) -> str:
    return try_text(folder / f"{kind}{number}_label") or (chip if number == "1" else f"{chip} {number}")


def _domain(chip: str, label: str, hwmon: str) -> str:
    if chip in _SERVER_CHIPS:
        return "server"
    socket = re.fullmatch(r"E?socket(\d+)", label, re.I)
    if socket:
        return f"package-{int(socket[1])}"
    if _DEVICES.match(chip):
        return f"device/{label if label != chip else chip}"
    return label


def _distinct(channels: list[Channel]) -> list[Channel]:
    parents = [(c.domain, c.file.parent.name) for c in channels]
    names = distinct_names([(domain, parent) for domain, parent in parents])
    return [Channel(c.file, name, c.inside, c.is_energy) for c, name in zip(channels, names, strict=True)]


class HwmonMeter:
    """hwmon channels of this host."""

    name = "hwmon"

    def __init__(self, channels: list[Channel]) -> None:
        self._channels = channels
        self._counters: list[list[CounterSample]] = [[] for _ in channels]
        self._powers: list[list[PowerSample]] = [[] for _ in channels]
        only_energy = all(c.is_energy for c in channels)
        self.max_interval_s: float | None = None if only_energy else _POWER_INTERVAL_S

    def sample(self, now_s: float) -> None:
        for channel, counters, powers in zip(self._channels, self._counters, self._powers, strict=True):
            try:
                value: int | None = read_int(channel.file)
            except PowerprofError:
                value = None
            if channel.is_energy:
                missing = None if value is not None else "unreadable" if channel.file.exists() else "gone"
                counters.append(CounterSample(now_s, value, missing))  # type: ignore[arg-type]
            else:
                powers.append(PowerSample(now_s, None if value is None else value * 1e-6))

    def is_counting(self) -> bool | None:
        if any(s.watts for powers in self._powers for s in powers):
            return True
        if max(len(c) for c in self._counters) < 2 and all(c.is_energy for c in self._channels):
            return None
        return any(len({s.value for s in counters if s.value is not None}) > 1 for counters in self._counters)

    def energies(self, start_s: float, end_s: float) -> list[DomainEnergy]:
        result = []
        for channel, counters, powers in zip(self._channels, self._counters, self._powers, strict=True):
            if channel.is_energy:
                # The file is a 64-bit accumulation of the driver's; a step back means that it was reset.
                energy = counter_energy(counters, start_s, end_s, joules_per_unit=1e-6, modulus=None)
            else:
                energy = power_energy(powers, start_s, end_s, 5 * _POWER_INTERVAL_S)
            result.append(DomainEnergy(channel.domain, energy, channel.inside))
        return result

    def notes(self) -> list[str]:
        return []

    def close(self) -> None:
        self._counters = [[] for _ in self._channels]
        self._powers = [[] for _ in self._channels]


def open_hwmon() -> HwmonMeter:
    """This host's hwmon channels. Raises CapabilityError where no chip of the host itself reports energy or power."""
    root = paths.sysfs() / "class/hwmon"
    channels = find_channels(root)
    if all(c.domain.startswith("device/") for c in channels):
        raise CapabilityError(
            f"hwmon: no chip in {root} reports the host's energy or power",
            "load the board's sensor driver (sensors-detect), or take another meter (--meter-log FILE)",
        )
    return HwmonMeter(channels)
