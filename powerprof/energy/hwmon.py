# SPDX-License-Identifier: Apache-2.0
"""hwmon energy (`energyN_input`, µJ) and power (`powerN_average` or `powerN_input`, µW) channels.

Chips name their channels as they like (Documentation/hwmon/sysfs-interface.rst); what the known ones mean is in
`hwmon_chips`. Chips of batteries are left to the battery meter; those of graphics cards, disks and the like, and those
that nobody knows, are listed and never counted as the host's.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from powerprof.energy.meter import DomainEnergy, distinct_names
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

# What the power and energy channels of hwmon chips measure, and what contains what: knowledge, not guesses at labels.
#
# Sources are the kernel's Documentation/hwmon/NAME.rst and drivers, named at each entry. A chip that is not here is
# listed as `other/…` and is in no sum: a label such as "total" says total of what only to its author.


@dataclass(frozen=True)
class Role:
    """The domain under which a channel is reported, what it measures, and the domain of its chip that includes it.

    Scope `server` is the whole machine's input; `supply` that of one of its power supplies; `package` a socket; `rail`
    a part beside the chip's other rails; `device` and `other` are in no sum.
    """

    domain: str
    scope: Scope
    inside: str | None = None


# A channel's number and label (None where it has none), and the labels of all of the chip's channels.
Reader = Callable[[str, str | None, Mapping[str, str]], Role]


def _server(number: str, label: str | None, labels: Mapping[str, str]) -> Role:
    return Role("server", "server")


def _amd_energy(number: str, label: str | None, labels: Mapping[str, str]) -> Role:
    socket = re.fullmatch(r"Esocket(\d+)", label or "")
    if socket:
        return Role(f"package-{int(socket[1])}", "package")
    core = re.fullmatch(r"Ecore(\d+)", label or "")
    if core is None:
        return Role(f"other/amd_energy {label or number}", "other")
    # Cores are numbered through all sockets: whose they are is known where there is one.
    sockets = [text for text in labels.values() if text.startswith("Esocket")]
    return Role(f"core{int(core[1])}", "core", "package-0" if sockets == ["Esocket0"] else None)


def _fam15h(number: str, label: str | None, labels: Mapping[str, str]) -> Role:
    return Role("package-0", "package") if number == "1" else Role(f"other/fam15h_power {number}", "other")


def _corsair(number: str, label: str | None, labels: Mapping[str, str]) -> Role:
    """Channel 1 is the total, the others lie inside it."""
    return Role("supply", "supply") if number == "1" else Role(f"supply {label or number}", "rail", "supply")


def _rails(names: Mapping[str, str]) -> Reader:
    """Rails beside each other, by channel number."""

    def read(number: str, label: str | None, labels: Mapping[str, str]) -> Role:
        return Role(names[number], "rail") if number in names else Role(f"other/{label or number}", "other")

    return read


def _zenpower(number: str, label: str | None, labels: Mapping[str, str]) -> Role:
    if label in ("SVI2_P_Core", "SVI2_P_SoC"):
        return Role(label, "rail")
    return Role(f"other/zenpower {label or number}", "other")


def _macsmc(number: str, label: str | None, labels: Mapping[str, str]) -> Role:
    known = set(labels.values())
    if label == "Total System Power":
        return Role("server", "server")
    if label == "AC Input Power":
        # On a laptop it charges the battery as well: the machine's only where nothing better is there.
        return Role("other/AC Input Power", "other") if "Total System Power" in known else Role("server", "server")
    if {"Total System Power", "AC Input Power"} & known:
        return Role(label or number, "rail", "server")
    return Role(f"other/macsmc {label or number}", "other")


def _power_supply(number: str, label: str | None, labels: Mapping[str, str]) -> Role:
    if re.fullmatch(r"pin\d*", label or ""):
        return Role("supply", "supply")
    has_input = any(re.fullmatch(r"pin\d*", text) for text in labels.values())
    if re.fullmatch(r"pout\d*", label or ""):
        # Without an input power the output is the nearest to the machine's; several outputs are rails of it.
        outputs = [text for text in labels.values() if text.startswith("pout")]
        if has_input:
            return Role(f"supply {label}", "rail", "supply")
        return Role("supply" if len(outputs) == 1 else f"supply {label}", "supply")
    return Role(f"other/supply {label or number}", "other")


def _jetson(number: str, label: str | None, labels: Mapping[str, str]) -> Role:
    whole = [text for text in labels.values() if text in _JETSON_INPUTS]
    if label in _JETSON_INPUTS:
        return Role("server", "server")
    return Role(label or number, "rail", "server") if whole else Role(f"other/ina3221 {label or number}", "other")


def _powernv(number: str, label: str | None, labels: Mapping[str, str]) -> Role:
    if label == "System":
        return Role("server", "server")
    if "System" in labels.values():
        return Role(label or number, "rail", "server")
    return Role(f"other/{label or number}", "other")


# NVIDIA Jetson Linux Developer Guide, "Platform Power and Performance", Power Monitor Channels: the module's input.
# SYS_VIN_HV of the AGX modules is one of two.
_JETSON_INPUTS = ("VDD_IN", "POM_5V_IN")

_CHIPS: dict[str, Reader] = {
    # acpi_power_meter.rst (prefix power_meter): the ACPI 4.0 meter of the whole machine, mean over an interval.
    "power_meter": _server,
    # amd_energy.rst (Linux 5.8 to 5.17): Ecore000 … and Esocket0 …, a socket includes its cores.
    "amd_energy": _amd_energy,
    # fam15h_power.rst: power1_input is the power of the processor's node.
    "fam15h_power": _fam15h,
    # zenpower (not in the kernel; its README): core and SoC supplies of a socket, beside each other.
    "zenpower": _zenpower,
    # xgene-hwmon.rst: power1 is all CPUs, power2 the I/O, beside each other.
    "apm_xgene": _rails({"1": "CPU power", "2": "IO power"}),
    # smpro-hwmon.c (Ampere Altra; its document says smpro): regulators beside each other; 3 and 4 feed the memory.
    "smpro_hwmon": _rails({"1": "Core VRD", "2": "SoC VRD", "3": "DIMM VRD1", "4": "DIMM VRD2", "5": "RCA VRD"}),
    # macsmc-hwmon.rst; labels from arch/arm64/boot/dts/apple/hwmon-common.dtsi and hwmon-laptop.dtsi.
    "macsmc_hwmon": _macsmc,
    # corsair-psu.rst: power1 total power usage, 2 to 4 its 12 V, 5 V and 3.3 V rails.
    "corsairpsu": _corsair,
    # ibmpowernv.rst: the label System is the machine's.
    "ibmpowernv": _powernv,
    # ina3221.rst: three rails each; what they feed is the board's to say, and only the Jetson's is known.
    "ina3221": _jetson,
}
# Power supplies by PMBus (labels pin and poutN), by the names in their drivers' i2c_device_id, or by the device tree's
# without the maker, which hwmon shows: ibm-cffps.c, inspur-ipsps.c, dps920ab.c, fsp-3y.c, bel-pfe.c, acbel-fsg032.c,
# crps.c (crps185), bpa-rs600.c, aps-379.c, d1u74t.c, hac300s.c. Other PMBus chips feed parts of a board.
_SUPPLIES = re.compile(
    r"(ibm_)?cffps[12]?|ipsps1|dps920ab|ym2151e|yh5151e|pfe(1100|3000)|(acbel_)?fsg032|(intel_)?crps185"
    r"|bp[ad][-_]rs600|aps[-_]379|d1u74t|hac300s"
)
# Cards, disks and fans (drivers/acpi/fan_hwmon.c): shown, and never the host's CPUs'. An SFP's power is its light's.
_DEVICES = re.compile(
    r"amdgpu|radeon|nouveau|i915|xe$|nvme|drivetemp|mlx|bnxt|nvidia|habanalabs|sfp|nfp|acpi_fan", re.I
)


def role_of(chip: str, number: str, label: str | None, labels: Mapping[str, str], *, usual: bool = True) -> Role:
    """What a channel of that chip measures. `labels` are those of all its power channels, by number.

    `usual`: whether this one is where the table has it, as far as the machine says.
    """
    chip = "smpro_hwmon" if chip == "smpro" else chip
    if chip in _CHIPS and usual:
        return _CHIPS[chip](number, label, labels)
    if _SUPPLIES.fullmatch(chip):
        return _power_supply(number, label, labels)
    if _DEVICES.match(chip):
        return Role(f"device/{label or chip}", "device")
    name = f"{chip} {label}" if label else chip if number == "1" else f"{chip} {number}"
    return Role(f"other/{name}", "other")


_IGNORED = re.compile(r"BAT|AC\b|ACAD|ADP|ucsi|hidpp|wacom", re.I)
_POWER_INTERVAL_S = 1.0
# ACPI's names of the system bus and of the system itself.
_WHOLE_SYSTEM = ("LNXSYBUS", "LNXSYSTM")
# A window must be so many times as long as what a reading is the mean of.
_MEANS = 2.0


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
        """Whether it is the host's, and not a card's or something that nobody knows."""
        return self.scope not in ("device", "other")

    def read(self) -> int:
        """µJ or µW. Raises PowerprofError."""
        value = read_int(self.file)
        return value if self.second is None else value * read_int(self.second)  # mV × mA = µW


def find_channels(root: Path) -> list[SensorChannel]:
    """The channels below `root` (…/class/hwmon), those of one chip beside each other, in a stable order."""
    channels: list[SensorChannel] = []
    board = try_text(root.parents[1] / "firmware/devicetree/base/compatible") or ""
    for folder in sorted(root.glob("hwmon*"), key=lambda f: (try_text(f / "name") or "", f.name)):
        # Kernels before 3.15 kept the files in the device's folder.
        home = folder if list(folder.glob("*_input")) or list(folder.glob("*_average")) else folder / "device"
        chip = try_text(folder / "name") or try_text(home / "name")
        if chip is None or _IGNORED.match(chip):
            continue
        channels += _of_chip(home, chip, usual=_is_usual(chip, home, board))
    # Two meters of a whole server: which of them contains the other is unknown.
    whole = {channel.file.parent for channel in channels if channel.scope == "server"}
    if len(whole) > 1:
        channels = [replace(c, scope="other") if c.scope == "server" else c for c in channels]
    return _distinct(channels)


def _is_usual(chip: str, folder: Path, board: str) -> bool:
    """Whether a chip that other makers use for something else measures what `hwmon_chips` says of it.

    ACPI's meter may be a battery's (`power1_is_battery`), or names the devices that it measures: the bus of the whole
    system or others (`measures`, drivers/hwmon/acpi_power_meter.c). An INA3221 has the labels that a board gives it.
    """
    if chip == "ina3221":
        return "nvidia,tegra" in board
    if chip != "power_meter":
        return True
    named = [link.name for folder in (folder, folder / "device") for link in folder.glob("measures/*")]
    whole = not named or any(name.startswith(_WHOLE_SYSTEM) for name in named)
    return whole and not try_int(folder / "power1_is_battery")


def _of_chip(folder: Path, chip: str, *, usual: bool) -> list[SensorChannel]:
    """A counter misses nothing between two samples: it wins over the power channel of the same meaning."""
    powers = _numbered(folder, r"power(\d+)_(average|input)")
    energies = _numbered(folder, r"energy(\d+)_input")
    volts = _numbered(folder, r"in(\d+)_input") if chip == "ina3221" and not powers else {}
    channels: dict[str, SensorChannel] = {}
    for prefix, files in (("in", volts), ("power", powers), ("energy", energies)):
        labels = {n: text for n in files if (text := try_text(folder / f"{prefix}{n}_label")) is not None}
        for number, file in files.items():
            role = role_of(chip, number, labels.get(number), labels, usual=usual)
            if prefix == "in":
                current = folder / f"curr{number}_input"
                made = SensorChannel(file, role.domain, role.inside, "product", role.scope, current, chip)
            else:
                kind: Literal["energy", "power"] = "energy" if prefix == "energy" else "power"
                made = SensorChannel(file, role.domain, role.inside, kind, role.scope, chip=chip)
            readable = try_int(file) is not None and (made.second is None or try_int(made.second) is not None)
            # A part of the host that cannot be read leaves the sum unknown; without it the sum would be too small.
            if readable or (made.is_host and role.domain not in channels):
                channels[role.domain] = made
    return [channels[domain] for domain in sorted(channels)]


def _numbered(folder: Path, pattern: str) -> Mapping[str, Path]:
    """Files by their number; an average goes before a reading of the moment."""
    files: dict[str, Path] = {}
    for file in sorted(folder.glob("*_*"), key=lambda f: (f.name.endswith("_input"), f.name)):
        match = re.fullmatch(pattern, file.name)
        if match:
            files.setdefault(match[1], file)
    return files


def _distinct(channels: list[SensorChannel]) -> list[SensorChannel]:
    names = distinct_names([(c.domain, c.file.parent.name) for c in channels])
    renamed = {(c.file.parent, c.domain): name for c, name in zip(channels, names, strict=True)}
    return [
        replace(c, domain=name, inside=c.inside and renamed.get((c.file.parent, c.inside), c.inside))
        for c, name in zip(channels, names, strict=True)
    ]


class HwmonMeter:
    """hwmon channels of this host."""

    name = "hwmon"

    def __init__(self, channels: list[SensorChannel]) -> None:
        self._channels = channels
        self._counters: list[list[CounterSample]] = [[] for _ in channels]
        self._powers: list[list[PowerSample]] = [[] for _ in channels]
        # A mean that the meter itself takes over a time (ACPI's, in ms).
        numbers = [(c.file.parent, re.fullmatch(r"power(\d+)_average", c.file.name)) for c in channels]
        self._means_s = [
            (try_int(folder / f"power{number[1]}_average_interval") or 0) * 1e-3 if number else 0.0
            for folder, number in numbers
        ]

    @property
    def max_interval_s(self) -> float | None:
        looks = [choose_interval_s(self._counters)]
        looks += [] if all(c.is_energy for c in self._channels) else [_POWER_INTERVAL_S]
        return min((value for value in looks if value is not None), default=None)

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
        if max(len(c) for c in self._counters) < 2 and all(c.is_energy for c in self._channels):
            return None
        return any(len({s.value for s in counters if s.value is not None}) > 1 for counters in self._counters)

    def energies(self, start_s: float, end_s: float) -> list[DomainEnergy]:
        result = []
        for channel, counters, powers, mean_s in zip(
            self._channels, self._counters, self._powers, self._means_s, strict=True
        ):
            if channel.is_energy:
                # The file is a 64-bit accumulation of the driver's; a step back means that it was reset.
                energy = counter_energy(counters, start_s, end_s, joules_per_unit=1e-6, modulus=None)
            else:
                energy = power_energy(powers, start_s, end_s, 5 * _POWER_INTERVAL_S)
            if mean_s > _POWER_INTERVAL_S and end_s - start_s < _MEANS * mean_s:
                note = f"is a mean over {mean_s:.0f} s: a window of {_MEANS * mean_s:.0f} s or more is needed"
                energy = EnergySeries(None, start_s, end_s, 0, (note,))
            elif mean_s > _POWER_INTERVAL_S:
                known = [s.watts for s in powers if s.watts is not None and s.time_s >= start_s]
                energy = replace(energy, edge_joules=(max(known) - min(known)) * mean_s if known else 0.0)
            result.append(DomainEnergy(channel.domain, channel.scope, energy, channel.inside))
        return result

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
    """This host's hwmon channels. Raises CapabilityError where there are none, or with `host_only` none of the host."""
    root = paths.sysfs() / "class/hwmon"
    channels = find_channels(root)
    if not channels or (host_only and not any(channel.is_host for channel in channels)):
        raise CapabilityError(
            f"hwmon: no chip in {root} reports the host's energy or power",
            "load the board's sensor driver (sensors-detect), or use another meter (--meter-log FILE)",
        )
    return HwmonMeter(channels)
