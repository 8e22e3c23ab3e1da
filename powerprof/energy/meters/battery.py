# SPDX-License-Identifier: Apache-2.0
"""The batteries of a laptop as a meter.

They show the draw of the whole laptop, only while they discharge (Documentation/power/power_supply_class.rst).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from msgspec.structs import replace

from powerprof.energy.meters.meter import POWER_INTERVAL_S, DomainEnergy, SampledMeter, UnusableMeterError
from powerprof.measure.energy_series import AT_EDGE_S, PowerSample, power_energy
from powerprof.system import paths
from powerprof.system.errors import CapabilityError
from powerprof.system.files import try_int, try_text

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
    max_interval_s: float | None = POWER_INTERVAL_S

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
        causes = [text for time_s, text in self._causes if start_s <= time_s <= end_s + AT_EDGE_S]
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
