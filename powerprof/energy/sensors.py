# SPDX-License-Identifier: Apache-2.0
"""Kernel sensors as meters: hwmon channels and the batteries of a laptop.

hwmon has energy (`energyN_input`, µJ) and power (`powerN_average` or `powerN_input`, µW) channels. Each chip names its
channels in its own way (Documentation/hwmon/sysfs-interface.rst). `_CHIPS` lists the known chips. Channels
of graphics cards, disks and unknown chips are listed and never counted as the host's.

Batteries show the draw of the whole laptop, only while they discharge (Documentation/power/power_supply_class.rst).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from powerprof.energy.domains import DomainEnergy, SampledMeter, distinct_names, is_any_moving
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

# The channels of known hwmon chips. The source of each entry is the kernel's Documentation/hwmon/NAME.rst or driver.
# A chip without an entry is listed as `other/…` and is in no sum: only its author knows what a label "total" covers.


@dataclass(frozen=True)
class Role:
    """The meaning of a channel.

    Attributes:
        domain: the name in readings.
        scope: `server`: input of the whole machine. `supply`: input of one of its power supplies. `package`: a socket.
            `rail`: a part next to the chip's other rails. `device` and `other` are in no sum.
        inside: the domain of the same chip that includes it.
    """

    domain: str
    scope: Scope
    inside: str | None = None


# Arguments: the channel's number, its label (None without one), and the labels of all channels of the chip by number.
RoleFinder = Callable[[str, str | None, Mapping[str, str]], Role]


def _server(number: str, label: str | None, labels: Mapping[str, str]) -> Role:
    return Role("server", "server")


def _amd_energy(number: str, label: str | None, labels: Mapping[str, str]) -> Role:
    socket = re.fullmatch(r"Esocket(\d+)", label or "")
    if socket:
        return Role(f"package-{int(socket[1])}", "package")
    core = re.fullmatch(r"Ecore(\d+)", label or "")
    if core is None:
        return Role(f"other/amd_energy {label or number}", "other")
    # Cores are numbered across all sockets. The socket of a core is known only if there is one socket.
    sockets = [text for text in labels.values() if text.startswith("Esocket")]
    return Role(f"core{int(core[1])}", "core", "package-0" if sockets == ["Esocket0"] else None)


def _fam15h(number: str, label: str | None, labels: Mapping[str, str]) -> Role:
    return Role("package-0", "package") if number == "1" else Role(f"other/fam15h_power {number}", "other")


def _corsair(number: str, label: str | None, labels: Mapping[str, str]) -> Role:
    return Role("supply", "supply") if number == "1" else Role(f"supply {label or number}", "rail", "supply")


def _rails(names: Mapping[str, str]) -> RoleFinder:
    """Return a finder of independent rails by channel number."""

    def find(number: str, label: str | None, labels: Mapping[str, str]) -> Role:
        return Role(names[number], "rail") if number in names else Role(f"other/{label or number}", "other")

    return find


def _zenpower(number: str, label: str | None, labels: Mapping[str, str]) -> Role:
    if label in ("SVI2_P_Core", "SVI2_P_SoC"):
        return Role(label, "rail")
    return Role(f"other/zenpower {label or number}", "other")


def _macsmc(number: str, label: str | None, labels: Mapping[str, str]) -> Role:
    texts = set(labels.values())
    if label == "Total System Power":
        return Role("server", "server")
    if label == "AC Input Power":
        # On a laptop this input also charges the battery. It stands for the machine only without a better channel.
        return Role("other/AC Input Power", "other") if "Total System Power" in texts else Role("server", "server")
    if {"Total System Power", "AC Input Power"} & texts:
        return Role(label or number, "rail", "server")
    return Role(f"other/macsmc {label or number}", "other")


def _power_supply(number: str, label: str | None, labels: Mapping[str, str]) -> Role:
    if re.fullmatch(r"pin\d*", label or ""):
        return Role("supply", "supply")
    has_input = any(re.fullmatch(r"pin\d*", text) for text in labels.values())
    if re.fullmatch(r"pout\d*", label or ""):
        # Without an input channel the output is closest to the machine's input. Several outputs are its rails.
        outputs = [text for text in labels.values() if text.startswith("pout")]
        if has_input:
            return Role(f"supply {label}", "rail", "supply")
        return Role("supply" if len(outputs) == 1 else f"supply {label}", "supply")
    return Role(f"other/supply {label or number}", "other")


def _jetson(number: str, label: str | None, labels: Mapping[str, str]) -> Role:
    if label in _JETSON_INPUTS:
        return Role("server", "server")
    if set(_JETSON_INPUTS) & set(labels.values()):
        return Role(label or number, "rail", "server")
    return Role(f"other/ina3221 {label or number}", "other")


def _powernv(number: str, label: str | None, labels: Mapping[str, str]) -> Role:
    if label == "System":
        return Role("server", "server")
    if "System" in labels.values():
        return Role(label or number, "rail", "server")
    return Role(f"other/{label or number}", "other")


# The input of the module: NVIDIA Jetson Linux Developer Guide, "Platform Power and Performance", Power Monitor
# Channels. SYS_VIN_HV of the AGX modules is one of two inputs and is left out.
_JETSON_INPUTS = ("VDD_IN", "POM_5V_IN")

_CHIPS: dict[str, RoleFinder] = {
    # acpi_power_meter.rst (prefix power_meter): the ACPI 4.0 meter of the whole machine, mean over an interval.
    "power_meter": _server,
    # amd_energy.rst (Linux 5.8 to 5.17): Ecore000 … and Esocket0 …; a socket includes its cores.
    "amd_energy": _amd_energy,
    # fam15h_power.rst: power1_input is the power of the processor's node.
    "fam15h_power": _fam15h,
    # zenpower (not in the kernel; its README): the independent core and SoC supplies of a socket.
    "zenpower": _zenpower,
    # xgene-hwmon.rst: power1 is all CPUs, power2 the I/O, next to each other.
    "apm_xgene": _rails({"1": "CPU power", "2": "IO power"}),
    # smpro-hwmon.c (Ampere Altra; its document says smpro): independent regulators; 3 and 4 feed the memory.
    "smpro_hwmon": _rails({"1": "Core VRD", "2": "SoC VRD", "3": "DIMM VRD1", "4": "DIMM VRD2", "5": "RCA VRD"}),
    # macsmc-hwmon.rst; labels from arch/arm64/boot/dts/apple/hwmon-common.dtsi and hwmon-laptop.dtsi.
    "macsmc_hwmon": _macsmc,
    # corsair-psu.rst: power1 is the total, 2 to 4 its 12 V, 5 V and 3.3 V rails.
    "corsairpsu": _corsair,
    # ibmpowernv.rst: the label System is the machine's.
    "ibmpowernv": _powernv,
    # ina3221.rst: three rails. Each board feeds other parts from them; only the Jetson's are known.
    "ina3221": _jetson,
}
# PMBus power supplies (labels pin and poutN), by the names in their drivers' i2c_device_id, or by the device tree's
# name without the maker, as hwmon shows it: ibm-cffps.c, inspur-ipsps.c, dps920ab.c, fsp-3y.c, bel-pfe.c,
# acbel-fsg032.c, crps.c (crps185), bpa-rs600.c, aps-379.c, d1u74t.c, hac300s.c. Other PMBus chips feed
# parts of a board.
_SUPPLIES = re.compile(
    r"(ibm_)?cffps[12]?|ipsps1|dps920ab|ym2151e|yh5151e|pfe(1100|3000)|(acbel_)?fsg032|(intel_)?crps185"
    r"|bp[ad][-_]rs600|aps[-_]379|d1u74t|hac300s"
)
# Cards, disks and fans (drivers/acpi/fan_hwmon.c) are shown and never counted as CPUs. An SFP's power is its light's.
_DEVICES = re.compile(
    r"amdgpu|radeon|nouveau|i915|xe$|nvme|drivetemp|mlx|bnxt|nvidia|habanalabs|sfp|nfp|acpi_fan", re.I
)


def find_role(
    chip: str, number: str, label: str | None, labels: Mapping[str, str], *, is_standard: bool = True
) -> Role:
    """Return the meaning of a channel. `labels` has the labels of all power channels of the chip, by number.

    `is_standard` is False if the machine is known to use the chip for another purpose than `_CHIPS` lists.
    """
    chip = "smpro_hwmon" if chip == "smpro" else chip
    if chip in _CHIPS and is_standard:
        return _CHIPS[chip](number, label, labels)
    if _SUPPLIES.fullmatch(chip):
        return _power_supply(number, label, labels)
    if _DEVICES.match(chip):
        return Role(f"device/{label or chip}", "device")
    name = f"{chip} {label}" if label else chip if number == "1" else f"{chip} {number}"
    return Role(f"other/{name}", "other")


# Chips of batteries and of input devices.
_IGNORED = re.compile(r"BAT|AC\b|ACAD|ADP|ucsi|hidpp|wacom", re.I)
# ACPI's names of the system bus and of the system itself.
_WHOLE_SYSTEM = ("LNXSYBUS", "LNXSYSTM")
# A window needs this many averaging intervals of a meter.
_LEAST_AVERAGING_INTERVALS = 2.0


@dataclass(frozen=True)
class SensorChannel:
    """One channel: an energy counter in µJ, power in µW, or a voltage in mV whose current in mA is `second`."""

    file: Path
    domain: str
    inside: str | None
    kind: Literal["energy", "power", "product"]
    scope: Scope
    second: Path | None = None
    chip: str = ""

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
    board = try_text(root.parents[1] / "firmware/devicetree/base/compatible") or ""
    for folder in sorted(root.glob("hwmon*"), key=lambda f: (try_text(f / "name") or "", f.name)):
        # Kernels before 3.15 keep the files in the device's folder.
        home = folder if list(folder.glob("*_input")) or list(folder.glob("*_average")) else folder / "device"
        chip = try_text(folder / "name") or try_text(home / "name")
        if chip is None or _IGNORED.match(chip):
            continue
        channels += _find_chip_channels(home, chip, is_standard=_is_standard(chip, home, board))
    # If two meters measure a whole server, it is unknown which of them contains the other.
    servers = {channel.file.parent for channel in channels if channel.scope == "server"}
    if len(servers) > 1:
        channels = [replace(c, scope="other") if c.scope == "server" else c for c in channels]
    names = distinct_names([(c.domain, c.file.parent.name) for c in channels])
    renamed = {(c.file.parent, c.domain): name for c, name in zip(channels, names, strict=True)}
    return [
        replace(c, domain=name, inside=c.inside and renamed.get((c.file.parent, c.inside), c.inside))
        for c, name in zip(channels, names, strict=True)
    ]


def _is_standard(chip: str, folder: Path, board: str) -> bool:
    """Return whether a chip has its usual meaning of `_CHIPS`. Two chips have other uses too.

    ACPI's meter may measure a battery (`power1_is_battery`), or name its devices: the bus of the whole system or parts
    (`measures`, drivers/hwmon/acpi_power_meter.c). An INA3221 has the labels that a board gives it.
    """
    if chip == "ina3221":
        return "nvidia,tegra" in board
    if chip != "power_meter":
        return True
    devices = [link.name for parent in (folder, folder / "device") for link in parent.glob("measures/*")]
    is_whole = not devices or any(name.startswith(_WHOLE_SYSTEM) for name in devices)
    return is_whole and not try_int(folder / "power1_is_battery")


def _find_chip_channels(folder: Path, chip: str, *, is_standard: bool) -> list[SensorChannel]:
    """Return one channel per domain. An energy counter is preferred to a power channel: it has no gaps."""
    powers = _find_numbered(folder, r"power(\d+)_(average|input)")
    energies = _find_numbered(folder, r"energy(\d+)_input")
    volts = _find_numbered(folder, r"in(\d+)_input") if chip == "ina3221" and not powers else {}
    channels: dict[str, SensorChannel] = {}
    for prefix, files in (("in", volts), ("power", powers), ("energy", energies)):
        labels = {n: text for n in files if (text := try_text(folder / f"{prefix}{n}_label")) is not None}
        for number, file in files.items():
            role = find_role(chip, number, labels.get(number), labels, is_standard=is_standard)
            if prefix == "in":
                current = folder / f"curr{number}_input"
                channel = SensorChannel(file, role.domain, role.inside, "product", role.scope, current, chip)
            else:
                kind: Literal["energy", "power"] = "energy" if prefix == "energy" else "power"
                channel = SensorChannel(file, role.domain, role.inside, kind, role.scope, chip=chip)
            is_readable = try_int(file) is not None and (channel.second is None or try_int(channel.second) is not None)
            # Keep an unreadable part of the host: its sum is then unknown. Without it the sum is too small.
            if is_readable or (channel.is_host and role.domain not in channels):
                channels[role.domain] = channel
    return [channels[domain] for domain in sorted(channels)]


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

    def __init__(self, channels: list[SensorChannel]) -> None:
        self._channels = channels
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
        for channel, counters, powers in zip(self._channels, self._counters, self._powers, strict=True):
            try:
                value: int | None = channel.read()
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
            domains.append(DomainEnergy(channel.domain, channel.scope, energy, channel.inside))
        return domains

    def drop_samples(self, before_s: float) -> None:
        for counters, powers in zip(self._counters, self._powers, strict=True):
            drop_old_samples(counters, before_s)
            drop_old_samples(powers, before_s)

    def notes(self) -> list[str]:
        return [
            f"hwmon: unknown what {channel.domain.replace('other/', '')} measures: listed, but not summed"
            for channel in self._channels
            if channel.scope == "other"
        ]

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
            "load the board's sensor driver (sensors-detect), or use another meter (--meter-log FILE)",
        )
    return HwmonMeter(channels)


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
        is_supply = try_text(folder / "type") not in (None, "Battery") and try_text(folder / "scope") != "Device"
        if is_supply and (try_int(folder / "online") or 0) > 0:
            return folder.name
    return None


def read_discharge_watts(folder: Path) -> float | None:
    """Return the power that leaves the battery now.

    None if it does not discharge, if its power is unknown, or if an external supply is online: then the battery gives
    only a part of the machine's power.
    """
    if try_text(folder / "status") != "Discharging" or find_external_supply(folder.parent) is not None:
        return None
    # In µW, µA and µV. Some firmware gives a discharge a sign, and writes 0 for an unknown value.
    power = try_int(folder / "power_now")
    if power:
        return abs(power) * 1e-6
    current, voltage = try_int(folder / "current_now"), try_int(folder / "voltage_now")
    return abs(current) * voltage * 1e-12 if current and voltage else None


class BatteryMeter(SampledMeter[PowerSample]):
    """The discharging batteries of this machine."""

    name = "battery"
    max_interval_s: float | None = _POWER_INTERVAL_S

    def __init__(self, folders: list[Path], resting: list[Path]) -> None:
        super().__init__(len(folders))
        self._folders = folders
        self._resting = resting

    def sample(self, now_s: float) -> None:
        # If another battery starts to feed the machine, these give only a part of its power.
        is_complete = all(try_text(folder / "status") != "Discharging" for folder in self._resting)
        for folder, samples in zip(self._folders, self._samples, strict=True):
            samples.append(PowerSample(now_s, read_discharge_watts(folder) if is_complete else None))

    def is_counting(self) -> bool | None:
        return any(s.watts for samples in self._samples for s in samples) if self._samples[0] else None

    def energies(self, start_s: float, end_s: float) -> list[DomainEnergy]:
        # Firmware refreshes power_now every few seconds to half a minute.
        return [
            DomainEnergy(folder.name, "battery", power_energy(samples, start_s, end_s, 30.0))
            for folder, samples in zip(self._folders, self._samples, strict=True)
        ]


def open_battery() -> BatteryMeter:
    """Open the discharging batteries. Raise CapabilityError without one or with an online external supply."""
    root = paths.sysfs() / "class/power_supply"
    folders = find_batteries(root)
    if not folders:
        raise CapabilityError(f"battery: none in {root}", "use another meter, or the estimate")
    discharging = [folder for folder in folders if read_discharge_watts(folder) is not None]
    supply = find_external_supply(root)
    if not discharging and supply is not None:
        raise CapabilityError(f"battery: the mains feed this machine too ({supply})", "unplug it and run again")
    if not discharging:
        states = ", ".join(f"{f.name} {(try_text(f / 'status') or 'unknown').lower()}" for f in folders)
        raise CapabilityError(f"battery: not discharging ({states})", "unplug the power supply and run again")
    return BatteryMeter(discharging, [folder for folder in folders if folder not in discharging])
