# SPDX-License-Identifier: Apache-2.0
"""Kernel sensors as meters: hwmon channels and the batteries of a laptop.

hwmon has energy (`energyN_input`, µJ) and power (`powerN_average` or `powerN_input`, µW) channels. Each chip names its
channels in its own way (Documentation/hwmon/sysfs-interface.rst). `layouts` lists the known chips. Channels
of graphics cards, disks and unknown chips are listed and never counted as the host's.

Batteries show the draw of the whole laptop, only while they discharge (Documentation/power/power_supply_class.rst).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

import msgspec
from msgspec.structs import replace

from powerprof.energy.domains import DomainEnergy, SampledMeter, UnusableMeterError, distinct_names, is_any_moving
from powerprof.energy.layouts import find_roles, is_supply, is_unknown_supply
from powerprof.measure.counters import (
    CounterSample,
    EnergySeries,
    PowerSample,
    choose_interval_s,
    counter_energy,
    drop_old_samples,
    power_energy,
)
from powerprof.model.records import Scope
from powerprof.system import paths
from powerprof.system.errors import CapabilityError, PowerprofError
from powerprof.system.files import read_int, try_int, try_text

_POWER_INTERVAL_S = 1.0

# Chips of batteries and of input devices.
_IGNORED = re.compile(r"BAT|AC\b|ACAD|ADP|ucsi|hidpp|wacom", re.I)
# ACPI's names of the system bus and of the system itself.
_WHOLE_SYSTEM = ("LNXSYBUS", "LNXSYSTM")
# Descriptions of a whole machine in power1_oem_info. Any other text may name a part.
_WHOLE_MACHINE = re.compile(
    r"(total |whole )?(system|server|machine|platform)( total)?( input)?( power)?( meter)?", re.I
)
_AT_EDGE_S = 0.005
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
    if chip == "ina3221" and "nvidia,tegra" not in (try_text(sysfs / "firmware/devicetree/base/compatible") or ""):
        return "the rails of an unknown board"
    if chip != "power_meter":
        return None
    devices = [link.name for parent in (folder, folder / "device") for link in parent.glob("measures/*")]
    described = (try_text(folder / "power1_oem_info") or try_text(folder / "device/power1_oem_info") or "").strip()
    if try_int(folder / "power1_is_battery"):
        return "a battery"
    if described and not _WHOLE_MACHINE.fullmatch(described):
        return described[:60]
    return None if not devices or any(name.startswith(_WHOLE_SYSTEM) for name in devices) else "some devices"


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
        roles = find_roles(chip, {n: try_text(folder / f"{prefix}{n}_label") for n in files}, doubt=other_use)
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
        intervals += [] if all(c.is_energy for c in self._channels) else [_POWER_INTERVAL_S]
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
                energy = power_energy(powers, start_s, end_s, 5 * _POWER_INTERVAL_S)
            least_s = _LEAST_AVERAGING_INTERVALS * averaging_s
            if averaging_s > _POWER_INTERVAL_S and end_s - start_s < least_s:
                note = f"is a mean over {averaging_s:.0f} s: a window of {least_s:.0f} s or more is needed"
                energy = EnergySeries(None, start_s, end_s, 0, (note,))
            elif averaging_s > _POWER_INTERVAL_S:
                watts = [s.watts for s in powers if s.watts is not None and s.time_s >= start_s]
                energy = replace(energy, edge_joules=(max(watts) - min(watts)) * averaging_s if watts else 0.0)
            domains.append(DomainEnergy(channel.domain, channel.scope, energy, channel.inside, channel.flaw))
        for came_s, channel in self._appeared.values():
            if came_s <= end_s + _AT_EDGE_S and all(channel.domain != item.domain for item in domains):
                note = "appeared after measuring began: no figure"
                none = EnergySeries(None, start_s, end_s, 0, (note,), is_absent=True)
                domains.append(DomainEnergy(channel.domain, channel.scope, none, channel.inside))
        return domains

    def drop_samples(self, before_s: float) -> None:
        for counters, powers in zip(self._counters, self._powers, strict=True):
            drop_old_samples(counters, before_s)
            drop_old_samples(powers, before_s)

    def notes(self) -> list[str]:
        notes = []
        for channel in self._channels:
            if channel.scope == "other":
                name = channel.domain.replace("other/", "")
                use = _find_other_use(channel.chip, channel.file.parent, self._root.parents[1])
                about = f"{name} has an unknown domain" if use is None else f"{name} measures {use}"
                notes.append(f"hwmon: {about}: listed, but not summed")
        return notes

    def close(self) -> None:
        self._counters = [[] for _ in self._channels]
        self._powers = [[] for _ in self._channels]


def open_hwmon(*, host_only: bool = False) -> HwmonMeter:
    """Open this host's channels. Raise CapabilityError without channels, or with `host_only` without the host's."""
    root = paths.sysfs() / "class/hwmon"
    channels = find_channels(root)
    if not channels or (host_only and not any(channel.is_host for channel in channels)):
        raise CapabilityError(
            f"hwmon: no chip in {root} reports the host's energy or power",
            "load the board's sensor driver (sensors-detect), or use another meter (--meter FILE)",
        )
    return HwmonMeter(channels, root)


def _list_chips(root: Path) -> frozenset[str]:
    return frozenset(folder.name for folder in root.glob("hwmon*"))


# Batteries.

# The names of UPSs, and of makers whose only batteries are in UPSs.
_UPS = re.compile(
    r"(?<![a-z])ups(?![a-z])|uninterruptible|american power conversion|(?<![a-z])apc(?![a-z])"
    r"|cyber ?power|^cps$|^eaton|^tripp",
    re.I,
)
# The kernel's names for batteries of mice, keyboards and UPSs (drivers/hid/hid-input.c and others).
_PERIPHERAL = re.compile(r"hid|wacom|sony_controller|ps-controller|nintendo|steam", re.I)


def find_batteries(root: Path) -> list[Path]:
    """Return the folders of batteries that feed the machine.

    A mouse's battery (`scope` Device) is left out, and so is a UPS, whose type is Battery too: it may feed other
    machines.
    """
    return [
        folder
        for folder in sorted(root.glob("*"))
        if try_text(folder / "type") == "Battery"
        and try_text(folder / "scope") != "Device"
        and not _PERIPHERAL.match(folder.name)
        and not _is_ups(folder)
        and (try_text(folder / "present") or "1") == "1"
    ]


def _is_ups(folder: Path) -> bool:
    names = (folder.name, *(try_text(folder / name) or "" for name in ("model_name", "manufacturer")))
    return any(_UPS.search(name) for name in names)


def find_external_supply(root: Path) -> str | None:
    """Return the name of an online supply other than a battery, such as mains, USB or a UPS. None without one."""
    for folder in sorted(root.glob("*")):
        is_other = try_text(folder / "type") not in (None, "Battery") and try_text(folder / "scope") != "Device"
        if is_other and (try_int(folder / "online") or 0) > 0:
            return folder.name
    return None


def read_discharge_watts(folder: Path) -> float | None:
    """Return the power that leaves the battery now.

    None if it does not discharge, if its power is unknown, or if an external supply is online: then the battery gives
    only a part of the machine's power.
    """
    if try_text(folder / "status") != "Discharging" or find_external_supply(folder.parent) is not None:
        return None
    watts = _read_watts(folder)
    return watts if isinstance(watts, float) else None


def _read_watts(folder: Path) -> float | str:
    """Return the power of a battery, or the reason why it is unknown.

    Files are in µW, µA and µV (Documentation/ABI/testing/sysfs-class-power). Some firmware gives a discharge a sign,
    writes 0 for an unknown value, or uses mW.
    """
    power, current, voltage = (try_int(folder / name) for name in ("power_now", "current_now", "voltage_now"))
    product = abs(current) * voltage * 1e-12 if current and voltage else None
    if power is None and current is None:
        return f"{folder.name} has neither power_now nor current_now"
    if not power and product is None:
        return f"{folder.name} shows a power of 0 or no voltage"
    watts = abs(power) * 1e-6 if power else product or 0.0
    if power and product is not None and not 1 / _SAME_POWER <= watts / product <= _SAME_POWER:
        return f"{folder.name} shows {watts:.3g} W in power_now and {product:.3g} W in current_now times voltage_now"
    if not _LEAST_WATTS <= watts <= _MOST_WATTS:
        return f"{folder.name} shows {watts:.3g} W: its files are not in µW, µA and µV"
    return watts


# power_now may be a mean over seconds, current_now is of this moment.
_SAME_POWER = 2.0
# A running machine draws more than a tenth of a watt. No battery of a laptop gives a kilowatt.
_LEAST_WATTS, _MOST_WATTS = 0.1, 1000.0
# The kernel's names of ACPI's batteries. Drivers of gauges choose other names for the same battery.
_ACPI_BATTERY = re.compile(r"(BAT|CMB)\w*")
_RESTING = ("Charging", "Full", "Not charging")
_NO_SERIAL = re.compile(r"[\s0]*|N/?A|none|unknown", re.I)


class BatteryMeter(SampledMeter[PowerSample]):
    """The discharging batteries of this machine."""

    name = "battery"
    max_interval_s: float | None = _POWER_INTERVAL_S

    def __init__(self, folders: list[Path], repeated: Sequence[Path] = (), flaw: str | None = None) -> None:
        notes = [f"battery: {folder.name} has the serial number of another one: counted once" for folder in repeated]
        super().__init__(len(folders), notes)
        self._folders = folders
        self._repeated = set(repeated)
        self._flaw = flaw
        self._causes: list[tuple[float, str]] = []

    def sample(self, now_s: float) -> None:
        cause = self._find_other_feed()
        if cause is not None:
            self._causes.append((now_s, cause))
        for folder, samples in zip(self._folders, self._samples, strict=True):
            is_present = folder.exists() and (try_text(folder / "present") or "1") == "1"
            watts = read_discharge_watts(folder) if cause is None and is_present else None
            samples.append(PowerSample(now_s, watts, is_gone=not is_present))

    def _find_other_feed(self) -> str | None:
        """Return what else feeds the machine now: then the metered batteries give only a part of its power."""
        root = self._folders[0].parent
        others = set(find_batteries(root)) - set(self._folders) - self._repeated
        feeding = sorted(folder.name for folder in others if _may_discharge(folder))
        supply = find_external_supply(root)
        if supply is not None:
            return f"the mains feed this machine too ({supply})"
        return f"another battery discharges too ({feeding[0]})" if feeding else None

    def is_counting(self) -> bool | None:
        return any(s.watts for samples in self._samples for s in samples) if self._samples[0] else None

    def energies(self, start_s: float, end_s: float) -> list[DomainEnergy]:
        causes = [text for time_s, text in self._causes if start_s <= time_s <= end_s + _AT_EDGE_S]
        domains = []
        for folder, samples in zip(self._folders, self._samples, strict=True):
            # Firmware refreshes power_now every few seconds to half a minute.
            energy = power_energy(samples, start_s, end_s, 30.0)
            if energy.joules is None and causes:
                energy = replace(energy, notes=(f"{causes[0]}: no figure",))
            domains.append(DomainEnergy(folder.name, "battery", energy, None, self._flaw))
        return domains

    def drop_samples(self, before_s: float) -> None:
        super().drop_samples(before_s)
        self._causes = [cause for cause in self._causes if cause[0] >= before_s]


def _may_discharge(folder: Path) -> bool:
    """Return whether a battery feeds the machine, or may do so: some firmware shows the status Unknown."""
    status = try_text(folder / "status")
    figures = [try_int(folder / name) for name in ("power_now", "current_now")]
    is_zero = 0 in figures and not any(figures)
    return status == "Discharging" or (status not in (None, *_RESTING) and not is_zero)


def open_battery() -> BatteryMeter:
    """Open the discharging batteries. Raise CapabilityError without one or with an online external supply."""
    root = paths.sysfs() / "class/power_supply"
    folders = find_batteries(root)
    if not folders:
        raise CapabilityError(f"battery: none in {root}", "use another meter, or the estimate")
    discharging = [folder for folder in folders if try_text(folder / "status") == "Discharging"]
    supply = find_external_supply(root)
    if supply is not None:
        raise UnusableMeterError(f"battery: the mains feed this machine too ({supply})", "unplug it and run again")
    if not discharging:
        states = ", ".join(f"{f.name} {(try_text(f / 'status') or 'unknown').lower()}" for f in folders)
        raise UnusableMeterError(f"battery: not discharging ({states})", "unplug the power supply and run again")
    unknown = [watts for folder in discharging if isinstance(watts := _read_watts(folder), str)]
    if len(unknown) == len(discharging):
        raise CapabilityError(f"battery: {'; '.join(unknown)}", "use another meter (--meter FILE), or the estimate")
    selected, repeated, flaw = _select_batteries(discharging)
    return BatteryMeter(selected, repeated, flaw)


def _look_alike(first: Path, second: Path) -> bool:
    """Return whether two entries may be one battery: equal power, voltage and charge as far as both show them."""
    powers = [_read_watts(folder) for folder in (first, second)]
    pairs = [([power for power in powers if isinstance(power, float)], 1.2)]
    for name, ratio in (("voltage_now", 1.02), ("capacity", 1.05)):
        values = [try_int(folder / name) for folder in (first, second)]
        pairs.append(([float(value) for value in values if value], ratio))
    return all(len(values) < 2 or max(values) <= ratio * min(values) for values, ratio in pairs)


def _select_batteries(folders: Sequence[Path]) -> tuple[list[Path], list[Path], str | None]:
    """Return the distinct batteries, those that repeat one by its serial number, and the reason if that is unclear.

    ACPI and the driver of a gauge may list one battery twice.
    """
    selected: list[Path] = []
    repeated: list[Path] = []
    flaw = None
    for folder in sorted(
        folders, key=lambda f: (isinstance(_read_watts(f), str), not _ACPI_BATTERY.match(f.name), f.name)
    ):
        serial = try_text(folder / "serial_number") or ""
        same = [f for f in selected if try_text(f / "serial_number") == serial and not _NO_SERIAL.fullmatch(serial)]
        if same and not _look_alike(same[0], folder):
            flaw = f"{same[0].name} and {folder.name} have one serial number and different figures"
        (repeated if same and flaw is None else selected).append(folder)
    kinds = {bool(_ACPI_BATTERY.match(folder.name)) for folder in selected}
    serials = {try_text(folder / "serial_number") or "" for folder in selected}
    is_distinct = len(serials) == len(selected) and not any(_NO_SERIAL.fullmatch(serial) for serial in serials)
    if len(selected) > 1 and kinds != {True} and (len(kinds) > 1 or not is_distinct):
        names = " and ".join(sorted(folder.name for folder in selected))
        flaw = flaw or f"{names} are listed by different drivers or without serial numbers: one battery or two"
    return sorted(selected), repeated, flaw
