# SPDX-License-Identifier: Apache-2.0
"""hwmon channels as a meter: energy (`energyN_input`, µJ) and power (`powerN_average` or `powerN_input`, µW).

Each chip names its channels in its own way (Documentation/hwmon/sysfs-interface.rst). `layouts` lists the known chips.
Channels of graphics cards, disks and unknown chips are listed and never counted as the host's.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import msgspec
from msgspec.structs import replace

from powerprof.energy.meters.battery import find_batteries
from powerprof.energy.meters.hwmon_roles import find_roles, is_listed, is_supply, is_unknown_supply
from powerprof.energy.meters.meter import POWER_INTERVAL_S, DomainEnergy, distinct_names, is_any_moving
from powerprof.energy.mirrors import compare_counters
from powerprof.measure.counters import CounterSample, choose_interval_s
from powerprof.measure.energy_series import (
    AT_EDGE_S,
    EnergySeries,
    PowerSample,
    counter_energy,
    drop_old_samples,
    power_energy,
)
from powerprof.model.records import Scope
from powerprof.model.text import join_words
from powerprof.system import paths
from powerprof.system.errors import CapabilityError, PowerprofError
from powerprof.system.files import read_int, try_int, try_text

# Chips of batteries and of input devices.
_IGNORED = re.compile(r"BAT|AC\b|ACAD|ADP|ucsi|hidpp|wacom", re.I)
# ACPI's names of the system bus and of the system itself.
_WHOLE_SYSTEM = ("LNXSYBUS", "LNXSYSTM")
# Descriptions of a whole machine in power1_oem_info. Any other text may name a part.
_WHOLE_MACHINE = re.compile(
    r"(total |whole )?(system|server|machine|platform)( total)?( input)?( power)?( meter)?", re.I
)
# A window needs this many averaging intervals of a meter.
_LEAST_AVERAGING_INTERVALS = 2.0


class SensorChannel(msgspec.Struct, frozen=True):
    """One channel: an energy counter in µJ, power in µW, or a voltage in mV whose current in mA is `second`."""

    file: Path
    domain: str
    inside: str | None
    kind: Literal["energy", "power", "product"]
    scope: Scope
    second: Path | None = None
    chip: str = ""
    flaw: str | None = None

    @property
    def is_energy(self) -> bool:
        return self.kind == "energy"

    @property
    def is_host(self) -> bool:
        """Whether it measures the host, not a card or an unknown part."""
        return self.scope not in ("device", "other")

    def read(self) -> int:
        """Return µJ or µW. Raise PowerprofError."""
        value = read_int(self.file)
        return value if self.second is None else value * read_int(self.second)  # mV × mA = µW


def find_channels(root: Path) -> list[SensorChannel]:
    """Return the channels below `root` (…/class/hwmon), ordered by chip, with unique domain names."""
    channels: list[SensorChannel] = []
    unknown_supply: str | None = None
    for folder in sorted(root.glob("hwmon*"), key=lambda f: (try_text(f / "name") or "", f.name)):
        # Kernels before 3.15 keep the files in the device's folder.
        home = folder if list(folder.glob("*_input")) or list(folder.glob("*_average")) else folder / "device"
        chip = try_text(folder / "name") or try_text(home / "name") or "unnamed"
        if _IGNORED.match(chip):
            continue
        channels += _find_chip_channels(home, chip, root.parents[1])
        if any(is_unknown_supply(chip, try_text(file)) for file in home.glob("power*_label")):
            unknown_supply = f"{chip} ({folder.name}) may be one more power supply, of an unknown driver"
        if is_supply(chip) and not _find_numbered(home, r"power(\d+)_(average|input)"):
            unknown_supply = f"the power supply {chip} ({folder.name}) shows no power"
    labels = {_label_of(c) for c in channels if c.scope == "supply"}
    if any(label.startswith("pin") for label in labels) and any(label.startswith("pout") for label in labels):
        unknown_supply = "one power supply shows its input and another only its output"
    if unknown_supply is not None:
        channels = [replace(c, flaw=c.flaw or unknown_supply) if c.scope == "supply" else c for c in channels]
    names = distinct_names([(c.domain, c.file.parent.name) for c in channels])
    renamed = {(c.file.parent, c.domain): name for c, name in zip(channels, names, strict=True)}
    return [
        replace(c, domain=name, inside=c.inside and renamed.get((c.file.parent, c.inside), c.inside))
        for c, name in zip(channels, names, strict=True)
    ]


def _label_of(channel: SensorChannel) -> str:
    return try_text(channel.file.with_name(channel.file.name.split("_")[0] + "_label")) or ""


def _find_other_use(chip: str, folder: Path, sysfs: Path) -> str | None:
    """Return what else than the table lists a chip measures on this machine. None if it has its usual meaning.

    ACPI's meter may measure a battery (`power1_is_battery`), name the measured devices (`measures`,
    drivers/hwmon/acpi_power_meter.c), or describe itself: Grace has meters of "CPU Power Socket 0". An INA3221 has the
    labels that a board gives it. The input of a laptop charges its battery too.
    """
    board = {"ina3221": "nvidia,tegra", "ina238": "nvidia,tegra264"}.get(chip, "")
    if board not in (try_text(sysfs / "firmware/devicetree/base/compatible") or ""):
        return "the rails of an unknown board"
    if chip != "power_meter":
        return None
    devices = [link.name for parent in (folder, folder / "device") for link in parent.glob("measures/*")]
    described = _read_description(folder)
    if try_int(folder / "power1_is_battery"):
        return "a battery"
    if described and not _WHOLE_MACHINE.fullmatch(described) and not is_listed(chip, described):
        return described[:60]
    return None if not devices or any(name.startswith(_WHOLE_SYSTEM) for name in devices) else "some devices"


def _read_description(folder: Path) -> str:
    """Return how an ACPI meter describes itself."""
    return (try_text(folder / "power1_oem_info") or try_text(folder / "device/power1_oem_info") or "").strip()


def _find_chip_channels(folder: Path, chip: str, sysfs: Path) -> list[SensorChannel]:
    """Return the channels of a chip. An energy counter is preferred to a power channel of one domain: no gaps."""
    powers = _find_numbered(folder, r"power(\d+)_(average|input)")
    energies = _find_numbered(folder, r"energy(\d+)_input")
    # Channels 4 to 7 of an INA3221 are shunt voltages (Documentation/hwmon/ina3221.rst).
    volts = _find_numbered(folder, r"in([123])_input") if chip == "ina3221" and not powers else {}
    volts = {number: file for number, file in volts.items() if (folder / f"curr{number}_input").exists()}
    other_use = _find_other_use(chip, folder, sysfs)
    channels: dict[str, SensorChannel] = {}
    for prefix, files in (("in", volts), ("power", powers), ("energy", energies)):
        labels = {n: try_text(folder / f"{prefix}{n}_label") for n in files}
        if chip == "power_meter":
            labels = {n: _read_description(folder)[:60] or label for n, label in labels.items()}
        roles = find_roles(chip, labels, doubt=other_use)
        for number, file in files.items():
            role = roles[number]
            kind: Literal["energy", "power", "product"] = "power"
            kind = "product" if prefix == "in" else "energy" if prefix == "energy" else kind
            current = folder / f"curr{number}_input" if kind == "product" else None
            scope, flaw = role.scope, role.flaw
            if role.domain in channels and channels[role.domain].kind == kind:
                role = replace(role, domain=f"{role.domain} {number}")
            if (
                chip == "macsmc_hwmon"
                and role.domain == "server"
                and _may_charge(try_text(folder / f"power{number}_label"), sysfs)
            ):
                flaw = "AC Input Power also charges the battery"
            is_readable = try_int(file) is not None and (current is None or try_int(current) is not None)
            flaw = flaw if is_readable or flaw else f"{role.domain} cannot be read ({file})"
            channel = SensorChannel(file, role.domain, role.inside, kind, scope, current, chip, flaw)
            # Keep an unreadable part of the host: its sum is then unknown. Without it the sum is too small.
            if is_readable or (channel.is_host and role.domain not in channels):
                channels[role.domain] = channel
    return [channels[domain] for domain in sorted(channels)]


def _may_charge(label: str | None, sysfs: Path) -> bool:
    return label == "AC Input Power" and bool(find_batteries(sysfs / "class/power_supply"))


def _find_numbered(folder: Path, pattern: str) -> Mapping[str, Path]:
    """Return files by their number. An average is preferred to an instant reading."""
    files: dict[str, Path] = {}
    for file in sorted(folder.glob("*_*"), key=lambda f: (f.name.endswith("_input"), f.name)):
        match = re.fullmatch(pattern, file.name)
        if match:
            files.setdefault(match[1], file)
    return files


class HwmonMeter:
    """The hwmon channels of this host."""

    name = "hwmon"

    def __init__(self, channels: list[SensorChannel], root: Path) -> None:
        self._channels = channels
        self._root = root
        self._chips = _list_chips(root)
        self.notes = [_note_unknown(channel, root) for channel in channels if channel.scope == "other"]
        # Channels of the host that came after opening, and the time of the first sample with them.
        self._appeared: dict[Path, tuple[float, SensorChannel]] = {}
        self._counters: list[list[CounterSample]] = [[] for _ in channels]
        self._powers: list[list[PowerSample]] = [[] for _ in channels]
        # The interval over which the meter itself averages (ACPI's, in ms).
        numbers = [(c.file.parent, re.fullmatch(r"power(\d+)_average", c.file.name)) for c in channels]
        self._averaging_s = [
            (try_int(folder / f"power{number[1]}_average_interval") or 0) * 1e-3 if number else 0.0
            for folder, number in numbers
        ]

    @property
    def max_interval_s(self) -> float | None:
        intervals = [choose_interval_s(self._counters)]
        intervals += [] if all(c.is_energy for c in self._channels) else [POWER_INTERVAL_S]
        return min((value for value in intervals if value is not None), default=None)

    def sample(self, now_s: float) -> None:
        if _list_chips(self._root) != self._chips:
            self._chips = _list_chips(self._root)
            known = {channel.file for channel in self._channels}
            for channel in find_channels(self._root):
                if channel.is_host and channel.file not in known:
                    self._appeared.setdefault(channel.file, (now_s, channel))
        for channel, counters, powers in zip(self._channels, self._counters, self._powers, strict=True):
            try:
                value: int | None = channel.read()
            except PowerprofError:
                value = None
            if channel.is_energy:
                missing = None if value is not None else "unreadable" if channel.file.exists() else "gone"
                counters.append(CounterSample(now_s, value, missing))  # type: ignore[arg-type]
            elif value is None:
                powers.append(PowerSample(now_s, None, is_gone=not channel.file.exists()))
            else:
                powers.append(PowerSample(now_s, value * 1e-6))

    def is_counting(self) -> bool | None:
        if any(s.watts for powers in self._powers for s in powers):
            return True
        longest = sorted(self._counters, key=len, reverse=True)
        return is_any_moving(longest) if all(c.is_energy for c in self._channels) else bool(is_any_moving(longest))

    def energies(self, start_s: float, end_s: float) -> list[DomainEnergy]:
        domains = []
        for channel, counters, powers, averaging_s in zip(
            self._channels, self._counters, self._powers, self._averaging_s, strict=True
        ):
            if channel.is_energy:
                # The driver accumulates 64 bits. A step back is a reset.
                energy = counter_energy(counters, start_s, end_s, joules_per_unit=1e-6, modulus=None)
            else:
                energy = power_energy(powers, start_s, end_s, 5 * POWER_INTERVAL_S)
            least_s = _LEAST_AVERAGING_INTERVALS * averaging_s
            if averaging_s > POWER_INTERVAL_S and end_s - start_s < least_s:
                note = f"is a mean over {averaging_s:.0f} s: a window of {least_s:.0f} s or more is needed"
                energy = EnergySeries(None, start_s, end_s, 0, (note,))
            elif averaging_s > POWER_INTERVAL_S:
                watts = [s.watts for s in powers if s.watts is not None and s.time_s >= start_s]
                energy = replace(energy, edge_joules=(max(watts) - min(watts)) * averaging_s if watts else 0.0)
            flaw = channel.flaw or self._find_repeated(channel)
            domains.append(DomainEnergy(channel.domain, channel.scope, energy, channel.inside, flaw))
        for came_s, channel in self._appeared.values():
            if came_s <= end_s + AT_EDGE_S and all(channel.domain != item.domain for item in domains):
                note = "appeared after measuring began: no figure"
                none = EnergySeries(None, start_s, end_s, 0, (note,), is_absent=True)
                domains.append(DomainEnergy(channel.domain, channel.scope, none, channel.inside))
        return domains

    def _find_repeated(self, channel: SensorChannel) -> str | None:
        """Return the reason if another socket's counter is equal: drivers take a node for a socket."""
        if not channel.is_energy or channel.scope != "package":
            return None
        own = self._counters[self._channels.index(channel)]
        for other, counters in zip(self._channels, self._counters, strict=True):
            if other is channel or not other.is_energy or other.scope != "package":
                continue
            if compare_counters(own, counters, 1e-6, None, is_absolute=True) != "two":
                return f"{channel.domain} and {other.domain} count alike: one counter or two"
        return None

    def drop_samples(self, before_s: float) -> None:
        for counters, powers in zip(self._counters, self._powers, strict=True):
            drop_old_samples(counters, before_s)
            drop_old_samples(powers, before_s)

    def close(self) -> None:
        self._counters = [[] for _ in self._channels]
        self._powers = [[] for _ in self._channels]


def _note_unknown(channel: SensorChannel, root: Path) -> str:
    name = channel.domain.replace("other/", "")
    use = _find_other_use(channel.chip, channel.file.parent, root.parents[1])
    about = f"{name} has an unknown domain" if use is None else f"{name} measures {use}"
    return f"hwmon: {about}: listed, but not summed"


def open_hwmon(*, host_only: bool = False) -> HwmonMeter:
    """Open this host's channels. Raise CapabilityError without channels, or with `host_only` without the host's."""
    root = paths.sysfs() / "class/hwmon"
    channels = find_channels(root)
    if not channels or (host_only and not any(channel.is_host for channel in channels)):
        parts = join_words(list(dict.fromkeys(channel.chip for channel in channels)))
        raise CapabilityError(
            f"hwmon: no chip in {root} reports the host's energy or power{f', only parts: {parts}' if parts else ''}",
            "load the board's sensor driver (sensors-detect), or use another meter (--meter FILE)",
        )
    return HwmonMeter(channels, root)


def _list_chips(root: Path) -> frozenset[str]:
    return frozenset(folder.name for folder in root.glob("hwmon*"))
