# SPDX-License-Identifier: Apache-2.0
"""Batteries: a laptop's whole draw, while they discharge and only then (Documentation/power/power_supply_class.rst)."""

from __future__ import annotations

import re
from pathlib import Path

from powerprof.energy.meter import DomainEnergy
from powerprof.measure.counters import PowerSample, drop_old_samples, power_energy
from powerprof.system import paths
from powerprof.system.errors import CapabilityError
from powerprof.system.files import try_int, try_text

_INTERVAL_S = 1.0
# What a UPS calls itself, and the makers that make nothing else with a battery.
_UPS = re.compile(
    r"(?<![a-z])ups(?![a-z])|uninterruptible|american power conversion|(?<![a-z])apc(?![a-z])"
    r"|cyber ?power|^cps$|^eaton|^tripp",
    re.I,
)
# Batteries of mice, keyboards and UPSs: the kernel names them so (drivers/hid/hid-input.c and others).
_PERIPHERAL = re.compile(r"hid|wacom|sony_controller|ps-controller|nintendo|steam", re.I)


def find_batteries(root: Path) -> list[Path]:
    """Batteries that feed the machine: not a mouse's (`scope` Device), nor a UPS's, which calls itself a battery and
    may feed other machines.
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
    """The name of what feeds the machine now beside its batteries: mains, USB, a pad without wires, a UPS; None where
    nothing is known to."""
    for folder in sorted(root.glob("*")):
        feeds = try_text(folder / "type") not in (None, "Battery") and try_text(folder / "scope") != "Device"
        if feeds and (try_int(folder / "online") or 0) > 0:
            return folder.name
    return None


def read_discharge_watts(folder: Path) -> float | None:
    """Watts that leave the battery now; None while it does not discharge, where it does not say, and while the mains
    are connected: then it gives a part of what the machine draws.
    """
    if try_text(folder / "status") != "Discharging" or find_external_supply(folder.parent) is not None:
        return None
    # µW, µA and µV; some firmwares give the discharge a sign, and 0 stands for what they do not know.
    power = try_int(folder / "power_now")
    if power:
        return abs(power) * 1e-6
    current, voltage = try_int(folder / "current_now"), try_int(folder / "voltage_now")
    return abs(current) * voltage * 1e-12 if current and voltage else None


class BatteryMeter:
    """The batteries of this machine."""

    name = "battery"
    max_interval_s: float | None = _INTERVAL_S

    def __init__(self, folders: list[Path], resting: list[Path]) -> None:
        self._folders = folders
        self._resting = resting
        self._samples: list[list[PowerSample]] = [[] for _ in folders]

    def sample(self, now_s: float) -> None:
        # Where another battery feeds the machine too, these give a part of what it draws.
        alone = all(try_text(folder / "status") != "Discharging" for folder in self._resting)
        for folder, samples in zip(self._folders, self._samples, strict=True):
            samples.append(PowerSample(now_s, read_discharge_watts(folder) if alone else None))

    def is_counting(self) -> bool | None:
        return any(s.watts for samples in self._samples for s in samples) if self._samples[0] else None

    def energies(self, start_s: float, end_s: float) -> list[DomainEnergy]:
        # Firmware refreshes power_now every few seconds to half a minute.
        return [
            DomainEnergy(folder.name, "battery", power_energy(samples, start_s, end_s, 30.0))
            for folder, samples in zip(self._folders, self._samples, strict=True)
        ]

    def drop_samples(self, before_s: float) -> None:
        for samples in self._samples:
            drop_old_samples(samples, before_s)

    def notes(self) -> list[str]:
        return []

    def close(self) -> None:
        self._samples = [[] for _ in self._folders]


def open_battery() -> BatteryMeter:
    """The batteries that discharge now. Raises CapabilityError where there is none or the mains feed the machine."""
    root = paths.sysfs() / "class/power_supply"
    folders = find_batteries(root)
    if not folders:
        raise CapabilityError(f"battery: none in {root}", "use another meter, or the estimate")
    discharging = [folder for folder in folders if read_discharge_watts(folder) is not None]
    mains = find_external_supply(root)
    if not discharging and mains is not None:
        raise CapabilityError(f"battery: the mains feed this machine too ({mains})", "unplug it and run again")
    if not discharging:
        states = ", ".join(f"{f.name} {(try_text(f / 'status') or 'unknown').lower()}" for f in folders)
        raise CapabilityError(f"battery: not discharging ({states})", "unplug the power supply and run again")
    return BatteryMeter(discharging, [folder for folder in folders if folder not in discharging])
